"""Which methods the rules are tried on, and the small CLIP and stores that they are tried with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch

from methods import Method, MethodError, Task
from platform.contract.cases import (
    Case,
    Chosen,
    all_cases,
    installed_methods,
    mark_undrawn,
    methods_in,
    own_methods,
)
from platform.contract.driving import quick_folder
from platform.contract.examples import random_backbone, small_task
from platform.contract.plugin import RULE, chosen_folder, rule_of
from platform.errors import PlatformError

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
REFUSED = pytest.StashKey[str]()
"""Why no method can be tried."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, wherever the suite is run."""
    config.addinivalue_line("markers", "slow: left out of a quick run, as of -m 'not slow'")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try every rule that asks for a case, or for a method, on all of them."""
    if "case" not in metafunc.fixturenames:
        return
    cases: tuple[Case, ...] = ()
    try:
        cases = all_cases(chosen(metafunc.config))
    except (MethodError, PlatformError) as error:
        metafunc.config.stash[REFUSED] = str(error)
    metafunc.parametrize("case", cases, ids=lambda case: case.name, indirect=True, scope="session")


def chosen(config: pytest.Config) -> Chosen:
    """Return the methods that are named, else all from outside, or in our repository our own.

    Raises:
        BrokenMethod: If there is none, or two have one name.
    """
    folder = chosen_folder(config)
    if folder is not None:
        return methods_in(folder)
    return own_methods() if config.rootpath == REPOSITORY else installed_methods()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the slow tests what is not drawn.

    Raises:
        UsageError: If there is nothing that can be tried.
    """
    refused = config.stash.get(REFUSED, None)
    if refused is not None:
        # Here, as it ends a run in one sentence where a collector would show a trace.
        raise pytest.UsageError(refused)
    mark_undrawn(item for item in items if item.path.parent == HERE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the rule beside a failure."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        rule = rule_of(item.function)
        report.sections.insert(0, ("the rule that is broken", rule))
        report.user_properties.append((RULE, (rule, case_name(item))))
    return report


def case_name(item: pytest.Function) -> str:
    """Return which case was tried, or nothing where a test has none."""
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return case.name if isinstance(case, Case) else ""


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The task on which methods are built."""
    return small_task(random_backbone(tmp_path_factory.mktemp("small-clip")))


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest) -> Case:
    """One method with one set of options."""
    return cast(Case, request.param)


@pytest.fixture(scope="session")
def build_once(task: Task) -> Callable[[Case], Method]:
    """A method holds nothing that a test may change, so all tests share it."""
    return cache(lambda case: case.registry.build(case.method, case.config(), task))


@pytest.fixture
def method(case: Case, build_once: Callable[[Case], Method]) -> Method:
    """The method that is tried."""
    return build_once(case)


@pytest.fixture
def stores() -> Iterator[Path]:
    """A folder for the stores of clients."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Methods are small: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
