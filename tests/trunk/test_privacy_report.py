"""The privacy budget report as a value: its fields, and numbers held against formulas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from platform.disk.log_files import heads_file, key_file
from platform.results.report.blocks import Facts, Figure, Table, epsilon_text, of_a_hundred, text_of
from platform.results.report.document import bases_of
from platform.results.report.rendering import html_page, plain_data
from tests.trunk._federations import NAMES, Holders, federation, hold, within
from tests.trunk._reports import answers, figures, report_of, report_on, section, sentences, text
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    NONE,
    OS,
    RECORDS,
    Command,
    Finished,
    Storage,
    gaussian_epsilon,
)
from tests.trunk._schemas import require_published
from tests.trunk._tampering import execute, execute_and_rehash

HONEST = (OS, "rounds=2")
"""Noise from the operating system, so that something is proven."""
SHARED = (
    *("privacy.mechanism=distributed_noise", "secure_aggregation.corrupt=1"),
    *(*NO_POOL, *FIXED),
)
# Every section that the document must hold, and a word by which a reader finds its field.
FIELDS = {
    "unit": ("one client with all of its data", "replace_one"),
    "odds": ("of 100 guesses",),
    "budget": ("Of the run, against server", "Left of the run's limit", "lifetime"),
    "releases": ("approximate differential privacy",),
    "trust": ("If the server lies", "However many clients lie"),
    "limits": ("Sizes:", "Participation:", "Timing:", "Tuning:", "Selection:", "linkable"),
    "composition": ("composed", "post-processing"),
    "construction": ("Law of the noise", "Randomness of", "Floating point", "Timing"),
    "use": ("Worst client", "Gain over each", "Worth of sharing"),
    "data": ("Data set", "Security at rest", "Kept for good"),
    "empirical": ("No audit",),
    "log": ("Head of the run's log", "Heads signed by: sotto/", "torch"),
    "hazards": ("Epsilon is too large", "NIST SP 800-226"),
    "evidence": ("The number in brackets",),
}


@pytest.fixture(scope="module")
def honest_run(make_storage) -> Finished:
    """Noise on the client from the operating system, in two rounds, one client lost in each."""
    return make_storage("honest").run(*HONEST)


def test_the_document_holds_every_field_that_is_asked_of_it(honest_run: Finished) -> None:
    report = report_of(honest_run)
    for anchor, fields in FIELDS.items():
        said = "\n".join(sentences(section(report, anchor)))
        for words in fields:
            assert words in said, anchor
    assert [one.anchor for one in report.sections][:2] == ["unit", "odds"]


def test_the_odds_are_worked_out_from_the_ledger_alone_and_rounded_up(honest_run: Finished) -> None:
    z = honest_run.noise_multiplier
    # The best test between two normal laws at a distance of mu errs with Phi(-mu / 2).
    expected = 100 * NormalDist().cdf(2 * math.sqrt(2) / z / 2)
    for _, figure in report_of(honest_run).odds:
        assert figure is not None
        assert figure.value == pytest.approx(expected, rel=1e-9)
        # One decimal, never less than the truth.
        assert float(figure.text) >= expected > float(figure.text) - 0.1
    # A share reads 100 only where nothing is left.
    shares = {0.5: "50", 0.73110000001: "73.2", 0.99996: "99.996", 1.0 - 1e-16: "100"}
    assert {share: of_a_hundred(share) for share in shares} == shares
    epsilons = {7.9999978: "8.00", 0.0: "0.00", 226.2: "227", math.inf: "infinite"}
    assert {value: epsilon_text(value) for value in epsilons} == epsilons


def test_without_noise_nothing_is_proven_and_all_guesses_may_be_right(plain_run: Finished) -> None:
    report = report_of(plain_run)
    said = list(sentences(section(report, "odds")))
    for whom in ("the server", "peers", "an observer"):
        (line,) = [one for one in said if one.startswith(f"Against {whom}:")]
        assert "nothing is proven" in line and "all 100 may be right" in line
    assert "no finite epsilon" in "\n".join(sentences(section(report, "unit")))
    assert all(figure.value == 100.0 for _, figure in report.odds if figure is not None)


def test_seeded_noise_is_said_to_protect_nobody_in_the_sentence_itself(noised_run):
    report = report_of(noised_run)
    said = [s for s in sentences(section(report, "odds")) if s.startswith("Against ")]
    assert len(said) == 3 and all("nobody is protected" in line for line in said)
    assert not any("at most 99.97 are with it" in line for line in said)
    for hazard in ("Models memorise", "The trust that is assumed does not hold"):
        assert answers(report)[hazard][0] == "hazard"


def epsilon_of(report: Any) -> Figure:
    """Epsilon against the server, in the table of odds."""
    (table,) = [b for b in section(report, "odds").blocks if isinstance(b, Table)]
    found = table.rows[0][2][0]
    assert isinstance(found, Figure)
    return found


def test_epsilons_are_those_of_the_run_and_of_the_formula(honest_run: Finished) -> None:
    report, z = report_of(honest_run), honest_run.noise_multiplier
    (facts,) = [b for b in section(report, "budget").blocks if isinstance(b, Facts)]
    rows = dict(facts.rows)
    for name in ("server", "peers", "observer"):
        (figure,) = [p for p in rows[f"Of the run, against {name}"] if isinstance(p, Figure)]
        assert figure.value == pytest.approx(gaussian_epsilon(z, 2), rel=1e-6)
        assert figure.value == honest_run.summary["final"]["epsilon"][name]
    left = rows["Left of the run's limit"][0]
    assert isinstance(left, Figure)
    assert left.value == pytest.approx(8.0 - gaussian_epsilon(z, 2), abs=1e-5)
    (table,) = [b for b in section(report, "releases").blocks if isinstance(b, Table)]
    ((*_, alone),) = table.rows
    (figure,) = [piece for piece in alone if isinstance(piece, Figure)]
    assert figure.value == pytest.approx(gaussian_epsilon(z, 1), rel=1e-6)
    # mu of two releases under replace_one is 2 sqrt(2) / z.
    assert f"mu = {2 * math.sqrt(2) / z:.6g}" in text(report)


def test_every_number_names_ledger_rows_or_entries_that_are_there(honest_run: Finished) -> None:
    report = report_of(honest_run)
    rows = honest_run.storage.rows
    stored = set(rows("SELECT run_id, round_number, attempt, channel FROM ledger"))
    names = {name for (name,) in rows("SELECT DISTINCT pseudonym FROM ledger")}
    ((last,),) = rows("SELECT max(sequence) FROM audit")
    found = figures(report)
    assert len(found) > 20
    for figure in found:
        basis = figure.basis
        assert basis.places or basis.entries or basis.what.startswith("all leaves of the log")
        assert {(basis.run_id, *place) for place in basis.places} <= stored
        assert set(basis.pseudonyms or ()) <= names
        assert all(1 <= entry <= last for entry in basis.entries)
    assert report.bases == bases_of(report.sections[:-1])
    # A number of one client rests on exactly its rows.
    basis = epsilon_of(report).basis
    query = "SELECT round_number, attempt, channel FROM ledger WHERE pseudonym = ?"
    found = rows(query, *basis.pseudonyms)
    assert sorted(basis.places) == sorted(found) and len(found) == 2


def test_shares_of_noise_are_priced_again_for_more_colluding_clients(storage: Storage) -> None:
    shared_run = storage.run(*SHARED, *HONEST)
    report = report_of(shared_run)
    (table,) = [b for b in section(report, "trust").blocks if isinstance(b, Table)]
    rows = {text_of(row[0]): row[1][0] for row in table.rows}
    planned = rows["1 (as planned)"]
    assert isinstance(planned, Figure)
    assert planned.value == shared_run.summary["final"]["epsilon"]["server"]
    # Of at least 3 clients 1 was planned to collude, so 2 shares; of 2 colluding 1 is left, and the
    # noise is smaller by sqrt(2). From the threshold on, which is 3, nothing is claimed.
    weakened = rows["2"]
    assert isinstance(weakened, Figure) and isinstance(weakened.value, float)
    assert planned.value < weakened.value
    expected = shares_epsilon(shared_run, deviations=1 / math.sqrt(2))
    assert weakened.value == pytest.approx(expected, rel=2e-3)
    nothing = rows["3"]
    assert isinstance(nothing, Figure) and nothing.value == "inf"


def shares_epsilon(run: Finished, *, deviations: float) -> float:
    """By the Gaussian's Renyi divergences, orders 2 to 200, of as many rounds, without rounding."""
    query = "SELECT DISTINCT standard_deviation, clipping_norm FROM ledger"
    ((deviation, norm),) = run.storage.rows(query)
    rho = 2 * (2 * norm / (deviation * deviations)) ** 2 / 2
    best = math.inf
    for tenth in range(11, 4000):
        order = tenth / 10
        conversion = math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
        best = min(best, order * rho + conversion)
    return best


