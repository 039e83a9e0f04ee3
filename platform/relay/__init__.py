"""Relays carry messages between the coordinator and its clients without reading them.

The coordinator listens on a Unix socket, the hub; each client's process listens on its own socket.
A relay connects the two: either our relay, in one process, or an engine's jobs with its network
between them. A packet holds a number, the client's name, and an opaque message. A client that is
asked again sends the same bytes again. So a relay may die at any time, which costs only time.
"""
