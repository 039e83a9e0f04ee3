"""How often a node looks for messages: nodes share one SuperLink, whose looks take time."""

from __future__ import annotations

import pytest

from platform.relay.flower.node import HEARTBEAT, LONGEST_WAIT, SHORTEST_WAIT, paced


@pytest.mark.parametrize("wait", [SHORTEST_WAIT, LONGEST_WAIT])
def test_a_fast_superlink_is_looked_at_as_often_as_one_node_likes(wait):
    assert paced(wait, 0.005) == wait


def test_nodes_leave_a_busy_superlink_time_to_answer():
    # Whatever their number, one node is waiting for an answer for at most a fifth of the time.
    for took in (0.1, 0.3, 0.6):
        assert took / (took + paced(SHORTEST_WAIT, took)) <= 0.2


def test_a_node_is_heard_in_time_however_slow_superlink_is():
    assert paced(LONGEST_WAIT, 60.0) < HEARTBEAT / 2