def test_the_report_of_a_run_that_has_not_finished_says_so(storage: Storage) -> None:
    storage.create(*HONEST).database.close()
    report = report_on(storage, storage.only_run())
    assert any("has not finished" in warning for warning in report.warnings)
    assert dict(report.odds)["server"].value == 50.0
    assert "No release of any client is in the ledger." in text(report)


def an_audit(run: Finished, **changed: Any) -> list[dict[str, Any]]:
    """As `audit-privacy --json` prints it of one release of the run under replace_one."""
    z = run.noise_multiplier
    seen = {
        "channel": "sum",
        "mechanism": "upload_noise",
        "unit": "client",
        "array": None,
        "claimed_mu": 2.0 / z,
        "estimated_mu": 1.9 / z,
        "mu_interval": [0.0, "inf"],
        "claimed_epsilon": gaussian_epsilon(z, 1),
        "epsilon_lower_bound_95": 0.3179,
        "delta": 1e-5,
        "clip_respected": None,
        "canaries": 1000,
        "power": 0.875,
        "is_tight": True,
        "passed": True,
        "reasons": [],
    }
    passed = {"mechanism": "upload_noise", "passed": True, "reasons": []}
    return [
        {**seen, **changed},
        {**passed, "channel": "offers", "offers": 45, "accepted": 37, "split": 0},
        {**passed, "channel": "folders", "folders": 4},
        {**passed, "channel": "failures", "rounds": 8, "failed": 2, "split": 0},
        {**passed, "channel": "peers", "rounds": 6, "lost": 0},
    ]


