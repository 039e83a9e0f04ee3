"""The privacy budget report as a value: its fields, and numbers held against formulas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.disk.log_files import heads_file, key_file
from platform.results.report.blocks import (
    Facts,
    Figure,
    Table,
    epsilon_text,
    of_a_hundred,
    text_of,
)
from platform.results.report.document import Report, bases_of
from platform.results.report.rendering import html_page, plain_data
from tests.trunk._federations import NAMES, Holders, federation, hold, within
from tests.trunk._reports import (
    answers,
    figures,
    read_page,
    report_of,
    report_on,
    section,
    sentences,
    text,
)
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

QUICK = ("evaluation.local_twins=false", "rounds=2")
HONEST = (OS, *QUICK)
"""Noise from the operating system, so that something is proven."""
SHARED = (
    *("privacy.mechanism=distributed_noise", "secure_aggregation.corrupt=1"),
    *("privacy.target_epsilon=null", "privacy.noise_multiplier=4.0"),
    *NO_POOL,
)
SECRET = (
    *("privacy.mechanism=central_noise", "secure_aggregation={enabled: false}"),
    "cohort={sampling: poisson, size: 3, minimum: 1, retries: 0, dropout_rate: 0.0}",
    *(*NO_POOL, *FIXED),
)

# Every section that the document must hold, and a word by which a reader finds its field.
FIELDS = {
    "unit": ("one client with all of its data", "replace_one"),
    "odds": ("of 100 guesses",),
    "budget": ("Of the run, against server", "Left of the run's limit", "Over a client's lifetime"),
    "releases": ("approximate differential privacy",),
    "trust": ("If the server lies", "However many clients lie"),
    "limits": ("Sizes:", "Participation:", "Timing:", "Tuning:", "Selection:", "linkable"),
    "composition": ("composed", "post-processing"),
    "construction": ("Law of the noise", "Randomness of the noise", "Floating point", "Timing"),
    "use": ("Worst client", "Gain over each client alone", "Worth of sharing"),
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


@pytest.fixture(scope="module")
def shared_run(make_storage) -> Finished:
    """Shares of noise, of which one may be known."""
    return make_storage("shared").run(*SHARED, *HONEST)


def test_the_document_holds_every_field_that_is_asked_of_it(honest_run: Finished) -> None:
    report = report_of(honest_run)
    for anchor, fields in FIELDS.items():
        said = "\n".join(sentences(section(report, anchor)))
        for words in fields:
            assert words in said, anchor
    assert [one.anchor for one in report.sections][:2] == ["unit", "odds"]


def test_the_odds_are_worked_out_from_the_ledger_alone(honest_run: Finished) -> None:
    z = honest_run.noise_multiplier
    epsilon = gaussian_epsilon(z, 2)
    expected = 100 * (math.exp(epsilon) + 1e-5) / (math.exp(epsilon) + 1)
    for name, figure in report_of(honest_run).odds:
        assert figure is not None and name in ("server", "peers", "observer")
        assert figure.value == pytest.approx(expected, rel=1e-9)
        # Two decimals, never less than the truth.
        assert float(figure.text) >= expected > float(figure.text) - 0.01


def test_shares_and_epsilons_are_rounded_up() -> None:
    """A share reads 100 only where nothing is left."""
    shares = {0.5: "50", 0.73110000001: "73.12", 0.99996: "99.996", 1.0 - 1e-16: "100"}
    assert {share: of_a_hundred(share) for share in shares} == shares
    epsilons = {
        7.9999978: "8.00",
        0.0: "0.00",
        226.2: "227",
        math.inf: "infinite",
        None: "not known",
    }
    assert {value: epsilon_text(value) for value in epsilons} == epsilons


def test_without_noise_nothing_is_proven_and_all_guesses_may_be_right(plain_run: Finished) -> None:
    report = report_of(plain_run)
    said = list(sentences(section(report, "odds")))
    for whom in ("the server", "peers", "an observer"):
        (line,) = [one for one in said if one.startswith(f"Against {whom}:")]
        assert "nothing is proven" in line and "all 100 may be right" in line
    assert "no finite epsilon" in "\n".join(sentences(section(report, "unit")))
    assert all(figure.value == 100.0 for _, figure in report.odds if figure is not None)


def test_seeded_noise_is_said_to_protect_nobody_in_the_sentence_itself(
    noised_run: Finished,
) -> None:
    report = report_of(noised_run)
    said = [s for s in sentences(section(report, "odds")) if s.startswith("Against ")]
    assert len(said) == 3 and all("nobody is protected" in line for line in said)
    assert not any("at most 99.97 are with it" in line for line in said)
    stands = answers(report)
    assert stands["Models memorise"][0] == stands["The trust that is assumed does not hold"][0]
    assert stands["Models memorise"][0] == "hazard"


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
    stored = set(
        honest_run.storage.rows("SELECT run_id, round_number, attempt, channel FROM ledger")
    )
    names = {p for (p,) in honest_run.storage.rows("SELECT DISTINCT pseudonym FROM ledger")}
    ((last,),) = honest_run.storage.rows("SELECT max(sequence) FROM audit")
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
    basis = dict(report.odds)["server"].basis
    (client,) = basis.pseudonyms
    query = "SELECT round_number, attempt, channel FROM ledger WHERE pseudonym = ?"
    rows = honest_run.storage.rows(query, client)
    assert sorted(basis.places) == sorted(rows) and len(rows) == 2


def test_shares_of_noise_are_priced_again_for_more_colluding_clients(shared_run: Finished) -> None:
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
    assert weakened.value == pytest.approx(
        shares_epsilon(shared_run, deviations=1 / math.sqrt(2)), rel=2e-3
    )
    nothing = rows["3"]
    assert isinstance(nothing, Figure) and nothing.value == "inf"


def shares_epsilon(run: Finished, *, deviations: float) -> float:
    """By the Gaussian's Renyi divergences, orders 2 to 200, of as many rounds, without rounding."""
    ((deviation, norm),) = set(
        run.storage.rows("SELECT standard_deviation, clipping_norm FROM ledger")
    )
    rho = 2 * (2 * norm / (deviation * deviations)) ** 2 / 2
    best = math.inf
    for tenth in range(11, 4000):
        order = tenth / 10
        conversion = math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
        best = min(best, order * rho + conversion)
    return best


