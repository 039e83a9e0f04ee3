"""The privacy budget report of a run, as a value: from agreed records to sections, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from platform.agreement.budgets import RunBudget
from platform.reports.blocks import Basis, Facts, Figure, Section, words
from platform.reports.comparison import comparison_section
from platform.reports.construction import construction_section
from platform.reports.empirical import (
    SeenChannel,
    empirical_section,
    refuted,
    require_same_claim,
)
from platform.reports.evidence import bases_of, evidence_section
from platform.reports.guarantee import odds_section, right_guesses, unit_section
from platform.reports.hazards import hazards_section
from platform.reports.limits import composition_section, limits_section
from platform.reports.log import log_section
from platform.reports.log_view import LogView
from platform.reports.provenance import provenance_section
from platform.reports.releases import releases_section
from platform.reports.spending import spending_section
from platform.reports.subject import Subject
from platform.reports.trust import trust_section
from platform.reports.usefulness import usefulness_section
from platform.reports.warnings import report_warnings
from platform.rounds.documents import ADVERSARIES

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Report:
    """A privacy budget report.

    Attributes:
        run_id: The run.
        title: Of the document.
        lead: What it is about, at a glance.
        warnings: To be read first, most important first.
        odds: Right guesses of a hundred, at most, by adversary; None where nothing tells yet.
        sections: In order.
        bases: What figures rest on; the n-th is shown as number n.
    """

    run_id: str
    title: str
    lead: Facts
    warnings: tuple[str, ...]
    odds: tuple[tuple[str, Figure | None], ...]
    sections: tuple[Section, ...]
    bases: tuple[Basis, ...]


def budget_report(
    budget: RunBudget,
    compared: Sequence[RunBudget] = (),
    *,
    made: str,
    log: LogView | None = None,
    seen: Sequence[SeenChannel] = (),
) -> Report:
    """Return the report of a run.

    Args:
        budget: The run, whose records agree, and what it has spent.
        compared: Runs to stand beside it.
        made: When the document is made, as people read it.
        log: The log that the records are in; None where nobody read it.
        seen: What an audit of the run's configuration saw; empty where there was none.

    Raises:
        OtherClaim: If the audit is of another claim than the run's.
    """
    subject, others = Subject(budget, log), [Subject(one, log) for one in compared]
    require_same_claim(subject, seen)
    sections = (
        unit_section(subject),
        odds_section(subject),
        spending_section(subject),
        releases_section(subject),
        *([comparison_section(subject, others)] if others else []),
        trust_section(subject),
        limits_section(subject),
        composition_section(subject),
        construction_section(subject),
        usefulness_section(subject),
        provenance_section(subject),
        empirical_section(subject, seen),
        log_section(subject),
        hazards_section(subject),
    )
    bases = bases_of(sections)
    return Report(
        run_id=subject.run_id,
        title=f"Privacy budget report of run {subject.run_id}",
        lead=_lead(subject, made),
        warnings=(*refuted(seen), *report_warnings(subject)),
        odds=tuple((name, right_guesses(subject, name)) for name in ADVERSARIES),
        sections=(*sections, evidence_section((subject, *others), bases)),
        bases=bases,
    )


def _lead(subject: Subject, made: str) -> Facts:
    config = subject.agreed.config
    over = len(subject.trained)
    done: Any = "finished" if subject.summary is not None else "not finished"
    return Facts(
        (
            ("Run", words(subject.run_id)),
            ("Configuration", words(config.name)),
            ("Status", words(f"{done}, {over} of {config.rounds} rounds are over")),
            ("Method and data", words(f"{config.method.name} on {config.task.dataset}")),
            ("Mechanism", words(subject.facts.name)),
            ("Made", words(made)),
        )
    )
