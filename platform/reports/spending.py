"""What the run has spent, round by round and client by client, over lifetimes, and what is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from platform.agreement.budgets import ClientBudget
from platform.agreement.statements import lifetime_of, stopping_of
from platform.reports.blocks import (
    Basis,
    Block,
    Facts,
    Figure,
    Line,
    Plot,
    Section,
    Table,
    Words,
    paragraph,
    words,
)
from platform.reports.numbers import epsilon_text, left_text, share_text
from platform.reports.releases import by_adversary
from platform.reports.subject import Subject, epsilon_figure
from platform.rounds.documents import ADVERSARIES, json_number

MOST_NAMED: Final = 3
"""In one cell; the records behind the row's numbers name all of them."""


def spending_section(subject: Subject) -> Section:
    """Return the budget: of the run, round by round, of each client, over its lifetime, left."""
    blocks = (*_run(subject), *_rounds(subject), *_clients(subject), *_attempts(subject))
    return Section("budget", "The privacy budget", blocks)


def _run(subject: Subject) -> Iterator[Block]:
    config, epsilons = subject.agreed.config, subject.epsilons
    limits = {"target": config.privacy.target_epsilon, "lifetime": config.privacy.lifetime_budget}
    yield Facts(
        (
            *((f"Of the run, against {name}", words(subject.epsilon(name))) for name in epsilons),
            ("However the run ends", _stopping(subject)),
            ("Limit of the run", _limit(subject, "privacy.target_epsilon", limits["target"])),
            ("Left of the run's limit", _least_left(subject)),
            ("Over a client's lifetime", _lifetime(subject)),
            ("Limit of a lifetime", _limit(subject, "privacy.lifetime_budget", limits["lifetime"])),
            ("Left of a lifetime's limit", _lifetime_left(subject)),
            ("Rounds that still fit", _forecast(subject)),
        )
    )
    yield paragraph(
        f"A lifetime here is {lifetime_of(config)}. Epsilons do not add up: what is left is a "
        "difference, and no promise of so much more."
    )
    holds = {one.lifetime.holds for one in subject.budget.clients} - {None}
    yield from (paragraph(f"Over a client's lifetime {text}.") for text in sorted(map(str, holds)))


def _stopping(subject: Subject) -> Words:
    """Return what holds of a run that ends because of what was released."""
    found = stopping_of(subject.agreed.spending, subject.agreed.config)
    return words("nothing was charged that is claimed" if found is None else found["holds"])


def _limit(subject: Subject, key: str, limit: float | None) -> Words:
    if limit is None:
        return words("none")
    against = "peers" if subject.facts.is_bare_to_server else "the server"
    stated = Figure(f"{limit:g}", limit, subject.configured(key))
    return words("epsilon ", stated, f" against {against}")


def _least_left(subject: Subject) -> Words:
    least = min(
        (one for one in subject.budget.clients if one.left is not None),
        key=lambda one: one.left or 0.0,
        default=None,
    )
    if least is None or least.left is None:
        return words("no limit, so nothing is counted down")
    basis = subject.basis("limit less epsilon of the client that has spent most", subject.rows)
    return words(Figure(left_text(least.left), least.left, basis), " for who has spent most")


def _lifetime(subject: Subject) -> Words:
    problems = {
        one.lifetime.problem for one in subject.budget.clients if one.lifetime.problem is not None
    }
    if problems:
        return words(f"not known: {min(problems)}")
    most = max(
        subject.budget.clients,
        key=lambda one: -1.0 if one.lifetime.epsilon is None else one.lifetime.epsilon,
        default=None,
    )
    if most is None or subject.agreed.is_unpriced:
        return words("nothing was charged")
    runs = ", ".join(most.lifetime.runs) or "no run"
    who = subject.shown(most.member.pseudonym)
    basis = subject.basis(
        f"all that client {who} is charged for in {runs}, composed as one",
        [row for row in subject.rows if row.pseudonym == most.member.pseudonym],
        pseudonyms=(who,),
    )
    count = len(most.lifetime.runs)
    return words(
        epsilon_figure(most.lifetime.epsilon, basis),
        f" for who has spent most, in {count} run{'' if count == 1 else 's'}",
    )


def _lifetime_left(subject: Subject) -> Words:
    known = [one.lifetime.left for one in subject.budget.clients if one.lifetime.left is not None]
    if not known:
        return words("no limit, so nothing is counted down")
    basis = subject.basis("limit less epsilon over all runs, least over clients", subject.rows)
    return words(Figure(left_text(min(known)), min(known), basis))


def _forecast(subject: Subject) -> Words:
    coming, fitting = subject.budget.coming, subject.budget.rounds_left
    if coming is None:
        return words("none: the run releases nothing any more")
    planned = Figure(str(coming.rounds), coming.rounds, subject.configured("rounds"))
    if fitting is None:
        return words(planned, " are to come, and no limit is known to end the run before")
    basis = subject.basis("all charged ledger rows, and one more round as the last", subject.rows)
    left = Figure(str(fitting), fitting, basis)
    return words(left, " at the noise of the rounds so far, and ", planned, " are to come")


def _rounds(subject: Subject) -> Iterator[Block]:
    if not subject.rounds:
        yield paragraph("No round is over.")
        return
    plot = _plot(subject)
    if plot is not None:
        yield plot
    yield Table(
        "Round by round: epsilon is cumulative, so each row covers all rows above it; it holds for "
        "a row that is chosen before the run",
        ("Round", "Clients", "Lost", "Mean accuracy", "Worst client", "Epsilon"),
        tuple(_round(subject, document) for document in subject.rounds),
    )


