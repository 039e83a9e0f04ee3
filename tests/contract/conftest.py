"""The task of the contract suite, for tests of the suite itself and of single methods in it."""

from __future__ import annotations

import pytest

from methods import Task
from platform.contract.examples import random_backbone, small_task


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return small_task(random_backbone(tmp_path_factory.mktemp("small-clip")))
