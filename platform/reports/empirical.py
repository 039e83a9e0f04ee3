"""What an attack on the real code has seen of the claim, where one was made."""

from __future__ import annotations

from platform.reports.blocks import Section, paragraph
from platform.reports.subject import Subject


def empirical_section(subject: Subject) -> Section:
    """Return an empirical lower bound with its power, or that there is none."""
    why = (
        "Nothing is claimed, so there is nothing to refute."
        if not subject.facts.claims
        else (
            "No audit is in the records of this run, so no empirical lower bound is stated: the "
            "epsilons are proofs about the mechanism as it is written, not measurements of it. "
            "`python -m platform.coordinator audit-privacy CONFIG` plays canaries against the "
            "code that protects clients, and prints a lower bound at 95% and the probability with "
            "which halved noise would have been noticed."
        )
    )
    return Section("empirical", "Empirical lower bound", (paragraph(why),))