def test_secret_draws_are_not_told_by_the_report(storage: Storage) -> None:
    run = storage.run(*SECRET, *HONEST)
    said = text(report_of(run))
    names = [name for (name,) in storage.rows("SELECT DISTINCT pseudonym FROM ledger")]
    states = storage.rows("SELECT cohort_drawn, status, count(*) FROM ledger GROUP BY 1, 2")
    assert len(names) == 5 and states == [(1, "released", 10)]
    # Whoever was drawn, all clients stand alike.
    blocks = [b for b in section(report_of(run), "budget").blocks if isinstance(b, Table)]
    (clients,) = [block for block in blocks if block.columns[0] == "Clients"]
    assert len(clients.rows) == 1 and "(withheld)" not in said
    assert "who was drawn is the coordinator's secret" in said


def test_the_report_of_a_run_that_has_not_finished_says_so(storage: Storage) -> None:
    with_simulation = storage.create(*HONEST)
    run_id = with_simulation.run_id
    with_simulation.database.close()
    report = report_on(storage, run_id)
    assert any("has not finished" in warning for warning in report.warnings)
    assert dict(report.odds)["server"].value == 50.0
    assert "No release of any client is in the ledger." in text(report)


# --- what an audit saw ----------------------------------------------------------------------------


ONCE = ("evaluation.local_twins=false", "rounds=1", OS)
NOISE = 4.0
NOISY = ("privacy.target_epsilon=null", f"privacy.noise_multiplier={NOISE}")

Channels = list[dict[str, Any]]


@pytest.fixture(scope="module")
def noisy_run(make_storage: Callable[[str], Storage]) -> Finished:
    return make_storage("audited").run(*ONCE, *NOISY)


def an_audit(**changed: Any) -> Channels:
    """As `audit-privacy --json` prints it of one release at noise 4 under replace_one."""
    seen = {
        "channel": "sum",
        "mechanism": "upload_noise",
        "unit": "client",
        "claimed_mu": 0.5,
        "estimated_mu": 0.48,
        "mu_interval": [0.0, "inf"],
        "epsilon_lower_bound_95": 0.3179,
        "claimed_epsilon": gaussian_epsilon(NOISE, 1),
        "delta": 1e-5,
        "clip_respected": None,
        "canaries": 1000,
        "power": 0.875,
        "is_tight": True,
        "passed": True,
        "reasons": [],
        "array": None,
    }
    passed = {"mechanism": "upload_noise", "passed": True, "reasons": []}
    return [
        {**seen, **changed},
        {**passed, "channel": "offers", "offers": 45, "accepted": 37, "split": 0},
        {**passed, "channel": "folders", "folders": 4},
        {**passed, "channel": "failures", "rounds": 8, "failed": 2, "split": 0},
        {**passed, "channel": "peers", "rounds": 6, "lost": 0},
    ]