def reported(sotto: Command, run: Finished, folder: Path, found: str) -> Any:
    """What the command says of the run to somebody who has this audit's file."""
    file, place = folder / "audit.json", ("--storage", run.storage.url)
    file.write_text(found)
    return sotto("report", run.run_id, *place, "--format", "json", "--audit", str(file))


def test_a_refuted_claim_is_the_first_warning(sotto, honest_run, tmp_path):
    found = an_audit(honest_run)
    found[1] |= {"passed": False, "reasons": ["it is"]}
    document = reported(sotto, honest_run, tmp_path, json.dumps(found)).document
    assert document["warnings"][0].startswith("an audit has refuted the claim on channel sum")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mechanism": "dp_sgd"}, "mechanism is 'dp_sgd'"),
        ({"unit": "record"}, "unit is 'record'"),
        ({"claimed_epsilon": gaussian_epsilon(99.0, 1)}, "no release of"),
    ],
)
def test_an_audit_of_another_claim_is_refused(sotto, honest_run, tmp_path, changed, said):
    found = json.dumps(an_audit(honest_run, **changed))
    answer = reported(sotto, honest_run, tmp_path, found)
    assert (answer.code, answer.out) == (2, "") and answer.err.count("\n") == 1
    assert "of another claim" in answer.err and said in answer.err


@pytest.mark.slow
def test_what_the_command_prints_is_what_is_read(sotto, honest_run, tmp_path):
    config = honest_run.folder / "config.yaml"
    made = sotto("audit-privacy", str(config), "--canaries", "100", "--json")
    assert made.code == 0, made.err
    channels = ["sum", "pool", "offers", "folders", "failures", "peers"]
    assert [one["channel"] for one in made.document] == channels
    assert all(one["passed"] for one in made.document)
    answer = reported(sotto, honest_run, tmp_path, made.out)
    assert (answer.code, answer.err) == (0, "")


def test_the_client_that_has_spent_most_is_the_one_that_is_stated(storage: Storage) -> None:
    """Of five clients two or three are drawn, known to the server, so some release more often."""
    clear = "secure_aggregation={enabled: false}"
    run = storage.run(*HONEST, *NO_POOL, *FIXED, "rounds=3", "cohort={size: 2, minimum: 2}", clear)
    rows = storage.rows("SELECT pseudonym, count(*) FROM ledger GROUP BY pseudonym")
    most = max(count for _, count in rows)
    assert min(count for _, count in rows) < most or len(rows) < 5
    report = report_of(run)
    basis = epsilon_of(report).basis
    (client,) = basis.pseudonyms
    assert dict(rows)[client] == most == len(basis.places)
    found = [one for one in figures(report) if one.basis == basis]
    figure = next(one for one in found if one.text == epsilon_text(one.value))
    assert figure.value == pytest.approx(gaussian_epsilon(4.0, most), rel=1e-6)


NOISED = (
    *("privacy.mechanism=upload_noise", "privacy.clipping_norm=0.1", *FIXED, "rounds=1"),
    "secure_aggregation={enabled: false}",
)


def test_a_federations_report_names_nobody_and_guesses_no_accuracy(tmp_path: Path) -> None:
    folder = tmp_path / "fed"
    folder.mkdir()
    holders = Holders.written(folder)
    run_id = hold(federation(folder, *NOISED), within(holders.handlers()))["run_id"]
    report = report_on(Storage(folder), run_id)
    require_published("privacy-report", json.loads(json.dumps(plain_data(report), allow_nan=False)))
    said = text(report) + html_page(report)
    assert not [name for name in NAMES if re.search(rf"\b{name}\b", said)]
    assert "known to the clients only" in said and "exact accuracies" not in said


ONE_ROUND = "rounds=1"
LARGE = "Epsilon is too large to mean much"
UNIT = "The unit does not cover what people fear, or is no person"
ELSEWHERE = "The same data are released elsewhere without noise"
BUILT = "Randomness, floating point, side channels"
MADE_UP = "The records themselves are made up"

