"""Local twins cost as much as the run, so they can be left out: nothing else changes."""

from __future__ import annotations

import csv
import io

import pytest

from platform.experiment import comparisons
from platform.sweeping.tidy import _scores
from tests.trunk._runs import NONE, Command, Finished, Storage, comparable

WITHOUT = "evaluation.local_twins=false"
SCORES = ("mean", "weighted", "std", "worst", "per_client")


@pytest.fixture(scope="module")
def without(make_storage) -> Finished:
    """Reading only."""
    return make_storage("without").run(NONE, WITHOUT)


def test_no_twin_is_trained(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained a twin")

    monkeypatch.setattr(comparisons, "train_twin", refuse)
    with pytest.raises(AssertionError, match="trained a twin"):
        storage.run(NONE)
    storage.run(NONE, WITHOUT)


def test_its_numbers_are_null_and_all_others_as_ever(plain_run: Finished, without: Finished):
    assert without.summary["local"] == {"accuracy": dict.fromkeys(SCORES), "protocol": None}
    assert without.summary["gain_over_local"] is None
    ours, theirs = comparable(without.summary), comparable(plain_run.summary)
    assert list(ours) == list(theirs)
    for name in ("local", "gain_over_local"):
        assert ours.pop(name) != theirs.pop(name)
    assert ours == theirs


def test_the_report_has_a_dash(sotto: Command, without: Finished):
    answer = sotto("report", "latest", "--storage", without.storage.url)
    assert answer.code == 0
    (line,) = (line for line in answer.out.splitlines() if "gain over local" in line)
    assert line.replace("│", " ").split() == ["gain", "over", "local", "-"]
    assert "local twins" not in answer.out


def test_protocols_of_more_numbers_leave_them_out_too(sotto: Command, storage: Storage):
    novel = ("method.name=zero_shot", "evaluation.protocol=base_to_novel")
    storage.run(NONE, WITHOUT, *novel)
    answer = sotto("report", "latest", "--storage", storage.url)
    assert answer.code == 0 and "local twins" not in answer.out and "base to novel" in answer.out


def test_a_sweep_s_tables_have_no_such_measure(plain_run: Finished, without: Finished):
    with_twins, none = (_scores(run.summary)["last"] for run in (plain_run, without))
    assert set(with_twins) - set(none) == {"local_twin", "gain_over_local"}
    assert all(none[name] == with_twins[name] for name in none)


def test_metrics_are_the_same(plain_run: Finished, without: Finished):
    def rows(run: Finished) -> list[dict[str, str]]:
        text = (run.folder / "metrics.csv").read_text()
        return [{**row, "seconds": ""} for row in csv.DictReader(io.StringIO(text))]

    assert rows(plain_run) == rows(without)