def reported(sotto: Command, noisy_run: Finished, file: Path) -> Any:
    return sotto(
        *("report", noisy_run.run_id, "--storage", noisy_run.storage.url),
        *("--format", "json", "--audit", str(file)),
    )


def written(folder: Path, found: Any) -> Path:
    file = folder / "audit.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    return file


def test_a_refuted_claim_is_the_first_warning(
    sotto: Command, noisy_run: Finished, tmp_path: Path
) -> None:
    found = an_audit()
    found[1] |= {"passed": False, "reasons": ["it is"]}
    document = reported(sotto, noisy_run, written(tmp_path, found)).document
    assert document["warnings"][0].startswith("an audit has refuted the claim on channel sum")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mechanism": "dp_sgd"}, "mechanism is 'dp_sgd' there"),
        ({"unit": "record"}, "unit is 'record' there"),
        # As much noise again: an audit of another run.
        ({"claimed_epsilon": gaussian_epsilon(2 * NOISE, 1)}, "no release of the run does"),
    ],
)
def test_an_audit_of_another_claim_is_refused(
    sotto: Command, noisy_run: Finished, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    answer = reported(sotto, noisy_run, written(tmp_path, an_audit(**changed)))
    assert (answer.code, answer.out) == (2, "") and answer.err.count("\n") == 1
    assert "is of another claim" in answer.err and said in answer.err


@pytest.mark.slow
def test_what_the_command_prints_is_what_is_read(
    sotto: Command, noisy_run: Finished, tmp_path: Path
) -> None:
    config = noisy_run.folder / "config.yaml"
    made = sotto("audit-privacy", str(config), "--canaries", "100", "--json")
    assert made.code == 0
    answer = reported(sotto, noisy_run, written(tmp_path, made.out))
    assert (answer.code, answer.err) == (0, "")


# --- whose numbers are stated ---------------------------------------------------------------------


TWICE = ("evaluation.local_twins=false", "rounds=2", OS)


def rendered(report: Report) -> str:
    """All forms but paper, each of which must be well-formed; what it says."""
    read_page(html_page(report))
    require_published("privacy-report", json.loads(json.dumps(plain_data(report), allow_nan=False)))
    assert all(figure.text and figure.basis.what for figure in figures(report))
    return text(report)


def test_the_client_that_has_spent_most_is_the_one_that_is_stated(storage: Storage) -> None:
    """Of five clients two or three are drawn, known to the server, so some release more often."""
    clear = "secure_aggregation={enabled: false}"
    run = storage.run(*TWICE, *NO_POOL, *FIXED, "rounds=3", "cohort={size: 2, minimum: 2}", clear)
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


def test_a_federations_report_names_nobody_and_guesses_no_accuracy(folder: Path) -> None:
    holders = Holders.written(folder)
    run_id = hold(federation(folder, *NOISED), within(holders.handlers()))["run_id"]
    report = report_on(Storage(folder), run_id)
    said = rendered(report)
    assert not [name for name in NAMES if re.search(rf"\b{name}\b", said)]
    assert "known to the clients only" in said and "exact accuracies" not in said
    assert "each a process with data of its own" in said
    assert "Each client keeps another on its own machine" in said
    assert "all runs of this database that the client took part in" in said


# --- hazards that are put into real runs on purpose -----------------------------------------------


ONE_ROUND = ("evaluation.local_twins=false", "rounds=1")
LARGE = "Epsilon is too large to mean much"
DELTA = "Delta leaves room for a complete failure"
UNIT = "The unit does not cover what people fear, or is no person"
ELSEWHERE = "The same data are released elsewhere without noise"
TRUST = "The trust that is assumed does not hold"
BUILT = "Randomness, floating point, side channels"
BOUNDED = "What one unit contributes is not bounded"
MADE_UP = "The records themselves are made up"

CAREFUL = (OS, "privacy.noise_distribution=discrete_gaussian")
# The run's overrides, the first words of its warnings, and which hazard each is.
INJECTED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "seeded noise, a large epsilon and delta, no masks": (
        (
            *("privacy.noise_distribution=gaussian", "privacy.target_epsilon=25.0"),
            *("privacy.target_delta=0.3", "secure_aggregation={enabled: false}"),
        ),
        {
            "noise_source seeded: the noise can be recomputed": BUILT,
            "upload_noise draws floating-point noise": BUILT,
            "delta 0.3 is above 1/clients = 0.2": DELTA,
            "the largest epsilon, against server, is 25.00, above 20": LARGE,
            "secure aggregation is off: the server sees every client's upload": "",
        },
    ),
    "no noise, and a round chosen by exact accuracies": (
        (
            *(NONE, "evaluation.selection=best_on_validation", "task.validation_share=0.5"),
            *("task.shots=4", "rounds=2"),
        ),
        {
            "mechanism none: epsilon is infinite": LARGE,
            "against server, peers, observer epsilon is infinite": BOUNDED,
            "a round was chosen by exact accuracies": ELSEWHERE,
        },
    ),
    "the unit is an event": ((OS, *RECORDS, *NO_POOL), {"the unit is one record": UNIT}),
    "a trusted coordinator": (
        (OS, "privacy.mechanism=central_noise", *NO_POOL, *FIXED),
        {"against server epsilon is infinite: nothing is proven": TRUST},
    ),
}