UNSIGNED = "no head of"

# The run's overrides, the first words of its warnings, and which hazard each is.
MANY = (
    *("privacy.noise_distribution=gaussian", "privacy.target_epsilon=25.0"),
    *("privacy.target_delta=0.3", "secure_aggregation={enabled: false}"),
)
CHOSEN = (
    *(NONE, "evaluation.selection=best_on_validation", "task.validation_share=0.5"),
    *("task.shots=4", "rounds=2"),
)
INJECTED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "seeded noise, a large epsilon and delta, no masks": (
        MANY,
        {
            "noise_source seeded": BUILT,
            "upload_noise draws floating-point": BUILT,
            "delta 0.3 is above": "Delta leaves room for a complete failure",
            "against server, is 25.00": LARGE,
            "secure aggregation is off": "",
        },
    ),
    "no noise, and a round chosen by exact accuracies": (
        CHOSEN,
        {
            "mechanism none": LARGE,
            "a round was chosen": ELSEWHERE,
            "against server, peers, observer": "What one unit contributes is not bounded",
        },
    ),
    "the unit is an event": ((OS, *RECORDS, *NO_POOL), {"unit is one record": UNIT}),
    "a trusted coordinator": (
        (OS, "privacy.mechanism=central_noise", *NO_POOL, *FIXED),
        {"against server epsilon": "The trust that is assumed does not hold"},
    ),
}


@pytest.fixture(scope="module")
def careful_run(make_storage: Callable[[str], Storage]) -> Finished:
    """As much is done right as a simulation can do right."""
    precise = "privacy.noise_distribution=discrete_gaussian"
    return make_storage("careful").run(ONE_ROUND, OS, precise)


@pytest.mark.slow
@pytest.mark.parametrize("name", INJECTED)
def test_a_hazard_is_among_the_warnings_and_in_a_careful_run_is_not(storage, careful_run, name):
    overrides, hazards = INJECTED[name]
    report, careful = report_of(storage.run(ONE_ROUND, *overrides)), report_of(careful_run)
    for warning, hazard in hazards.items():
        assert any(warning in text for text in report.warnings), report.warnings
        assert not any(warning in text for text in careful.warnings)
        assert not hazard or answers(report)[hazard][0] == "hazard"
        if hazard not in ("", ELSEWHERE):
            assert answers(careful)[hazard][0] != "hazard"


def test_hazards_of_every_simulation_and_unsigned_heads_are_warned_of(honest_run, own_copy):
    report = report_of(honest_run)
    for words in ("holds exact accuracies", "entries are linkable"):
        assert any(words in text for text in report.warnings)
    assert answers(report)[ELSEWHERE][0] == "hazard"

    assert not any(text.startswith(UNSIGNED) for text in report.warnings)
    assert answers(report)[MADE_UP][0] == "open"
    key, heads = (find(own_copy.storage.file) for find in (key_file, heads_file))
    key.unlink()
    for _ in range(2):
        report = report_of(own_copy)
        assert any(text.startswith(UNSIGNED) for text in report.warnings)
        assert answers(report)[MADE_UP][0] == "hazard"
        # Neither does it help that no head is there at all.
        heads.unlink(missing_ok=True)


def flip_a_signature(run: Finished) -> None:
    path = heads_file(run.storage.file)
    text = path.read_text()
    place = text.rindex("\\n") - 8
    path.write_text(text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :])


LEAF = "UPDATE leaves SET hash = zeroblob(32) WHERE position = 3"
REHASHED = """UPDATE audit SET detail = replace(detail, 'replace_one', 'add_or_remove_one')
WHERE action = 'release.reserved'"""
CLAIM = "UPDATE ledger SET standard_deviation = standard_deviation * 2"
SPOILT: dict[str, tuple[Callable[[Finished], object], int]] = {
    "half of the claim": (lambda run: execute(run.storage.file, CLAIM), 1),
    "rewritten with new hashes": (lambda run: execute_and_rehash(run.storage.file, REHASHED), 1),
    "without heads": (lambda run: heads_file(run.storage.file).unlink(), 1),
    "another signature": (flip_a_signature, 1),
    "another leaf": (lambda run: execute(run.storage.file, LEAF), 3),
}


@pytest.mark.parametrize("what", SPOILT)
def test_records_that_do_not_hold_make_no_report(sotto, own_copy, tmp_path, what):
    spoil, code = SPOILT[what]
    spoil(own_copy)
    file, place = tmp_path / "report.html", ("--storage", own_copy.storage.url)
    answer = sotto("report", own_copy.run_id, *place, "--format", "html", "--output", str(file))
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
    assert not file.exists() and list(tmp_path.glob("*.part")) == []
