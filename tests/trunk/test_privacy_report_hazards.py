"""Hazards that are put into real runs on purpose: each is warned of, or there is no report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from platform.disk.log_files import heads_file, key_file
from tests.trunk._reports import answers, report_of
from tests.trunk._runs import FIXED, NO_POOL, NONE, OS, RECORDS, Command, Finished, Storage
from tests.trunk._tampering import execute, execute_and_rehash

QUICK = ("evaluation.local_twins=false", "rounds=1")
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
    return make_storage("careful").run(*QUICK, *CAREFUL)


@pytest.mark.parametrize("name", INJECTED)
def test_a_hazard_in_a_run_is_among_the_warnings_and_in_a_careful_run_is_not(
    storage: Storage, careful_run: Finished, name: str
) -> None:
    overrides, hazards = INJECTED[name]
    report, careful = report_of(storage.run(*QUICK, *overrides)), report_of(careful_run)
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
