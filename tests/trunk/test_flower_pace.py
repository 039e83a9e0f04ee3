"""How often a node looks for messages: nodes share one SuperLink, whose looks take time."""

from __future__ import annotations

from platform.relay.flower.node import HEARTBEAT, LONGEST_WAIT, SHORTEST_WAIT, paced


def test_how_often_a_node_looks():
    # A fast SuperLink is looked at as often as one node likes.
    for wait in (SHORTEST_WAIT, LONGEST_WAIT):
        assert paced(wait, 0.005) == wait
    # Whatever their number, one node is waiting for an answer for at most a fifth of the time.
    for took in (0.1, 0.3, 0.6):
        assert took / (took + paced(SHORTEST_WAIT, took)) <= 0.2
    # It is heard in time, however slow SuperLink is.
    assert paced(LONGEST_WAIT, 60.0) < HEARTBEAT / 2
