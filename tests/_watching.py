"""Which cases of a test coverage watches: some of each.

Watching makes a test take half as long again. Which lines a test reaches is nearly the same for its
first cases and its fiftieth, so a few of each are watched and all are run: the coverage that is
reported is at most what all cases together reach. A plugin, as tests lie in two folders.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WATCHED = 4
"""Cases of each test."""
UNWATCHED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Of the tests that are left some are watched."""
    yield
    for item, is_watched in zip(items, watched([item.nodeid for item in items]), strict=True):
        item.stash[UNWATCHED] = not is_watched


def pytest_collection_finish() -> None:
    """Imports all there is where coverage measures, as a first import may be in an unwatched case.

    What the engines' adapters import is in environments of their own.
    """
    if not measures(sys.gettrace()):
        return
    for package in ("methods", "platform", "privacy", "sotto", "storage"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if file.stem != "__main__":
                parts = file.relative_to(ROOT).with_suffix("").parts
                with suppress(ImportError):
                    import_module(".".join(part for part in parts if part != "__init__"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Stops measuring while a case runs that is not watched; it is tested all the same."""
    tracer = sys.gettrace() if item.stash[UNWATCHED] else None
    if not measures(tracer):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


def measures(tracer: object) -> bool:
    """Whether a tracer is coverage's; whatever else traces, a debugger say, is not ours to stop."""
    return type(tracer).__module__.startswith("coverage")


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
