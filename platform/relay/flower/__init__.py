"""Relays through Flower: packets cross its SuperLink, and nothing else of it is used.

    coordinator <-> hub <-> `link` <-> SuperLink <-> `node` <-> client

`link` runs beside SuperLink and holds its one ServerApp itself, so no code is ever sent there to be
run. A client's side is a loop of our own on SuperLink's Fleet interface, which takes no code and
starts no process. Flower's types stay in this folder. What it has no promises for is pinned, and
held to by tests/engines.

    python -m platform.relay.flower            prints what a person can type
"""

from platform.relay.flower.development import flower_on_localhost

__all__ = ["flower_on_localhost"]
