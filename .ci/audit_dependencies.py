"""Looks locked versions up among known vulnerabilities: `audit_dependencies.py LOCK...`.

A finding fails, unless `.ci/known_vulnerabilities.yaml` gives a reason that has not run out. Where
no registry answers, nothing is known: that is said, and is neither a failure nor a success.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KNOWN = Path(__file__).with_name("known_vulnerabilities.yaml")
PIP_AUDIT = (
    *(sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"),
    *("--format", "json", "--progress-spinner", "off"),
)


@dataclass(frozen=True)
class Verdict:
    """What an audit came to.

    Attributes:
        audited: How many packages somebody knows about.
        skipped: Names of those that nobody answered for.
        findings: One line for each vulnerability without a valid reason.
        excused: One line for each with one.
    """

    audited: int
    skipped: tuple[str, ...]
    findings: tuple[str, ...]
    excused: tuple[str, ...]


def judge(
    report: Mapping[str, Any], known: Sequence[Mapping[str, Any]], today: datetime.date
) -> Verdict:
    """Return what pip-audit's report comes to.

    Args:
        report: As pip-audit prints it.
        known: Vulnerabilities with `id`, `until` (a day) and `reason`.
        today: The day; a reason whose day has passed is none.

    Raises:
        ValueError: If a known one has no reason or no day.
    """
    reasons = dict(map(_reason, known))
    findings, excused = list[str](), list[str]()
    for package, vulnerability in _found(report):
        until, reason = reasons.get(vulnerability["id"], (datetime.date.min, "no reason given"))
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        line = f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}"
        if today <= until:
            excused.append(f"{line}; until {until}: {reason}")
        else:
            findings.append(line)
    packages = report["dependencies"]
    skipped = tuple(each["name"] for each in packages if "skip_reason" in each)
    return Verdict(len(packages) - len(skipped), skipped, tuple(findings), tuple(excused))


def _reason(entry: Mapping[str, Any]) -> tuple[str, tuple[datetime.date, str]]:
    until, reason = entry.get("until"), str(entry.get("reason") or "")
    if not isinstance(until, datetime.date) or len(reason) < 10:
        raise ValueError(f"{KNOWN.name}: {entry.get('id')!r} needs `until` (a day) and `reason`")
    return str(entry["id"]), (until, reason)


def _found(report: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for package in report["dependencies"]:
        for vulnerability in package.get("vulns", ()):
            yield package, vulnerability


def audit(lock: Path) -> Mapping[str, Any] | str:
    """Return pip-audit's report on a lock, or what it said where it has none."""
    command = [*PIP_AUDIT, "-r", str(lock)]  # this interpreter, on a file of ours
    done = subprocess.run(command, text=True, capture_output=True)  # noqa: S603
    try:
        report: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        return (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return report


def first_of(lock: Path, folder: Path) -> Path:
    """Write the first requirement of a lock as a lock of its own.

    One question shows whether anybody answers, before hundreds are asked.
    """
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.startswith("#")]
    end = next((n for n, line in enumerate(lines) if n and not line.startswith(" ")), len(lines))
    path = folder / lock.name
    path.write_text("\n".join(lines[:end]) + "\n", encoding="utf-8")
    return path


def main(locks: Sequence[str]) -> int:
    """Audit locks and say what was found.

    Returns:
        1 if there is a vulnerability that nobody gave a reason for, else 0.
    """
    known = yaml.safe_load(KNOWN.read_text("utf-8")) or []
    with tempfile.TemporaryDirectory() as folder:
        tried = audit(first_of(Path(locks[0]), Path(folder)))
    if isinstance(tried, str) or not judge(tried, known, datetime.date.max).audited:
        why = tried if isinstance(tried, str) else "it has no record of vulnerabilities"
        print(f"skipped: nothing is known of any version, as no registry answered ({why})")
        return 0
    failed = False
    for lock in locks:
        report = audit(Path(lock))
        if isinstance(report, str):
            print(f"{lock}: no report: {report}")
            failed = True
            continue
        failed |= _told(lock, judge(report, known, datetime.date.today()))
    return int(failed)


def _told(lock: str, verdict: Verdict) -> bool:
    print(f"{lock}: {verdict.audited} audited; not known: {', '.join(verdict.skipped) or 'none'}")
    for line in verdict.excused:
        print(f"  excused: {line}")
    for line in verdict.findings:
        print(f"  FOUND: {line}")
    return bool(verdict.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
