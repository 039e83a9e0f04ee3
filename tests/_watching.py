"""Which cases of a test coverage watches: some of each.

Watching makes a test take half as long again. Which lines a test reaches is nearly the same for its
first cases and its fiftieth, so a few of each are watched and all are run: the coverage that is
reported is at most what all cases together reach.
"""

from __future__ import annotations

from collections.abc import Sequence

WATCHED = 4
"""Cases of each test."""


def watched(names: Sequence[str]) -> list[bool]:
    """Whether each of these cases, `FILE::TEST[CASE]`, is watched.

    At most `WATCHED` of each test are, spread over its cases; where the spread begins goes on from
    test to test, so that tests of the same cases watch different ones.
    """
    tests: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        tests.setdefault(name.partition("[")[0], []).append(index)
    chosen = set()
    for turn, cases in enumerate(tests.values()):
        step = -(-len(cases) // WATCHED)
        chosen.update(cases[turn % step :: step])
    return [index in chosen for index in range(len(names))]
