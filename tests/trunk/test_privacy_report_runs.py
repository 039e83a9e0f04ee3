"""Runs of every kind have a report, each in all forms, and each tells what is particular to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from platform.reports import Report
from platform.reports.blocks import epsilon_text
from platform.reports.rendering import html_page, plain_data
from tests.trunk._federations import NAMES, Holders, federation, hold, within
from tests.trunk._reports import figures, read_page, report_of, report_on, text
from tests.trunk._runs import (
    ADAPTIVE,
    FIXED,
    NO_POOL,
    OS,
    RECORDS,
    Command,
    Finished,
    Storage,
    gaussian_epsilon,
)
from tests.trunk._schemas import require_published
from tests.trunk.test_resume import lost
from tests.trunk.test_second_phase import FIRST, follow

OFF = "secure_aggregation={enabled: false}"
QUICK = ("evaluation.local_twins=false", "rounds=2", OS)
SHARED = ("privacy.mechanism=distributed_noise", "secure_aggregation.corrupt=1", *FIXED)

# The run's overrides, and what its report has to say beside all others'.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "records": (
        (*RECORDS, *NO_POOL, "training.local_steps=2"),
        ("poisson batches, probability 0.5", "each record's gradient to 0.5", "noised steps"),
    ),
    "adaptive": (
        (*ADAPTIVE, "pool.noise=independent"),
        ("then following a noised quantile", "pool entry | 1 to 2", "into the sum | 1 to 2"),
    ),
    "private-experts": (
        (*NO_POOL, *SHARED, "pool={kind: groups, experts: 2}"),
        ("private experts: each client picked one of 2", "of 2 honest shares"),
    ),
}


def rendered(report: Report) -> str:
    """All forms but paper, each of which must be well-formed; what it says."""
    read_page(html_page(report))
    require_published("privacy-report", json.loads(json.dumps(plain_data(report), allow_nan=False)))
    assert all(figure.text and figure.basis.what for figure in figures(report))
    return text(report)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_of_every_kind_has_a_report(storage: Storage, name: str) -> None:
    overrides, words = KINDS[name]
    run = storage.run(*QUICK, *overrides)
    said = rendered(report_of(run))
    for one in words:
        assert one in said
    spent = run.summary["final"]["epsilon"]
    for adversary, figure in report_of(run).odds:
        assert figure is not None
        assert (figure.value == 100.0) >= (spent[adversary] == "inf")


def test_a_pool_that_is_made_once_and_its_second_phase(
    make_storage: Callable[[str], Storage],
) -> None:
    first = make_storage("first").gathering().run(*FIRST, OS)
    said = rendered(report_of(first))
    assert "3 (collection)" in said and "pool entry | 3" in said
    second = follow(first.storage, first)
    report = report_of(second)
    assert f"This is the second phase of run {first.run_id}" in rendered(report)
    (basis,) = {figure.basis for _, figure in report.odds if figure is not None}
    assert basis.run_id == first.run_id and basis.places
    assert [f.value for _, f in report.odds] == [f.value for _, f in report_of(first).odds]


def test_attempts_that_were_lost_stay_charged_and_are_priced(storage: Storage) -> None:
    run_id = lost(storage, 2, "evaluation.local_twins=false")
    report = report_on(storage, run_id)
    said = rendered(report)
    assert "round 2, attempt 1 | aborted" in said
    assert any("has not finished" in text_ for text_ in report.warnings)
    resumed: Finished = storage.resume(run_id)
    again = rendered(report_of(resumed))
    assert "round 2, attempt 1 | aborted" in again
    assert any("stay charged" in text_ for text_ in report_of(resumed).warnings)


def test_the_client_that_has_spent_most_is_the_one_that_is_stated(storage: Storage) -> None:
    """Of five clients two or three are drawn, known to the server, so some release more often."""
    run = storage.run(*QUICK, *NO_POOL, *FIXED, "rounds=3", "cohort={size: 2, minimum: 2}", OFF)
    rows = storage.rows("SELECT pseudonym, count(*) FROM ledger GROUP BY pseudonym")
    most = max(count for _, count in rows)
    assert min(count for _, count in rows) < most or len(rows) < 5
    report = report_of(run)
    basis = dict(report.odds)["server"].basis
    (client,) = basis.pseudonyms
    assert dict(rows)[client] == most == len(basis.places)
    found = [one for one in figures(report) if one.basis == basis]
    figure = next(one for one in found if one.text == epsilon_text(one.value))
    assert figure.value == pytest.approx(gaussian_epsilon(4.0, most), rel=1e-6)


# --- federations ---------------------------------------------------------------------------------

NOISED = (
    *("privacy.mechanism=upload_noise", "privacy.clipping_norm=0.1", *FIXED),
    "secure_aggregation={enabled: false}",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "fed"
    found.mkdir()
    return found


def test_a_federations_report_names_nobody_and_guesses_no_accuracy(
    sotto: Command, folder: Path
) -> None:
    holders = Holders.written(folder)
    run_id = hold(federation(folder, *NOISED), within(holders.handlers()))["run_id"]
    report = report_on(Storage(folder), run_id)
    said = rendered(report)
    assert not [name for name in NAMES if re.search(rf"\b{name}\b", said)]
    assert "known to the clients only" in said and "exact accuracies" not in said
    assert "each a process with data of its own" in said
    assert "Each client keeps another on its own machine" in said
    assert "all runs of this database that the client took part in" in said
