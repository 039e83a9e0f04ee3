"""The page of methods says of each what the method itself says."""

from __future__ import annotations

from pathlib import Path

import pytest

from methods import Method, Registry, Task, Visibility
from platform.experiment.method_building import is_admitted
from platform.mechanisms import BUILT_IN
from tests.contract.conftest import Case, shipped_cases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"
HEAD = "| name | shared | numbers a round | kept by the client | data | mechanisms |"
OURS = tuple(case for case in shipped_cases() if case.name == case.method)


def mechanisms(method: Method) -> str:
    """All, all but some, or those that are admitted."""
    admitted = {found.name for found in BUILT_IN if is_admitted(method, found)}
    if admitted == set(BUILT_IN.names):
        return "all"
    refused = sorted(set(BUILT_IN.names) - admitted)
    if len(refused) == 1:
        return f"all but `{refused[0]}`"
    return ", ".join(f"`{name}`" for name in sorted(admitted))


def row(case: Case, task: Task) -> str:
    """One line of the table, from the method as its preset builds it."""
    method = case.registry.build(case.method, case.config(), task)
    # Of a network its parts, as its layers are many.
    shared = list(dict.fromkeys(name.split(".")[0] for name in method.shared_spec()))
    if method.pool_policy() is not None:
        shared.append("pool entry")
    if method.visibility is Visibility.PER_CLIENT:
        shared.append("seen one by one")
    size = sum(_size(spec.shape) for spec in method.shared_spec().values())
    cells = (
        f"`{case.name}`",
        ", ".join(shared) or "nothing",
        str(size),
        "yes" if method.has_personal_state else "no",
        ", ".join(sorted(method.needs)),
        mechanisms(method),
    )
    return f"| {' | '.join(cells)} |"


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.name)
def test_the_page_has_the_line_that_the_method_gives(case: Case, tiny_task: Task):
    assert row(case, tiny_task) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_no_other_lines():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = lines[lines.index(HEAD) + 2 :]
    assert len(table[: table.index("")]) == len(OURS) == len(Registry().available())


@pytest.fixture(scope="module")
def tiny_task() -> Task:
    from methods.clip.adapter import load_backbone
    from platform.data.shapes import CLASSES, DOMAINS

    return Task(CLASSES, DOMAINS, 10, load_backbone("sotto-tiny"))
