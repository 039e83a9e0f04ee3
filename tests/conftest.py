"""What holds for every test: which of its cases coverage watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests._watching import watched

UNWATCHED = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that run at full speed."""
    for item, is_watched in zip(items, watched([item.nodeid for item in items]), strict=True):
        item.stash[UNWATCHED] = not is_watched


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Stops measuring while a case runs that is not watched; it is tested all the same."""
    tracer = sys.gettrace() if item.stash[UNWATCHED] else None
    # Whatever else traces, a debugger say, is not ours to stop.
    if tracer is None or not type(tracer).__module__.startswith("coverage"):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
