"""Relays through Flower: packets cross its SuperLink, and nothing else of it is used.

    coordinator <-> hub <-> `link` <-> SuperLink <-> `node` <-> client

`link` runs beside SuperLink and holds its one ServerApp itself, so no code is sent to SuperLink.
A client's side is a loop of our own on SuperLink's Fleet interface, which takes no code and starts
no process. Flower's types stay in this folder. We use interfaces that Flower does not promise to
keep: their version is pinned, and tests/engines checks them.

    python -m platform.relay.flower            prints what a person can type
"""

from platform.relay.flower.development import flower_on_localhost

__all__ = ["flower_on_localhost"]
