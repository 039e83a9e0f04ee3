"""What an audit saw, in the report: of this run's claim only, and refuted claims first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trunk._runs import OS, Command, Finished, Storage, gaussian_epsilon

QUICK = ("evaluation.local_twins=false", "rounds=1", OS)
NOISE = 4.0
NOISY = ("privacy.target_epsilon=null", f"privacy.noise_multiplier={NOISE}")

Channels = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(make_storage: Callable[[str], Storage]) -> Finished:
    return make_storage("audited").run(*QUICK, *NOISY)


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


def reported(sotto: Command, run: Finished, file: Path, form: str = "json") -> Any:
    return sotto(
        *("report", run.run_id, "--storage", run.storage.url),
        *("--format", form, "--audit", str(file)),
    )


def written(folder: Path, found: Any) -> Path:
    file = folder / "audit.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    return file


def test_the_lower_bound_stands_with_its_power_and_what_is_claimed(
    sotto: Command, run: Finished, tmp_path: Path
) -> None:
    answer = reported(sotto, run, written(tmp_path, an_audit()))
    assert (answer.code, answer.err) == (0, "")
    (section,) = [s for s in answer.document["sections"] if s["anchor"] == "empirical"]
    (table,) = [b for b in section["blocks"] if b["kind"] == "table"]
    ((channel, canaries, bound, claimed, power, verdict),) = table["rows"]
    assert (channel, canaries["text"], verdict) == ("sum", "1000", "not refuted")
    # A lower bound is rounded down, and what is claimed up.
    assert (bound["text"], bound["numbers"][0]["value"]) == ("0.31", 0.3179)
    assert claimed["numbers"][0]["value"] == pytest.approx(gaussian_epsilon(NOISE, 1))
    assert power["text"] == "87.5%"
    assert not any("refuted" in text for text in answer.document["warnings"])


@pytest.mark.parametrize("which", [0, 1])
def test_a_refuted_claim_is_the_first_warning(
    sotto: Command, run: Finished, tmp_path: Path, which: int
) -> None:
    found = an_audit()
    found[which] |= {"passed": False, "reasons": ["it is"]}
    document = reported(sotto, run, written(tmp_path, found)).document
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
    sotto: Command, run: Finished, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    answer = reported(sotto, run, written(tmp_path, an_audit(**changed)))
    assert (answer.code, answer.out) == (2, "") and answer.err.count("\n") == 1
    assert "is of another claim" in answer.err and said in answer.err


@pytest.mark.parametrize(
    "text",
    [
        *("", "[1]", "[" * 100_000),
        json.dumps(an_audit(power=1.5)),
        json.dumps(an_audit(channel="<script>alert(1)</script>")),
        json.dumps(an_audit()[1:]),
    ],
    ids=["empty", "numbers", "nested", "power", "markup", "no sum"],
)
def test_a_file_that_is_no_audit_is_one_sentence(
    sotto: Command, run: Finished, tmp_path: Path, text: str
) -> None:
    answer = reported(sotto, run, written(tmp_path, text), "html")
    assert (answer.code, answer.out) == (2, "") and answer.err.count("\n") == 1
    assert answer.err.startswith("error: --audit: ") and "<script" not in answer.err


def test_what_the_command_prints_is_what_is_read(
    sotto: Command, run: Finished, tmp_path: Path
) -> None:
    config = run.folder / "config.yaml"
    made = sotto("audit-privacy", str(config), "--canaries", "100", "--json")
    assert made.code == 0
    answer = reported(sotto, run, written(tmp_path, made.out))
    assert (answer.code, answer.err) == (0, "")
