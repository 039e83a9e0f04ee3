"""`compare`, and what `runs` says of each run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from platform.cli.keeping import age, epsilons_in_short
from platform.cli.reporting import flat
from tests.trunk._runs import NONE, Command, Finished, Storage
from tests.trunk.conftest import MakeStorage


@pytest.fixture(scope="module")
def both(make_storage: MakeStorage) -> tuple[Storage, Finished, Finished]:
    """Two runs of one database, without noise and with it."""
    storage = make_storage("both")
    return storage, storage.run(NONE, "rounds=1"), storage.run("rounds=2", "seed=7")


def test_runs_side_by_side(sotto: Command, both: tuple[Storage, Finished, Finished]) -> None:
    storage, plain, noised = both
    names = (plain.run_id, noised.run_id)
    found = sotto("compare", *names, "--storage", storage.url, "--json").document
    assert [one["run"] for one in found["runs"]] == list(names)
    for one, run in zip(found["runs"], (plain, noised), strict=True):
        assert one["epsilon"] == run.summary["final"]["epsilon"]
        assert one["accuracy"]["worst"] == run.summary["final"]["accuracy"]["worst"]
        assert one["gain_over_local"] == run.summary["gain_over_local"]
    differences = found["differences"]
    assert differences["seed"] == {plain.run_id: 3, noised.run_id: 7}
    assert differences["rounds"] == {plain.run_id: 1, noised.run_id: 2}
    assert differences["privacy.mechanism"][plain.run_id] == "none"
    assert "task.dataset" not in differences
    assert not [key for key in differences if key.startswith("storage.")]
    assert found["epsilons_differ_in"] == []


def test_epsilons_of_two_deltas_are_not_compared(sotto: Command, storage: Storage) -> None:
    deltas = [f"privacy.target_delta={delta}" for delta in ("1.0e-5", "1.0e-6")]
    names = [storage.run("rounds=1", delta).run_id for delta in deltas]
    shown = sotto("compare", *names, "--storage", storage.url)
    assert "note: these epsilons cannot be compared: runs differ in delta\n" in shown.out
    assert "nothing protects" not in shown.out


def test_for_people(sotto: Command, both: tuple[Storage, Finished, Finished]) -> None:
    storage, plain, noised = both
    shown = sotto("compare", plain.run_id, "latest", "--storage", storage.url)
    assert shown.code == 0
    row = next(line for line in shown.out.splitlines() if line.startswith(noised.run_id))
    assert row.split()[1:3] == ["finished", f"{noised.summary['final']['accuracy']['mean']:.1%}"]
    assert "cannot be compared" not in shown.out
    said = shown.out.replace("\n      ", " ")
    assert f"note: {plain.run_id}: mechanism none: nothing protects its clients" in said
    assert next(line.split() for line in shown.out.splitlines() if line.startswith("seed ")) == [
        *("seed", "3", "7")
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("latest",), "1 is too few to compare"),
        (("latest", "latest"), "is named twice"),
        (("latest", "nobody"), "'nobody' is unknown"),
    ],
)
def test_what_is_refused(
    sotto: Command, noised_run: Finished, names: tuple[str, ...], said: str
) -> None:
    answer = sotto("compare", *names, "--storage", noised_run.storage.url)
    assert answer.code == 2 and said in answer.err


def test_a_run_whose_records_disagree_has_no_numbers(sotto: Command, own_copy: Finished) -> None:
    (own_copy.folder / "summary.json").write_text("{}")
    (row,) = sotto("runs", "--storage", own_copy.storage.url, "--json").document
    assert row["accuracy"] is None and row["epsilon"] is None and row["problem"]
    shown = sotto("runs", "--storage", own_copy.storage.url)
    assert shown.code == 0 and "records disagree" in shown.out and "warning: run " in shown.out
    answer = sotto("compare", "latest", "nobody", "--storage", own_copy.storage.url)
    assert answer.code == 2


def test_runs_have_method_data_accuracy_and_epsilon(
    sotto: Command, both: tuple[Storage, Finished, Finished]
) -> None:
    storage, plain, noised = both
    newest, oldest = sotto("runs", "--storage", storage.url, "--json").document
    assert (newest["run"], oldest["run"]) == (noised.run_id, plain.run_id)
    assert newest["accuracy"] == noised.summary["final"]["accuracy"]["mean"]
    assert newest["epsilon"] == noised.summary["final"]["epsilon"]
    assert (newest["method"], newest["dataset"]) == (
        noised.summary["method"],
        noised.summary["dataset"],
    )
    header = sotto("runs", "--storage", storage.url).out.splitlines()[0].split()
    assert header == ["run", "method", "data", "accuracy", "epsilon", "status", "age"]


def test_only_the_newest_runs_are_priced(
    sotto: Command,
    both: tuple[Storage, Finished, Finished],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, plain, _ = both
    monkeypatch.setattr("platform.cli.keeping.NEWEST", 1)
    rows = sotto("runs", "--storage", storage.url, "--json").document
    assert [row["epsilon"] is None for row in rows] == [False, True]
    assert "numbers of the newest 1 runs only" in sotto("runs", "--storage", storage.url).out
    rows = sotto("runs", "--all", "--storage", storage.url, "--json").document
    assert rows[1]["epsilon"] == plain.summary["final"]["epsilon"]


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        *((timedelta(seconds=-5), "0 s"), (timedelta(seconds=59), "59 s")),
        *((timedelta(seconds=61), "1 min"), (timedelta(hours=23, minutes=59), "23 h")),
        (timedelta(days=400), "400 d"),
    ],
)
def test_ages(passed: timedelta, shown: str) -> None:
    assert age(passed) == shown


def test_one_epsilon_for_all_adversaries_or_three() -> None:
    same = dict.fromkeys(("server", "peers", "observer"), 8.0)
    assert epsilons_in_short(same) == "8.00"
    assert epsilons_in_short({**same, "server": "inf"}) == "inf/8.00/8.00"
    assert epsilons_in_short(dict.fromkeys(same)) == "-" == epsilons_in_short(None)


def test_dotted_keys() -> None:
    tree = {"a": {"b": {"c": 1}, "d": {}}, "e": [1]}
    assert dict(flat(tree)) == {"a.b.c": 1, "a.d": {}, "e": [1]}
