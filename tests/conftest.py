"""What holds for every test: which of its cases a quick run draws, and which coverage watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from tests._drawing import drawn
from tests._postgres import Server, reason_against, started
from tests._watching import watched

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = ROOT / "tests" / "contract"
UNWATCHED = pytest.StashKey[bool]()
# Examples of each property that says no number of its own. How long one takes is the machine's.
settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile("slow", max_examples=500, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """The slow tests have many examples of each property, all others some."""
    settings.load_profile("slow" if is_slow_run(config) else "quick")


def is_slow_run(config: pytest.Config) -> bool:
    """Whether the slow tests are asked for, as `make test-slow` does."""
    return config.option.markexpr == "slow"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Leaves to the slow tests what is not drawn; of the others some are watched."""
    for item in items:
        # With many examples a property is slow.
        if is_slow_run(config) and getattr(item, "obj", None) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.slow)
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        # What is slow anyway does not stand for anything in a quick run.
        if isinstance(item, pytest.Function) and is_drawn_by_pairs(item) and not is_slow(item):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        params = [item.callspec.params if hasattr(item, "callspec") else {} for item in cases]
        for item, is_drawn in zip(cases, drawn(cases[0].originalname, params), strict=True):
            if not is_drawn:
                item.add_marker(pytest.mark.slow)
    yield
    for item, is_watched in zip(items, watched([item.nodeid for item in items]), strict=True):
        item.stash[UNWATCHED] = not is_watched


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server; what needs one is skipped where none can be started."""
    reason = reason_against()
    if reason is not None:
        pytest.skip(reason)
    with started() as running:
        yield running


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def is_drawn_by_pairs(item: pytest.Function) -> bool:
    """Whether a quick run has some of a test's cases only."""
    return item.path.parent == CONTRACT or item.get_closest_marker("pairs") is not None


def pytest_collection_finish() -> None:
    """Imports all there is where coverage measures, as a first import may be in an unwatched case.

    What the engines' adapters import is in environments of their own.
    """
    if not measures(sys.gettrace()):
        return
    for package in ("methods", "platform", "privacy", "storage"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if file.stem != "__main__":
                parts = file.relative_to(ROOT).with_suffix("").parts
                with suppress(ImportError):
                    import_module(".".join(part for part in parts if part != "__init__"))


def measures(tracer: object) -> bool:
    """Whether a tracer is coverage's; whatever else traces, a debugger say, is not ours to stop."""
    return type(tracer).__module__.startswith("coverage")


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
