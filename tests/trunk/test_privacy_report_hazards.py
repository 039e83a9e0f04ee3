"""Hazards that are put into real runs on purpose: each is warned of, or there is no report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.disk.log_files import heads_file, key_file
from platform.errors import ConfigError
from platform.reports.hazards import HAZARDS
from tests.trunk._reports import answers, report_of
from tests.trunk._runs import FIXED, NO_POOL, NONE, OS, RECORDS, Command, Finished, Storage
from tests.trunk._tampering import edit_summary, execute, execute_and_rehash

QUICK = ("evaluation.local_twins=false", "rounds=1")
INTEGERS = ("privacy.noise_distribution=discrete_gaussian",)
CAREFUL = (OS, *INTEGERS)
LARGE = "Epsilon is too large to mean much"
DELTA = "Delta leaves room for a complete failure"
UNIT = "The unit does not cover what people fear, or is no person"
ELSEWHERE = "The same data are released elsewhere without noise"
TRUST = "The trust that is assumed does not hold"
BUILT = "Randomness, floating point, side channels"
BOUNDED = "What one unit contributes is not bounded"
MADE_UP = "The records themselves are made up"

# The run's overrides, what its first words must be among the warnings, and which hazard it is.
INJECTED: dict[str, tuple[tuple[str, ...], str, str]] = {
    "seeded-noise": (
        ("privacy.noise_source=seeded", *INTEGERS),
        "noise_source seeded: the noise can be recomputed",
        BUILT,
    ),
    "floating-point-noise": (
        (OS, "privacy.noise_distribution=gaussian"),
        "upload_noise draws floating-point noise",
        BUILT,
    ),
    "delta-above-one-over-n": (
        (OS, *INTEGERS, "privacy.target_delta=0.3"),
        "delta 0.3 is above 1/clients = 0.2",
        DELTA,
    ),
    "no-noise": ((NONE,), "mechanism none: epsilon is infinite", LARGE),
    "unbounded-uploads": ((NONE,), "against server, peers, observer epsilon is infinite", BOUNDED),
    "large-epsilon": (
        (OS, *INTEGERS, "privacy.target_epsilon=25.0"),
        "the largest epsilon, against server, is 25.00, above 20",
        LARGE,
    ),
    "unit-is-an-event": (
        (OS, *RECORDS, *NO_POOL),
        "the unit is one record",
        UNIT,
    ),
    "trusted-coordinator": (
        (OS, "privacy.mechanism=central_noise", *NO_POOL, *FIXED),
        "against server epsilon is infinite: nothing is proven",
        TRUST,
    ),
    "exact-accuracies": (
        (OS, *INTEGERS),
        "this document holds exact accuracies of the clients' data",
        ELSEWHERE,
    ),
    "selection-by-exact-accuracies": (
        (
            *(NONE, "evaluation.selection=best_on_validation", "task.validation_share=0.5"),
            *("task.shots=4", "rounds=2"),
        ),
        "a round was chosen by exact accuracies",
        ELSEWHERE,
    ),
    "uploads-in-the-clear": (
        (OS, *INTEGERS, "secure_aggregation={enabled: false}"),
        "secure aggregation is off: the server sees every client's upload",
        "",
    ),
    "linkable-pool": (
        (OS, *INTEGERS),
        "expert pool: against server and peers its entries are linkable",
        "",
    ),
    "shares-that-peers-know": (
        (OS, "privacy.mechanism=distributed_noise", *NO_POOL, *FIXED),
        "against peers epsilon is infinite: nothing is proven",
        LARGE,
    ),
}


@pytest.fixture(scope="module")
def careful_run(make_storage: Callable[[str], Storage]) -> Finished:
    """As much is done right as a simulation can do right."""
    return make_storage("careful").run(*QUICK, *CAREFUL)


@pytest.mark.parametrize("name", INJECTED)
def test_a_hazard_in_a_run_is_among_the_warnings(
    storage: Storage, careful_run: Finished, name: str
) -> None:
    overrides, warning, hazard = INJECTED[name]
    # Some hazards are in every simulation, however careful.
    run = careful_run if overrides == CAREFUL else storage.run(*QUICK, *overrides)
    report = report_of(run)
    assert any(text.startswith(warning) for text in report.warnings), report.warnings
    if hazard:
        assert answers(report)[hazard][0] == "hazard"


# Where the hazard is not there, nothing warns of it: else a warning would tell nothing.
AVOIDED = (
    *("seeded-noise", "floating-point-noise", "delta-above-one-over-n", "no-noise"),
    *("large-epsilon", "unit-is-an-event", "trusted-coordinator"),
    *("selection-by-exact-accuracies", "uploads-in-the-clear"),
)


@pytest.mark.parametrize("name", AVOIDED)
def test_a_run_without_the_hazard_does_not_warn_of_it(careful_run: Finished, name: str) -> None:
    report = report_of(careful_run)
    _, warning, hazard = INJECTED[name]
    assert not any(text.startswith(warning) for text in report.warnings)
    if hazard and hazard != ELSEWHERE:
        assert answers(report)[hazard][0] != "hazard"


def test_noise_does_not_cover_a_choice_by_exact_accuracies_so_it_is_refused(
    storage: Storage,
) -> None:
    with pytest.raises(
        ConfigError, match=r"evaluation\.selection: best_on_validation would choose"
    ):
        storage.config(
            *(OS, "evaluation.selection=best_on_validation", "task.validation_share=0.5"),
        )


def test_a_claim_that_was_turned_into_an_exact_choice_afterwards_makes_no_report(
    sotto: Command, own_copy: Finished, tmp_path: Path
) -> None:
    def choose(summary: dict[str, Any]) -> None:
        summary["best_on_validation"] = {"round": 1, "validation": 1.0}

    edit_summary(own_copy, choose)
    refused(sotto, own_copy, tmp_path, code=1)


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


TAMPERED: dict[str, tuple[Callable[[Finished], None], int]] = {
    "less-noise-than-stated": (
        lambda run: execute(
            run.storage.file, "UPDATE ledger SET standard_deviation = standard_deviation * 2"
        ),
        1,
    ),
    "a-hidden-release": (
        lambda run: execute(run.storage.file, "DELETE FROM ledger WHERE round_number = 2"),
        1,
    ),
    "a-cut-log": (
        lambda run: execute(
            run.storage.file,
            "DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)",
        ),
        1,
    ),
    "an-edited-entry": (
        lambda run: execute(
            run.storage.file,
            """UPDATE audit SET detail = replace(detail, 'upload_noise', 'dp_sgd')
            WHERE action = 'release.reserved'""",
        ),
        3,
    ),
    "a-relation-that-flatters": (
        lambda run: execute(run.storage.file, "UPDATE ledger SET relation = 'add_or_remove_one'"),
        1,
    ),
    "rewritten-with-new-hashes": (
        lambda run: execute_and_rehash(
            run.storage.file,
            """UPDATE audit SET detail = replace(detail, 'replace_one', 'add_or_remove_one')
            WHERE action = 'release.reserved'""",
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_records_that_were_tampered_with_make_no_report(
    sotto: Command, own_copy: Finished, tmp_path: Path, name: str
) -> None:
    change, code = TAMPERED[name]
    change(own_copy)
    refused(sotto, own_copy, tmp_path, code=code)


def test_a_run_beside_it_that_was_tampered_with_makes_no_report_either(
    sotto: Command, storage: Storage, tmp_path: Path
) -> None:
    first, other = storage.run(*QUICK, OS), storage.run(*QUICK, OS, "name=other")
    execute(storage.file, "UPDATE ledger SET clipping_norm = 0.5 WHERE run_id LIKE 'other-%'")
    answer = sotto(
        *("report", first.run_id, "--compare", other.run_id, "--storage", storage.url),
        *("--format", "html", "--output", str(tmp_path / "report.html")),
    )
    assert answer.code == 1 and other.run_id in answer.err
    assert list(tmp_path.glob("report*")) == []


UNSIGNED = "no head of the log is signed by a key that is known"


def key_and_heads(run: Finished) -> tuple[Path, Path]:
    return key_file(run.storage.file), heads_file(run.storage.file)


def test_an_unsigned_head_is_warned_of(careful_run: Finished, own_copy: Finished) -> None:
    assert not any(text.startswith(UNSIGNED) for text in report_of(careful_run).warnings)
    assert answers(report_of(careful_run))[MADE_UP][0] == "open"
    key, heads = key_and_heads(own_copy)
    key.unlink()
    for _ in range(2):
        report = report_of(own_copy)
        assert any(text.startswith(UNSIGNED) for text in report.warnings)
        assert answers(report)[MADE_UP][0] == "hazard"
        # Neither does it help that no head is there at all.
        heads.unlink(missing_ok=True)


def test_a_key_that_nobody_handed_over_is_warned_of(storage: Storage) -> None:
    run = storage.run(*QUICK, OS)
    key_file(storage.file).unlink()
    other = storage.run(*QUICK, OS)
    for one in (run, other):
        warned = report_of(one).warnings
        assert any(text.startswith("a new key took the log over") for text in warned)


def drop_heads(run: Finished) -> None:
    heads_file(run.storage.file).unlink()


def flip_a_signature(run: Finished) -> None:
    path = heads_file(run.storage.file)
    text = path.read_text()
    place = text.rindex("\\n") - 8
    path.write_text(text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :])


def change_a_leaf(run: Finished) -> None:
    execute(run.storage.file, "UPDATE leaves SET hash = zeroblob(32) WHERE position = 3")


@pytest.mark.parametrize(
    ("spoil", "code"), [(drop_heads, 1), (flip_a_signature, 1), (change_a_leaf, 3)]
)
def test_a_log_that_does_not_hold_makes_no_report(
    sotto: Command,
    own_copy: Finished,
    tmp_path: Path,
    *,
    spoil: Callable[[Finished], None],
    code: int,
) -> None:
    spoil(own_copy)
    refused(sotto, own_copy, tmp_path / "reports", code=code)


def test_the_checklist_answers_every_hazard_with_words(careful_run: Finished) -> None:
    found = answers(report_of(careful_run))
    assert len(found) == len(HAZARDS) == 22
    assert {status for status, _ in found.values()} == {"answered", "open", "hazard"}
    assert all(len(why) > 20 for _, why in found.values())
