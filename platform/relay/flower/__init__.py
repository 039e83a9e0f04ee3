"""Relays through Flower: packets cross Flower's SuperLink; the platform uses no other part of it.

    coordinator <-> hub <-> `link` <-> SuperLink <-> `node` <-> client

`link` runs beside SuperLink and acts as its one ServerApp, so SuperLink gets no code. On the
client's side, a loop of our own uses SuperLink's Fleet interface; the loop takes no code and starts
no process. Flower's types stay in this folder. We use interfaces that Flower does not promise to
keep: their version is pinned, and tests/engines checks them.

    python -m platform.relay.flower            prints the commands
"""

from platform.relay.flower.development import flower_on_localhost

__all__ = ["flower_on_localhost"]
