"""What holds for every test: which of its cases coverage watches."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
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
    measuring = coverage.Coverage.current()
    if measuring is None or not item.stash[UNWATCHED]:
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()
