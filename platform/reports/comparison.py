"""Runs side by side, and whether their epsilons may be compared at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from platform.reports.blocks import Block, Figure, Section, Table, Words, paragraph, words
from platform.reports.guarantee import right_guesses
from platform.reports.numbers import share_text
from platform.reports.subject import Subject
from platform.rounds.documents import ADVERSARIES


def comparison_section(subject: Subject, others: Sequence[Subject]) -> Section:
    """Return the runs side by side.

    Args:
        subject: The run that the document is about.
        others: The runs beside it, at least one.
    """
    return Section("comparison", "Beside other runs", tuple(_comparison(subject, others)))


def _comparison(subject: Subject, others: Sequence[Subject]) -> Iterator[Block]:
    for other in others:
        differ = differences(subject, other)
        if differ:
            yield paragraph(
                f"The epsilons of this run and of {other.run_id} are not directly comparable: "
                f"{'; '.join(differ)}."
            )
        else:
            yield paragraph(
                f"This run and {other.run_id} have the same unit, relation and delta, so their "
                "epsilons may be compared adversary by adversary. They are spent side by side "
                "where the same people's data are in both."
            )
    yield Table(
        "This run first, then the others",
        (
            "Run",
            "Status",
            "Unit, relation, delta",
            *(f"Epsilon, {name}" for name in ADVERSARIES),
            "Right guesses of 100 against the server, at most",
            "Mean accuracy",
            "Worst client",
        ),
        tuple(_row(one) for one in (subject, *others)),
    )


def differences(one: Subject, other: Subject) -> list[str]:
    """Return in what two runs differ so that their epsilons are not comparable."""
    pairs = {
        "unit": (one.facts.unit or "none", other.facts.unit or "none"),
        "relation": (_relation(one), _relation(other)),
        "delta": (f"{one.delta:g}", f"{other.delta:g}"),
    }
    return [
        f"{name} {mine} here, {theirs} there"
        for name, (mine, theirs) in pairs.items()
        if mine != theirs
    ]


def _relation(subject: Subject) -> str:
    return subject.agreed.config.relation if subject.facts.claims else "none"


def _row(subject: Subject) -> tuple[Words, ...]:
    return (
        words(subject.run_id),
        words(subject.agreed.records.run.status),
        words(f"{subject.facts.unit or 'none'}, {_relation(subject)}, {subject.delta:g}"),
        *(words(subject.epsilon(name)) for name in ADVERSARIES),
        words(right_guesses(subject, "server") or "not known yet"),
        _accuracy(subject, "mean"),
        _accuracy(subject, "worst"),
    )


def _accuracy(subject: Subject, which: str) -> Words:
    value = None if subject.summary is None else subject.summary["final"]["accuracy"][which]
    if value is None:
        return words("not measured")
    return words(Figure(share_text(value), value, subject.stated(f"final.accuracy.{which}")))
