"""Relays carry messages between the coordinator and its clients without reading them.

The coordinator listens on a Unix socket, the hub; each client's process listens on a socket of its
own. A relay connects the two: ours, in one process, or an engine's jobs with its network between
them. Packets travel: a number, the client's name, and an opaque message. A client that is asked
again sends the same bytes again, so a relay may die at any time, which costs time only.
"""
