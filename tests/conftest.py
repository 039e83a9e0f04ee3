"""What holds for every test: which of its cases a quick run draws, and how many examples."""

from __future__ import annotations

import sys

import pytest
from hypothesis import is_hypothesis_test, settings

from platform.contract.cases import mark_undrawn

# jsonschema would load a grammar of addresses for seconds, for a format that no schema of ours has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# Examples of each property that says no number of its own. How long one takes is the machine's.
settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile("slow", max_examples=500, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """The slow tests have many examples of each property, all others some."""
    settings.load_profile("slow" if is_slow_run(config) else "quick")


def is_slow_run(config: pytest.Config) -> bool:
    """Whether the slow tests are asked for, as `make test-slow` does."""
    return config.option.markexpr == "slow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves to the slow tests what is not drawn."""
    for item in items:
        # With many examples a property is slow.
        if is_slow_run(config) and getattr(item, "obj", None) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.slow)
    mark_undrawn(item for item in items if item.get_closest_marker("pairs") is not None)
