"""The kept mutants: each is found in the code as it is today, and its tests find it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests._mutants import ROOT, Mutant, Stage, found, kept

MUTANTS = kept()
LEAST = 150


def test_there_are_enough_and_each_is_another() -> None:
    assert len({(m.file, m.function, m.text, m.becomes) for m in MUTANTS}) >= LEAST
    assert [m.name for m in MUTANTS if m.tests and m.equivalent] == []


def test_each_is_found_in_the_code_as_it_is_and_stays_python() -> None:
    for mutant in MUTANTS:
        place = found(mutant)
        assert place is not None, f"{mutant.name}: {mutant.text}"
        path, start, end = place
        source = path.read_text("utf-8")
        ast.parse(source[:start] + mutant.becomes + source[end:])


def test_the_named_tests_are_there() -> None:
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        file, _, name = test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), test


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("mutants")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.tests], ids=lambda m: m.name)
def test_a_mutant_is_found(stage: Stage, mutant: Mutant) -> None:
    assert stage.failed(mutant.tests, mutant)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_named_tests_pass_without_a_fault(stage: Stage) -> None:
    names = sorted({test for mutant in MUTANTS for test in mutant.tests})
    groups = [names[start : start + 20] for start in range(0, len(names), 20)]
    assert [test for test in map(stage.failed, groups) if test] == []
