"""Vulnerabilities of what is locked: found, excused for a time, or said not to be known."""

from __future__ import annotations

import datetime
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.repository._source import ROOT

TODAY = datetime.date(2027, 1, 1)
FINDING = {"id": "GHSA-1", "fix_versions": ["2.0"]}
REASON = "nothing of ours calls what is vulnerable"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = ROOT / ".ci" / "audit_dependencies.py"
    spec = importlib.util.spec_from_file_location("audit_dependencies", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def report(*vulnerabilities: Any) -> dict[str, Any]:
    package = {"name": "a", "version": "1.0", "vulns": list(vulnerabilities)}
    return {"dependencies": [package, {"name": "b", "skip_reason": "nobody knows it"}]}


def test_a_finding_is_told_with_the_version_that_mends_it(audit: ModuleType):
    found = audit.judge(report(FINDING), [], TODAY)
    assert (found.audited, found.skipped, found.excused) == (1, ("b",), ())
    assert found.findings == ("a 1.0: GHSA-1, fixed in 2.0",)


@pytest.mark.parametrize(("day", "counts"), [(TODAY, True), (datetime.date(2026, 12, 31), False)])
def test_a_reason_counts_until_its_day(audit: ModuleType, day: datetime.date, counts: bool):
    known = [{"id": "GHSA-1", "until": day, "reason": REASON}]
    found = audit.judge(report(FINDING), known, TODAY)
    assert bool(found.excused) is counts and bool(found.findings) is not counts


@pytest.mark.parametrize("spoilt", [{"reason": REASON}, {"until": TODAY}, {"until": "soon"}])
def test_a_reason_needs_a_day_and_words(audit: ModuleType, spoilt: dict[str, Any]):
    with pytest.raises(ValueError, match="'GHSA-1' needs `until`"):
        audit.judge(report(), [{"id": "GHSA-1", **spoilt}], TODAY)


def test_the_reasons_that_are_given_are_valid(audit: ModuleType):
    assert audit.judge(report(), yaml.safe_load(audit.KNOWN.read_text()) or [], TODAY).audited == 1


@pytest.mark.parametrize("answer", [{"dependencies": [{"name": "a", "skip_reason": "x"}]}, "none"])
def test_where_nobody_answers_that_is_said(audit, monkeypatch, capsys, answer):
    monkeypatch.setattr(audit, "audit", lambda lock: answer)
    assert audit.main([str(ROOT / "requirements.lock")]) == 0
    assert capsys.readouterr().out.startswith("skipped: ")


@pytest.mark.parametrize(("found", "code"), [((FINDING,), 1), ((), 0)])
def test_a_finding_fails(audit, monkeypatch, capsys, found, code):
    monkeypatch.setattr(audit, "audit", lambda lock: report(*found))
    monkeypatch.setattr(audit.yaml, "safe_load", lambda text: [])
    assert audit.main([str(ROOT / "requirements.lock")]) == code
    assert ("FOUND: a 1.0" in capsys.readouterr().out) is bool(found)
