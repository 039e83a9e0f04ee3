"""Between two machines: what carries messages that it does not understand.

The coordinator listens on a Unix socket, the hub; each client's process listens on one of its own.
A relay connects the two: ours, in one process, or an engine's jobs with its network between them.
What travels are packets: a number, whom it is for, and a message that is opaque here. Whatever is
asked again gets the same bytes again, so a relay may die at any time and costs nothing but time.
"""