@pytest.fixture(scope="module")
def careful_run(make_storage: Callable[[str], Storage]) -> Finished:
    """As much is done right as a simulation can do right."""
    return make_storage("careful").run(*ONE_ROUND, *CAREFUL)


@pytest.mark.slow
@pytest.mark.parametrize("name", INJECTED)
def test_a_hazard_in_a_run_is_among_the_warnings_and_in_a_careful_run_is_not(
    storage: Storage, careful_run: Finished, name: str
) -> None:
    overrides, hazards = INJECTED[name]
    report, careful = report_of(storage.run(*ONE_ROUND, *overrides)), report_of(careful_run)
    for warning, hazard in hazards.items():
        assert any(text.startswith(warning) for text in report.warnings), report.warnings
        assert not any(text.startswith(warning) for text in careful.warnings)
        assert not hazard or answers(report)[hazard][0] == "hazard"
        if hazard not in ("", ELSEWHERE):
            assert answers(careful)[hazard][0] != "hazard"


def test_some_hazards_are_in_every_simulation(careful_run: Finished) -> None:
    report = report_of(careful_run)
    for warning in (
        "this document holds exact accuracies of the clients' data",
        "expert pool: against server and peers its entries are linkable",
    ):
        assert any(text.startswith(warning) for text in report.warnings)
    assert answers(report)[ELSEWHERE][0] == "hazard"


def refused(sotto: Command, run: Finished, folder: Path, *, code: int) -> None:
    for form in ("table", "json", "html", "pdf"):
        file = folder / f"report.{form}"
        answer = sotto(
            *("report", run.run_id, "--storage", run.storage.url),
            *("--format", form, "--output", str(file)),
        )
        assert (answer.code, answer.out) == (code, "")
        assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
        assert not file.exists() and list(folder.glob("*.part")) == []


UNSIGNED = "no head of the log is signed by a key that is known"


def test_an_unsigned_head_is_warned_of(careful_run: Finished, own_copy: Finished) -> None:
    assert not any(text.startswith(UNSIGNED) for text in report_of(careful_run).warnings)
    assert answers(report_of(careful_run))[MADE_UP][0] == "open"
    key, heads = (find(own_copy.storage.file) for find in (key_file, heads_file))
    key.unlink()
    for _ in range(2):
        report = report_of(own_copy)
        assert any(text.startswith(UNSIGNED) for text in report.warnings)
        assert answers(report)[MADE_UP][0] == "hazard"
        # Neither does it help that no head is there at all.
        heads.unlink(missing_ok=True)


def drop_heads(run: Finished) -> None:
    heads_file(run.storage.file).unlink()


def flip_a_signature(run: Finished) -> None:
    path = heads_file(run.storage.file)
    text = path.read_text()
    place = text.rindex("\\n") - 8
    path.write_text(text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :])


def change_a_leaf(run: Finished) -> None:
    execute(run.storage.file, "UPDATE leaves SET hash = zeroblob(32) WHERE position = 3")


def halve_the_claim(run: Finished) -> None:
    execute(run.storage.file, "UPDATE ledger SET standard_deviation = standard_deviation * 2")


def rewrite_with_new_hashes(run: Finished) -> None:
    execute_and_rehash(
        run.storage.file,
        """UPDATE audit SET detail = replace(detail, 'replace_one', 'add_or_remove_one')
        WHERE action = 'release.reserved'""",
    )


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        *((halve_the_claim, 1), (rewrite_with_new_hashes, 1)),
        *((drop_heads, 1), (flip_a_signature, 1), (change_a_leaf, 3)),
    ],
)
def test_records_that_do_not_hold_make_no_report(
    sotto: Command,
    own_copy: Finished,
    tmp_path: Path,
    *,
    spoil: Callable[[Finished], None],
    code: int,
) -> None:
    spoil(own_copy)
    refused(sotto, own_copy, tmp_path / "reports", code=code)