def _round(subject: Subject, document: Mapping[str, Any]) -> tuple[Words, ...]:
    number, accuracy = int(document["round"]), document["accuracy"]
    spent = {name: float(document["epsilon"][name]) for name in ADVERSARIES}
    rows = [row for row in subject.rows if row.round_number <= number]
    stated = subject.of_round(number)
    basis = subject.basis(f"all charged ledger rows up to round {number}, the worst client's", rows)
    secret = document["cohort"] is None
    collection = " (collection)" if document.get("phase") == "collection" else ""
    return (
        words(f"{number}{collection}"),
        *(
            words("secret" if secret else Figure(str(document[which]), document[which], stated))
            for which in ("cohort", "dropped")
        ),
        *(
            words(share_text(None))
            if accuracy[which] is None
            else words(Figure(share_text(accuracy[which]), accuracy[which], stated))
            for which in ("mean", "worst")
        ),
        by_adversary(spent, basis),
    )


def _plot(subject: Subject) -> Plot | None:
    """Return epsilon over rounds; lines that are the same are one."""
    lines: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name in ADVERSARIES:
        points = tuple(
            (float(d["round"]), float(d["epsilon"][name]))
            for d in subject.rounds
            if math.isfinite(float(d["epsilon"][name]))
        )
        lines.setdefault(points, []).append(name)
    infinite = lines.pop((), [])
    if not lines:
        return None
    drawn = [Line(", ".join(names), points) for points, names in lines.items()]
    ends = "; ".join(f"{line.label}: {epsilon_text(line.points[-1][1])}" for line in drawn)
    target = subject.agreed.config.privacy.target_epsilon
    missing = f" Infinite, so not drawn: {', '.join(infinite)}." if infinite else ""
    return Plot(
        title="Epsilon spent, round by round",
        says=f"Cumulative epsilon after the last round shown: {ends}.{missing}",
        across="Round",
        up="Epsilon",
        lines=tuple(drawn),
        limit=None if target is None else (target, f"limit {target:g}"),
    )


def _clients(subject: Subject) -> Iterator[Block]:
    if subject.hides_draws:
        yield paragraph(
            "Client by client nothing is shown: it would tell who was drawn into which cohort, and "
            "the epsilon for the observer counts on that to stay secret."
        )
        return
    alike: dict[tuple[Any, ...], list[ClientBudget]] = {}
    for one in subject.budget.clients:
        alike.setdefault(_spent_of(one), []).append(one)
    if alike:
        yield Table(
            "Client by client, those that stand alike in one row",
            ("Clients", "Epsilon", "Reserved only", "Left of run", "Lifetime", "Left of lifetime"),
            tuple(_client(subject, group) for group in alike.values()),
        )


def _spent_of(one: ClientBudget) -> tuple[Any, ...]:
    spent = tuple(json_number(getattr(one.epsilons, name)) for name in ADVERSARIES)
    life = one.lifetime
    reserved = (one.reserved.epsilon, *sorted(one.reserved.releases.items()))
    return (*spent, reserved, one.left, life.epsilon, life.left, life.problem, one.member.gone)


def _client(subject: Subject, group: list[ClientBudget]) -> tuple[Words, ...]:
    first = group[0]
    names = tuple(one.member.pseudonym for one in group)
    rows = [row for row in subject.rows if row.pseudonym in set(names)]
    basis = subject.basis(
        "the charged ledger rows of each of these clients", rows, pseudonyms=names
    )
    spent = {name: getattr(first.epsilons, name) for name in ADVERSARIES}
    known = subject.facts.claims or first.releases > 0
    gone = "; take part no more" if first.member.gone else ""
    life = first.lifetime
    return (
        words(f"{_names(names)}{gone}"),
        by_adversary(spent, basis) if known else words("not known yet"),
        words(epsilon_figure(first.reserved.epsilon, basis) if first.reserved.releases else "none"),
        words(
            "no limit" if first.left is None else Figure(left_text(first.left), first.left, basis)
        ),
        words("not known" if life.epsilon is None else epsilon_figure(life.epsilon, basis)),
        words("no limit" if life.left is None else Figure(left_text(life.left), life.left, basis)),
    )


def _names(names: tuple[str, ...]) -> str:
    """Return clients by their pseudonyms; of many how many, as their numbers' basis names them."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{len(names)} clients"


def _attempts(subject: Subject) -> Iterator[Block]:
    found = subject.budget.attempts
    if not found:
        return
    priced = [(one, cost, _rows_of(subject, one.place)) for one, cost in found]
    yield Table(
        "Attempts that gave no result, and by how much less epsilon would be without each",
        ("Round and attempt", "State", "Why", "Clients charged", "Cost"),
        tuple(
            (
                words(f"round {one.round_number}, attempt {one.attempt}"),
                words(one.state),
                words(one.why or "it goes on"),
                words(Figure(str(one.charged), one.charged, basis)),
                words(epsilon_figure(cost, basis)),
            )
            for one, cost, basis in priced
        ),
    )


def _rows_of(subject: Subject, place: tuple[int, int]) -> Basis:
    rows = [row for row in subject.rows if (row.round_number, row.attempt) == place]
    return subject.basis("the rows of this attempt", rows)
