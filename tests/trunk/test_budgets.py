"""`budget`: spent, reserved, left and to come, held against formulas, reports, own ledgers."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml

from platform.config import parse_config
from platform.errors import RunStopped
from platform.experiment import finishing
from platform.experiment.finishing import execute
from platform.experiment.planning import create_run
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from tests.trunk._federations import NAMES, OPEN, Holders, federation, hold, within
from tests.trunk._runs import (
    ADVERSARIES,
    FIXED,
    GATHERING,
    NO_POOL,
    NONE,
    ONCE,
    OS,
    RECORDS,
    Command,
    Crash,
    Finished,
    Storage,
    crashed,
    gaussian_epsilon,
    opened,
    slow,
    warnings_of,
)
from tests.trunk._tampering import execute as execute_past
from tests.trunk.test_resume import lose, lost

TARGET = 8.0
QUICK = (*NO_POOL, "task.test_per_class=1")
WHOLE = ("cohort.dropout_rate=0.0",)


def budget_of(sotto: Command, storage: Storage, run_id: str = "latest", *more: str) -> Any:
    answer = sotto("budget", run_id, "--storage", storage.url, "--json", *more)
    assert (answer.code, answer.err) == (0, "")
    return answer.document


def shown(sotto: Command, storage: Storage, *arguments: str) -> str:
    answer = sotto("budget", *arguments, "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def rounds_that_fit(noise_multiplier: float, spent: int, target: float) -> int:
    found = 0
    while gaussian_epsilon(noise_multiplier, spent + found + 1) <= target * (1 + 1e-9):
        found += 1
    return found


def crashed_at(storage, monkeypatch, nth, *overrides, after=False) -> str:
    simulation = storage.create(*overrides)
    return crashed(monkeypatch, simulation, Federation, "_commit", nth, after=after)


def test_each_client_of_an_ended_run_has_spent_what_the_formula_says(sotto, noised_run):
    document, z = budget_of(sotto, noised_run.storage), noised_run.noise_multiplier
    assert next(iter(document)) == "warnings"
    for name in ("unit", "relation", "delta", "accountant", "mechanism", "run_id"):
        assert document[name] == noised_run.summary[name]
    assert (document["unit"], document["relation"]) == ("client", "replace_one")
    assert (document["delta"], document["accountant"]) == (1e-5, "exact")
    assert document["warnings"] == warnings_of(noised_run.summary)
    assert (document["status"], document["forecast"]) == ("finished", None)
    query = "SELECT pseudonym FROM ledger WHERE status = 'reserved'"
    held = Counter(name for (name,) in noised_run.storage.rows(query))
    assert held
    clients = document["clients"]
    assert {one["pseudonym"] for one in clients} == {p for p, _ in noised_run.identities().values()}
    whole = gaussian_epsilon(z, 3)
    assert 7.99 < noised_run.summary["final"]["epsilon"]["server"] <= TARGET
    assert document["epsilon"] == dict.fromkeys(ADVERSARIES, pytest.approx(whole, rel=1e-6))
    for one in clients:
        missed = held[one["pseudonym"]]
        assert one["releases"] == 3 and one["number"] is one["rounds_left"] is None
        assert one["spent"] == pytest.approx(whole, rel=1e-6) == one["epsilon"]["server"]
        assert one["left"] == pytest.approx(TARGET - whole, abs=1e-5)
        rest = gaussian_epsilon(z, 3 - missed) if missed else whole
        assert one["reserved"]["epsilon"] == pytest.approx(whole - rest, abs=1e-6)
        assert one["reserved"]["releases"] == ({"missed": missed} if missed else {})
        # Clients of a simulation without a lifetime budget live for one run.
        assert one["lifetime"]["spent"] == one["spent"]
        assert one["lifetime"]["runs"] == [noised_run.run_id]


def test_without_noise_epsilon_is_infinite_and_never_zero(sotto, plain_run):
    document = budget_of(sotto, plain_run.storage)
    infinite = dict.fromkeys(ADVERSARIES, "inf")
    assert document["epsilon"] == infinite == plain_run.summary["final"]["epsilon"]
    assert (document["unit"], document["relation"], document["left"]) == (None, None, None)
    assert any("epsilon is infinite" in text for text in document["warnings"])
    for one in document["clients"]:
        assert one["epsilon"] == infinite and one["spent"] == one["lifetime"]["spent"] == "inf"
    text = shown(sotto, plain_run.storage, "latest")
    assert "inf/inf/inf" in text and "0.00" not in text


MECHANISMS = {
    "dp_sgd": (*RECORDS, "secure_aggregation={enabled: false}"),
    "central_noise": ("privacy.mechanism=central_noise", *FIXED),
    "secret_cohorts": (
        "privacy.mechanism=central_noise",
        "secure_aggregation={enabled: false}",
        "cohort={sampling: poisson, size: 3, minimum: 1, retries: 0, dropout_rate: 0.0}",
        OS,
        *FIXED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_stated_as_its_report_states_it(sotto, storage, name):
    run = storage.run(*MECHANISMS[name], *QUICK, "rounds=2")
    document = budget_of(sotto, storage)
    assert document["epsilon"] == run.summary["final"]["epsilon"]
    for field in ("accountant", "unit", "relation"):
        assert document[field] == run.summary[field]
    bare = document["epsilon"]["server"] == "inf"
    assert bare == (document["limited_against"] == "peers")
    for adversary in ADVERSARIES:
        stated = [one["epsilon"][adversary] for one in document["clients"]]
        worst = "inf" if "inf" in stated else max(stated)
        assert worst == document["epsilon"][adversary]
    spent = [one["spent"] for one in document["clients"]]
    assert document["spent"] == max(spent) and "inf" not in spent


@pytest.mark.parametrize("spare", [0, slow(1)])
def test_an_aborted_attempt_is_stated_with_what_it_cost(sotto, storage, spare):
    run_id = lost(storage, 2, f"privacy.spare_attempts={spare}", *WHOLE, *QUICK)
    document, z = budget_of(sotto, storage), Finished(storage, run_id, {}).noise_multiplier
    assert (document["status"], document["finished"]) == ("interrupted", False)
    one, two = gaussian_epsilon(z, 1), gaussian_epsilon(z, 2)
    (attempt,) = document["attempts"]
    assert attempt["cost"] == pytest.approx(two - one, rel=1e-5)
    found = {key: value for key, value in attempt.items() if key not in ("cost", "why")}
    assert found == {"round": 2, "attempt": 1, "state": "aborted", "clients_charged": 5}
    # Two rounds are missing; the attempt that was lost took one of those that were calibrated for.
    fitting = rounds_that_fit(z, 2, TARGET)
    assert fitting == 1 + spare
    assert document["forecast"] == {"rounds_to_come": 2, "rounds_left": fitting}
    for client in document["clients"]:
        assert client["spent"] == pytest.approx(two, rel=1e-6)
        assert client["reserved"]["releases"] == {"aborted": 1}
        assert client["reserved"]["epsilon"] == pytest.approx(two - one, rel=1e-5)
        assert client["left"] == pytest.approx(TARGET - two, rel=1e-5)
        assert client["rounds_left"] == fitting
    rounds = storage.resume(run_id).summary["rounds"]
    assert len(rounds) == 1 + fitting
    # What it cost is what the whole would be less without it, and the whole is more now.
    (attempt,) = budget_of(sotto, storage)["attempts"]
    cost = gaussian_epsilon(z, 2 + fitting) - gaussian_epsilon(z, 1 + fitting)
    assert attempt["cost"] == pytest.approx(cost, rel=1e-5)


def test_an_attempt_that_nothing_left_in_is_free(sotto: Command, storage: Storage) -> None:
    with opened(storage.create(OS, ONCE, *QUICK)) as simulation, pytest.raises(RunStopped):
        execute(lose(simulation, "share", {2}), SilentObserver())
    document = budget_of(sotto, storage)
    (attempt,) = document["attempts"]
    assert (attempt["state"], attempt["clients_charged"], attempt["cost"]) == ("aborted", 0, 0.0)
    assert document["forecast"] == {"rounds_to_come": 2, "rounds_left": 2}


@pytest.mark.parametrize("noise", [slow((NONE,)), ("privacy.mechanism=central_noise", *FIXED, OS)])
def test_a_round_that_is_lost_for_good_is_an_attempt_without_a_result(sotto, storage, noise):
    asked = (*noise, *WHOLE, *QUICK, ONCE)
    with opened(storage.create(*asked)) as simulation, pytest.raises(RunStopped):
        execute(lose(simulation, "unmask", {2}), SilentObserver())
    document = budget_of(sotto, storage)
    (attempt,) = document["attempts"]
    assert (attempt["round"], attempt["state"], attempt["clients_charged"]) == (2, "lost", 5)
    cost = gaussian_epsilon(4.0, 2) - gaussian_epsilon(4.0, 1)
    assert attempt["cost"] == ("inf" if NONE in noise else pytest.approx(cost, rel=1e-5))
    assert all(one["reserved"]["releases"] == {"lost": 1} for one in document["clients"])
    assert (document["forecast"]["rounds_left"], document["left"]) == (None, None)


def test_an_open_attempt_is_spent_and_said_to_be_open(sotto, storage, monkeypatch):
    run_id = crashed_at(storage, monkeypatch, 2, OS, *WHOLE, *QUICK)
    document, z = budget_of(sotto, storage), Finished(storage, run_id, {}).noise_multiplier
    (attempt,) = document["attempts"]
    assert (attempt["round"], attempt["attempt"], attempt["state"]) == (2, 1, "open")
    assert document["spent"] == pytest.approx(gaussian_epsilon(z, 2), rel=1e-6)
    assert all(one["reserved"]["releases"] == {"open": 1} for one in document["clients"])
    # It goes on with what it was charged for, so one round is to come.
    assert document["forecast"] == {"rounds_to_come": 1, "rounds_left": 1}
    report = sotto("report", run_id, "--storage", storage.url, "--json").document
    assert report["epsilon"] == document["epsilon"]
    assert report["open_attempt"] == {"round": 2, "attempt": 1}


@pytest.mark.parametrize("override", [OS, NONE])
def test_a_run_that_charged_nobody_yet_is_no_run_that_cost_nothing(sotto, storage, override):
    storage.create(override, *QUICK).database.close()
    document = budget_of(sotto, storage)
    assert document["clients"] == [] and document["attempts"] == []
    assert document["forecast"] == {"rounds_to_come": 3, "rounds_left": None}
    expected = None if override == NONE else 0.0
    assert document["epsilon"] == dict.fromkeys(ADVERSARIES, expected)
    assert "no client has been charged" in shown(sotto, storage, "latest")


@pytest.mark.slow
def test_a_secret_draw_is_forecast_as_if_it_took_the_client_each_time(sotto, storage, monkeypatch):
    """Calibrated for three rounds, of which one is charged to all, drawn or not."""
    target = ("privacy.noise_multiplier=null", "privacy.target_epsilon=8.0")
    crashed_at(storage, monkeypatch, 1, *MECHANISMS["secret_cohorts"], *target, *QUICK, after=True)
    clients = budget_of(sotto, storage)["clients"]
    assert [(one["releases"], one["rounds_left"]) for one in clients] == [(1, 2)] * 5


def test_a_run_that_ends_around_its_collection_is_stated(sotto, storage, monkeypatch):
    crashed_at(storage.gathering(), monkeypatch, 2, OS, GATHERING, "rounds=1")
    document = budget_of(sotto, storage)
    assert document["forecast"]["rounds_to_come"] == 0
    assert (document["rounds_over"], document["attempts"][0]["round"]) == (1, 2)


@pytest.mark.slow
def test_a_second_phase_states_the_releases_of_its_first_run_and_has_none_to_come(
    sotto, storage, monkeypatch
):
    place = storage.gathering()
    first = place.run(OS, GATHERING, "rounds=1")
    tree = yaml.safe_load((first.folder / "config.yaml").read_text())
    config = parse_config({**tree, "phase_two_of": first.run_id})
    second = create_run(config, SilentObserver(), place.surroundings)
    run_id = crashed(monkeypatch, second, finishing, "write_run_files", 1)
    document = budget_of(sotto, storage)
    assert (document["run_id"], document["finished"]) == (run_id, False)
    assert (document["phase_two_of"], document["forecast"]) == (first.run_id, None)
    assert document["epsilon"] == first.summary["final"]["epsilon"]
    # They are the first run's releases, and count once.
    ended = budget_of(sotto, storage, first.run_id)
    lives = [[one["lifetime"] for one in found["clients"]] for found in (document, ended)]
    assert lives[0] == lives[1]
    overview = sotto("budget", "--storage", storage.url, "--json").document["runs"]
    assert [one["phase_two_of"] for one in overview] == [first.run_id, None]


LIVES = ("privacy.lifetime_budget=30.0", OS, *WHOLE, *QUICK, *FIXED)


def test_a_lifetime_is_over_all_runs_of_the_same_client_whose_records_agree(
    sotto, storage, monkeypatch
):
    first = storage.run(*LIVES, "rounds=1").run_id
    second = crashed_at(storage, monkeypatch, 1, *LIVES)
    document = budget_of(sotto, storage, second)
    spent = gaussian_epsilon(4.0, 2)
    assert document["target_epsilon"] is None and document["lifetime_budget"] == 30.0
    fitting = rounds_that_fit(4.0, 2, 30.0)
    for one in document["clients"]:
        assert one["spent"] == pytest.approx(gaussian_epsilon(4.0, 1), rel=1e-6)
        assert one["lifetime"]["spent"] == pytest.approx(spent, rel=1e-6)
        assert one["lifetime"]["left"] == pytest.approx(30.0 - spent, rel=1e-5)
        assert one["lifetime"]["runs"] == sorted([first, second])
        assert one["rounds_left"] == fitting
    assert document["forecast"] == {"rounds_to_come": 2, "rounds_left": fitting}
    name = document["clients"][2]["pseudonym"]
    answer = sotto("budget", "--client", name, "--storage", storage.url, "--json").document
    assert [run["run_id"] for run in answer["runs"]] == [second, first]
    overview = sotto("budget", "--storage", storage.url, "--json").document
    for one in (*answer["runs"], *overview["runs"]):
        assert one["epsilon"]["server"] == pytest.approx(gaussian_epsilon(4.0, 1), rel=1e-6)
    assert answer["lifetime"] == document["clients"][2]["lifetime"]
    only = budget_of(sotto, storage, second, "--client", name)
    assert only["clients"] == [document["clients"][2]]
    execute_past(
        storage.file,
        f"UPDATE ledger SET standard_deviation = 99.0 WHERE run_id = '{first}'",  # noqa: S608
    )
    answer = sotto("budget", second, "--storage", storage.url)
    assert (answer.code, answer.out) == (1, "") and f"run {first}: " in answer.err


def test_a_run_whose_records_disagree_has_no_number_and_hides_no_other(sotto, own_copy):
    good = own_copy.storage.run(NONE, *QUICK, "rounds=1").run_id
    changed = f"UPDATE ledger SET standard_deviation = 99.0 WHERE run_id = '{own_copy.run_id}'"  # noqa: S608
    execute_past(own_copy.storage.file, changed)
    place = ("--storage", own_copy.storage.url)
    answer = sotto("budget", own_copy.run_id, *place)
    assert (answer.code, answer.out) == (1, "") and own_copy.run_id in answer.err
    answer = sotto("budget", *place, "--json")
    assert answer.code == 1 and own_copy.run_id in answer.err
    fine, bad = json.loads(answer.out)["runs"]
    assert (fine["run_id"], fine["problem"]) == (good, None)
    assert bad.keys() == {"run_id", "status", "problem"} and bad["run_id"] == own_copy.run_id


NOISED = (
    *("privacy.mechanism=upload_noise", "privacy.clipping_norm=0.1", *FIXED),
    "secure_aggregation={enabled: false}",
)


def test_a_client_that_is_gone_keeps_what_it_spent_and_has_no_rounds_left(sotto, client, folder):
    target = ("privacy.noise_multiplier=null", "privacy.target_epsilon=8.0")
    limits = {**OPEN, "delta": 1e-5}
    holders = Holders.written(folder, of={name: {"limits": limits} for name in NAMES})
    storage, handlers, calls = Storage(folder), holders.handlers(), iter(range(1_000))

    def dying(message: bytes) -> bytes:
        """The coordinator dies at the fourth message to this holder."""
        if next(calls) == 3:
            raise Crash
        return handlers["west"](message)

    with pytest.raises(Crash):
        hold(federation(folder, *NOISED, *target), within({**handlers, "west": dying}))
    before = budget_of(sotto, storage)
    assert [one["takes_part"] for one in before["clients"]] == [True] * 4
    own = client("budget", str(folder / "north" / "client.yaml"), "--json").document
    assert own["total"]["epsilon"] == before["clients"][1]["spent"]
    told = shown(sotto, storage, "latest", "--all")
    assert re.search(r"\bnorth\b", told) is None and "(client 2)" in told
    removed = sotto("federation", "remove", "latest", "north", "--storage", storage.url)
    assert (removed.code, removed.err) == (0, "")
    after = budget_of(sotto, storage)
    assert [one["takes_part"] for one in after["clients"]] == [True, False, True, True]
    north = after["clients"][1]
    assert north["spent"] == before["clients"][1]["spent"] > 0.0 and north["rounds_left"] is None
    assert after["forecast"] == before["forecast"] == {"rounds_to_come": 1, "rounds_left": 1}


@pytest.mark.slow
def test_runs_that_nobody_can_price_together_have_no_lifetime_and_say_why(sotto, folder):
    limits = {**OPEN, "relations": ["replace_one", "add_or_remove_one"]}
    holders = Holders.written(folder, of={name: {"limits": limits} for name in NAMES})
    for relation in ("replace_one", "add_or_remove_one"):
        config = federation(folder, *NOISED, "rounds=1", f"privacy.relation={relation}")
        hold(config, within(holders.handlers()))
    storage = Storage(folder)
    document = budget_of(sotto, storage)
    life = document["clients"][0]["lifetime"]
    assert (life["spent"], life["left"], len(life["runs"])) == (None, None, 2)
    assert "mixes the relations" in life["problem"]
    # One run alone has its number all the same: half the sensitivity is twice the noise.
    expected = gaussian_epsilon(8.0, 1)
    assert document["clients"][0]["spent"] == pytest.approx(expected, rel=1e-6)
