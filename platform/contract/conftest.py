"""Selects what the suite tests, and provides the small CLIP and the stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch

from methods import LocalResult, Method, MethodError, Task
from methods.plugins import Plugins
from platform.contract.cases import (
    Case,
    Plugin,
    all_cases,
    mark_undrawn,
    methods_of,
    own_methods,
    plugins_of_kind,
    require_some,
)
from platform.contract.driving import quick_folder, train
from platform.contract.examples import frozen, random_backbone, small_task
from platform.contract.plugin import RULE, chosen_folder, rule_of
from platform.errors import PlatformError

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
REFUSED = pytest.StashKey[str]()
"""The reason why the suite can test nothing."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, also for runs outside our repository."""
    config.addinivalue_line("markers", "slow: left out of a quick run, as of -m 'not slow'")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a method's case, or for a plug-in, on all of them."""
    name = next((one for one in ("case", "plugin") if one in metafunc.fixturenames), None)
    if name is None:
        return
    found: tuple[Case | Plugin, ...] = ()
    try:
        plugins = chosen(metafunc.config)
        if name == "case":
            found = all_cases(own_methods() if plugins is None else methods_of(plugins))
        elif plugins is not None:
            found = plugins_of_kind(plugins, metafunc.module.KIND)
    except (MethodError, PlatformError) as error:
        metafunc.config.stash[REFUSED] = str(error)
    metafunc.parametrize(name, found, ids=lambda one: one.name, indirect=True, scope="session")


def chosen(config: pytest.Config) -> Plugins | None:
    """Return a folder's plug-ins; else None in our repository, and installed ones elsewhere."""
    folder = chosen_folder(config)
    if folder is None and config.rootpath == REPOSITORY:
        return None
    plugins = Plugins() if folder is None else Plugins(folder, installed=False)
    require_some(plugins)
    return plugins


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases as slow that are not drawn; `UsageError` if the suite can test no method."""
    refused = config.stash.get(REFUSED, None)
    if refused is not None:
        # Raised here, the error ends the run in one sentence; a collector would show a traceback.
        raise pytest.UsageError(refused)
    # Pytest makes one skipped case of none: of a kind that is not there, nothing is to be said.
    empty = [item for item in items if item.path.parent == HERE and "[NOTSET" in item.name]
    items[:] = [item for item in items if item not in empty]
    config.hook.pytest_deselected(items=empty)
    mark_undrawn(item for item in items if item.path.parent == HERE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broken rule to a failure's report."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        rule = rule_of(item.function)
        params = item.callspec.params if hasattr(item, "callspec") else {}
        cases = (params.get(name) for name in ("case", "plugin"))
        name = next((one.name for one in cases if isinstance(one, Case | Plugin)), "")
        report.sections.insert(0, ("the rule that is broken", rule))
        report.user_properties.append((RULE, (rule, name)))
    return report


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The task for which the methods are built."""
    return small_task(random_backbone(tmp_path_factory.mktemp("small-clip")))


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest) -> Case:
    """One method with one set of options."""
    return cast(Case, request.param)


@pytest.fixture(scope="session")
def plugin(request: pytest.FixtureRequest) -> Plugin:
    """One plug-in of the kind that the suite names as `KIND`."""
    return cast(Plugin, request.param)


@pytest.fixture(scope="session")
def build_once(task: Task) -> Callable[[Case], Method]:
    """Builds each method once: no test may change a method, so all tests share it."""
    return cache(lambda case: case.registry.build(case.method, case.config(), task))


@pytest.fixture
def method(case: Case, build_once: Callable[[Case], Method]) -> Method:
    """The method under test."""
    return build_once(case)


@pytest.fixture(scope="session")
def train_once(build_once: Callable[[Case], Method]) -> Callable[[Case], LocalResult]:
    """Trains each method once, for the tests that look at a first round's result."""

    @cache
    def trained(case: Case) -> LocalResult:
        result = train(build_once(case))
        for arrays in (result.update, result.personal, result.pool_entry or {}):
            frozen(arrays)
        return result

    return trained


@pytest.fixture
def result(case: Case, train_once: Callable[[Case], LocalResult]) -> LocalResult:
    """What a client of the method returns in its first round; read-only."""
    return train_once(case)


@pytest.fixture
def stores() -> Iterator[Path]:
    """A folder for the clients' stores."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread: the methods are so small that several threads would be slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
