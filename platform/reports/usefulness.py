"""What the run was good for: accuracy, the worst-off client, and what sharing was worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from platform.reports.blocks import (
    Block,
    Facts,
    Figure,
    Line,
    Plot,
    Section,
    Words,
    paragraph,
    words,
)
from platform.reports.numbers import points_text, share_text
from platform.reports.subject import Subject


def usefulness_section(subject: Subject) -> Section:
    """Return what was learnt, for whom."""
    return Section("use", "What the run was good for", tuple(_usefulness(subject)))


def _usefulness(subject: Subject) -> Iterator[Block]:
    if subject.summary is None:
        yield paragraph("The run has not finished, so nothing final was measured.")
        return
    summary = subject.summary
    final = summary["final"]
    if subject.is_simulated:
        yield paragraph(
            "These numbers are exact, as an experimenter sees them who holds all the data of a "
            "simulation. They carry no noise and are in no ledger."
        )
    yield Facts(
        (
            ("Method and data", words(f"{summary['method']} on {summary['dataset']}")),
            ("Measured on", words(_measured_on(summary))),
            ("Mean over clients", _share(subject, final["accuracy"], "mean")),
            ("Worst client", _share(subject, final["accuracy"], "worst")),
            ("Spread over clients (standard deviation)", _share(subject, final["accuracy"], "std")),
            ("Gain over each client alone", _points(subject, "gain_over_local")),
            ("Worth of sharing", _points(subject, "worth_of_sharing")),
        )
    )
    yield paragraph(
        "Gain over each client alone is what the federation brought beyond clients that train by "
        "themselves, with the same method and as many steps. Worth of sharing compares with the "
        "same run in which every upload is zero. The worst client is shown because noise weighs "
        "most on those who are few: a mean can hide them."
    )
    plot = _plot(subject)
    if plot is not None:
        yield plot


def _measured_on(summary: Mapping[str, Any]) -> str:
    told = summary.get("evaluation", {})
    return "; ".join(str(text) for text in told.values()) or "each client's own test examples"


def _share(subject: Subject, accuracy: Mapping[str, Any], which: str) -> Words:
    value = accuracy[which]
    if value is None:
        return words("not measured here: it is known to the clients only")
    return words(Figure(share_text(value), value, subject.stated(f"final.accuracy.{which}")))


def _points(subject: Subject, field: str) -> Words:
    value = None if subject.summary is None else subject.summary[field]
    if value is None:
        return words("not measured in this run")
    return words(Figure(points_text(value), value, subject.stated(field)))


def _plot(subject: Subject) -> Plot | None:
    found = [d for d in subject.trained if d["accuracy"]["mean"] is not None]
    if len(found) < 2:
        return None
    lines = tuple(
        Line(label, tuple((float(d["round"]), float(d["accuracy"][which])) for d in found))
        for label, which in (("mean over clients", "mean"), ("worst client", "worst"))
    )
    ends = "; ".join(f"{line.label}: {share_text(line.points[-1][1])}" for line in lines)
    return Plot(
        title="Accuracy, round by round",
        says=f"Accuracy after the last round shown: {ends}.",
        across="Round",
        up="Accuracy",
        lines=lines,
        percent=True,
    )
