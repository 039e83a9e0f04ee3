"""What is stated of a run that did not come to its planned end, held against the exact walk."""

from __future__ import annotations

import math

import pytest

from platform.experiment.finishing import execute
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from tests.privacy._walk import stopped
from tests.trunk._pages import page_of, words
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    Command,
    Crash,
    Finished,
    Storage,
    crash_at,
    gaussian_epsilon,
    opened,
)
from tests.trunk.test_resume import lost

DELTA, NOISE = 1e-5, 4.0
PLAIN = (*NO_POOL, *FIXED, "evaluation.local_twins=false", "cohort.dropout_rate=0")
OVER = 6


@pytest.fixture
def stopped_run(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Six rounds of eight are over, and the seventh is charged."""
    with opened(storage.create(*PLAIN, "rounds=8")) as simulation, monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", OVER + 1)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    return storage


def test_an_unplanned_end_is_stated_by_what_was_planned(
    stopped_run: Storage, sotto: Command
) -> None:
    place = ("--storage", stopped_run.url)
    document = sotto("report", "latest", *place, "--json").document
    claims = [one["epsilon"]["server"] for one in document["rounds"]]
    stopping = document["stopping"]
    counts = (stopping["as_planned"], stopping["attempts"], stopping["planned_attempts"])
    assert counts == (False, OVER + 1, 8)
    planned = stopping["epsilon"]["server"]
    assert planned == pytest.approx(gaussian_epsilon(NOISE, 8), rel=1e-9)
    # Who stops at the first round that shows more than is stated of it, and quotes that.
    assert 3.5 * DELTA < stopped(2 / NOISE, claims, claims) < 5.5 * DELTA
    # The same, quoting what is stated of an unplanned end.
    assert stopped(2 / NOISE, claims, [planned] * OVER) < DELTA
    assert stopped(2 / NOISE, [planned] * OVER, [planned] * OVER) < DELTA
    sentence = f"is at most {planned:.2f}/{planned:.2f}/{planned:.2f}, that of all planned attempts"
    assert any(sentence in text for text in document["warnings"])
    budget = sotto("budget", "latest", *place, "--json").document
    assert budget["stopping"] == stopping
    for command in ("report", "budget"):
        shown = sotto(command, "latest", *place).out
        assert sentence in " ".join(shown.split())
    report = sotto("report", "latest", "--format", "html", *place).out
    assert sentence in words(report) and "post-processing" in report
    page = page_of(stopped_run).get(f"/run?id={stopped_run.only_run()}").text
    assert sentence in words(page)


def test_a_run_that_goes_on_to_its_end_states_one_epsilon(stopped_run: Storage) -> None:
    summary = stopped_run.resume(stopped_run.only_run()).summary
    stopping = summary["stopping"]
    assert stopping["as_planned"] and stopping["attempts"] == 8
    assert stopping["epsilon"] == summary["final"]["epsilon"]
    assert not any("planned attempts" in text for text in summary["warnings"])


def test_more_attempts_than_were_planned_have_no_epsilon_at_an_unplanned_end(
    storage: Storage, sotto: Command
) -> None:
    """Nothing limits the attempts here, so no number of them was fixed beforehand."""
    run_id = lost(storage, 2, *PLAIN)
    summary = storage.resume(run_id).summary
    assert summary["final"]["epsilon"]["server"] == pytest.approx(gaussian_epsilon(NOISE, 4))
    stopping = summary["stopping"]
    assert (stopping["attempts"], stopping["planned_attempts"]) == (4, 3)
    assert not stopping["as_planned"] and stopping["epsilon"] is None
    assert any(text.startswith("4 attempts were charged") for text in summary["warnings"])
    assert sotto("report", run_id, "--storage", storage.url, "--json").document == summary


def test_a_summary_that_states_another_planned_epsilon_is_refused(
    stopped_run: Storage, sotto: Command
) -> None:
    run = stopped_run.resume(stopped_run.only_run())
    file = run.folder / "summary.json"
    number = f"{run.summary['stopping']['epsilon']['server']!r}"
    text = file.read_text()
    place = text.index('"stopping"')
    file.write_text(text[:place] + text[place:].replace(number, "0.1", 1))
    answer = sotto("report", run.run_id, "--storage", stopped_run.url)
    assert answer.code == 1 and "stopping.epsilon" in answer.err


def test_spare_attempts_are_part_of_the_plan(storage: Storage) -> None:
    """That none was needed was not known beforehand."""
    run: Finished = storage.run("privacy.spare_attempts=1", "cohort.dropout_rate=0")
    stopping, final = run.summary["stopping"], run.summary["final"]["epsilon"]["server"]
    assert (stopping["attempts"], stopping["planned_attempts"]) == (3, 4)
    assert stopping["epsilon"]["server"] == pytest.approx(8.0, rel=1e-6) and final < 8.0
    assert math.isclose(final, gaussian_epsilon(run.noise_multiplier, 3), rel_tol=1e-6)
