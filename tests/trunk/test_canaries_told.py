"""What people are told of canaries: exit codes, warnings first, the report and its page."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from platform.cli.running import exit_code_of
from platform.experiment.caveats import canary_notes, canary_warnings
from platform.reports.blocks import epsilon_text
from platform.reports.rendering import html_page
from tests.trunk._canaries import AUDIT, CANARIES, CENTRAL, CLIENTS, SHARED, fix_key
from tests.trunk._canaries import halve_central_noise as halve
from tests.trunk._reports import report_of, section, sentences, text
from tests.trunk._runs import SMALL, Command, Finished, Storage
from tests.trunk.conftest import MakeStorage

FOUND = {
    "canaries": 32,
    "lower_bound": 2.5,
    "claimed": 3.12,
    "is_above_claim": False,
    "is_refuted": False,
    "is_blind": False,
    "share_of_noise": 0.215,
}
ABOVE = {**FOUND, "lower_bound": 3.3, "is_above_claim": True}
REFUTED = {**ABOVE, "lower_bound": 6.125, "is_refuted": True}


@pytest.fixture(scope="module")
def right(make_storage: MakeStorage) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        return make_storage("told-right").run(*SHARED, AUDIT)


@pytest.fixture(scope="module")
def broken(make_storage: MakeStorage) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        halve(patch)
        return make_storage("told-broken").run(*CENTRAL, AUDIT)


def test_the_exit_code_tells_what_canaries_showed():
    blind = {**FOUND, "is_blind": True}
    told = (None, FOUND, ABOVE, REFUTED, blind)
    assert [exit_code_of(found) for found in told] == [0, 0, 4, 1, 1]


def test_a_warning_says_how_sure_it_is():
    assert not [*canary_warnings(None), *canary_warnings(FOUND), *canary_notes(None)]
    (above,), (refuted,) = canary_warnings(ABOVE), canary_warnings(REFUTED)
    assert above.startswith("ABOVE THE CLAIM")
    assert "at least 3.30 where 3.12 is claimed; one right run in twenty" in above
    assert refuted.startswith("REFUTED")
    # Never rounded to more than was shown.
    assert "at least 6.12 where 3.12 is claimed" in refuted
    assert "less than once in a million" in refuted


def command_of(storage: Storage, folder: Path, overrides: tuple[str, ...]) -> tuple[str, ...]:
    path = folder / "audited.yaml"
    path.write_text(SMALL)
    assert yaml.safe_load(SMALL)["privacy"]["noise_source"] == "seeded"
    sets = [
        part for one in (*overrides, AUDIT, f"storage.url={storage.url}") for part in ("--set", one)
    ]
    return ("run", str(path), *sets)


def test_the_command_warns_first_and_ends_with_one(
    storage: Storage, sotto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fix_key(monkeypatch)
    halve(monkeypatch)
    answer = sotto(*command_of(storage, tmp_path, CENTRAL))
    assert answer.code == 1
    warned, shown = answer.out.index("WARNING: REFUTED"), answer.out.index("canaries show")
    assert warned < answer.out.index("method, data") < shown
    assert "of the claimed 3.12; ceiling of 32 canaries in 1 of 256" in " ".join(
        answer.out.replace("│", " ").split()
    )
    again = sotto("runs", "--json", "--storage", storage.url)
    assert again.document[0]["status"] == "finished"


def test_the_command_of_a_right_run_ends_with_nought_and_json_has_it_all(
    storage: Storage, sotto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fix_key(monkeypatch)
    answer = sotto(*command_of(storage, tmp_path, SHARED), "--json")
    assert answer.code == 0
    found = answer.document["canaries"]
    assert (found["canaries"], found["directions"], found["confidence"]) == (32, 1, 0.95)
    assert found["delta"] == 1e-5
    assert 0.0 < found["lower_bound"] < found["claimed"]
    assert "WARNING" not in answer.err


def test_a_report_shows_bound_ceiling_and_claim(right: Finished):
    report, found = report_of(right), right.summary["canaries"]
    said = "\n".join(sentences(section(report, "empirical")))
    assert f"{CANARIES} clients of this run were canaries of an audit" in said
    (row,) = [line for line in said.splitlines() if line.startswith(f"{CANARIES} | ")]
    cells = row.split(" | ")
    shares = f"{100 * found['share']:.1f}%"
    assert cells[2] == shares
    assert cells[4:] == [epsilon_text(found["claimed"]), "not refuted"]
    assert float(cells[1]) <= found["lower_bound"] < float(cells[1]) + 0.01
    assert float(cells[3]) <= found["ceiling"] < float(cells[3]) + 0.01
    assert "No audit is in the records" not in said
    assert not report.warnings[0].startswith(("REFUTED", "ABOVE"))
    # Whom a sum needs are clients, and no canaries.
    assert f"a sum holds at least {CLIENTS} clients" in text(report)
    page = html_page(report)
    assert "What canaries saw of the whole run" in page


def test_a_report_of_a_refuted_run_says_so_before_all_else(broken: Finished):
    report = report_of(broken)
    assert report.warnings[0].startswith("REFUTED by this run's own canaries")
    assert sum(text.startswith("REFUTED") for text in report.warnings) == 1
    assert "| REFUTED" in "\n".join(sentences(section(report, "empirical")))


def test_text_of_a_report_command_shows_it_too(broken: Finished, sotto: Command):
    answer = sotto("report", broken.run_id, "--storage", broken.storage.url)
    assert answer.code == 0
    assert "REFUTED by this run's own canaries" in answer.out
