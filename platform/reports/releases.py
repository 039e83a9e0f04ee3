"""What left the clients, kind by kind, and what one of each costs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from platform.protection.charging import as_releases, law_of
from platform.reports.blocks import (
    Basis,
    Block,
    Figure,
    Piece,
    Section,
    Table,
    Words,
    bullets,
    paragraph,
    words,
)
from platform.reports.numbers import epsilon_text, ranges
from platform.reports.subject import Subject, epsilon_figure
from platform.rounds.documents import ADVERSARIES
from privacy import epsilons
from privacy.accounting.composition import compose, no_cohort
from privacy.accounting.gaussian import total_mu
from storage import LedgerRow

CHANNELS: Final = {
    "sum": "update, into the sum",
    "pool": "pool entry",
    "metrics": "measurement",
}
FLAVOURS: Final = {
    "exact": (
        "Gaussian differential privacy, composed exactly and converted to (epsilon, delta) by the "
        "closed formula"
    ),
    "pld": "privacy loss distributions, composed numerically and converted to (epsilon, delta)",
    "rdp": (
        "Renyi differential privacy (zero-concentrated for integer noise), composed order by "
        "order and converted to (epsilon, delta)"
    ),
}


def releases_section(subject: Subject) -> Section:
    """Return each kind of release, with its noise and its price alone."""
    return Section("releases", "What left the clients", tuple(_releases(subject)))


def _releases(subject: Subject) -> Iterator[Block]:
    yield from _flavour(subject)
    kinds = _kinds(subject)
    if not kinds:
        yield paragraph("No release of any client is in the ledger.")
        return
    yield Table(
        "Each kind of release, and the epsilon of one of them alone",
        (
            "Release",
            "Rounds",
            "Protected by",
            "Bound C",
            "Noise over C",
            "Sampling counted on",
            "Ledger rows",
            "Epsilon of one alone",
        ),
        tuple(_row(subject, rows) for rows in kinds),
    )
    yield paragraph(
        "C bounds the length of what one unit adds; the noise's standard deviation is stated as a "
        "multiple of it. A row is reserved in the ledger before anything leaves a client, and is "
        "free only where it is known that nothing did."
    )


def _flavour(subject: Subject) -> Iterator[Block]:
    if not subject.facts.claims:
        return
    names = subject.budget.epsilons.accountant.split("+")
    how = "; ".join(f"{name}: {FLAVOURS.get(name, name)}" for name in names)
    yield paragraph(
        f"Every epsilon here is of approximate differential privacy at delta {subject.delta:g}, "
        "cumulative over all that the unit released and for the unit that has spent most. Delta "
        f"is the probability that is left outside the promise. The accountant is {how}."
    )
    mu = _mu(subject)
    if mu is not None:
        basis = subject.epsilon("server").basis
        yield paragraph(
            "In its own terms the run is mu-Gaussian-differentially private with mu = ",
            Figure(f"{mu:.6g}", mu, basis),
            " against who sees every release, which can be converted at any other delta.",
        )
    accountants = {} if subject.summary is None else subject.summary["accountants"]
    if accountants:
        yield bullets(
            *(
                words(f"By accountant {name}, for who has spent most: ", _by(subject, value))
                for name, value in accountants.items()
            )
        )


def _by(subject: Subject, value: float | str) -> Piece:
    """Return what an accountant says, or why it says nothing."""
    if isinstance(value, str) and value != "inf":
        return value
    return Figure(epsilon_text(value), value, subject.stated("accountants"))


def _mu(subject: Subject) -> float | None:
    worst = subject.worst("server")
    if worst is None or subject.budget.epsilons.accountant != "exact":
        return None
    rows = [row for row in subject.rows if row.pseudonym == worst.member.pseudonym]
    found = compose(as_releases(rows, subject.agreed.config.mechanisms), no_cohort)
    return None if found.is_empty or not found.is_noised else total_mu(found)


def _kinds(subject: Subject) -> list[list[LedgerRow]]:
    """Return the ledger's rows by what they cost; a bound that adapts is one kind."""
    kinds: dict[LedgerRow, list[LedgerRow]] = {}
    for row in subject.rows:
        ratio = float(f"{row.standard_deviation / row.clipping_norm:.11e}")
        kind = replace(
            row,
            run_id="",
            round_number=0,
            attempt=0,
            pseudonym="",
            status="reserved",
            standard_deviation=ratio,
            clipping_norm=1.0,
            cohort_drawn=None,
        )
        kinds.setdefault(kind, []).append(row)
    return list(kinds.values())


def _row(subject: Subject, rows: Sequence[LedgerRow]) -> tuple[Words, ...]:
    first = rows[0]
    ratio = first.standard_deviation / first.clipping_norm
    basis = subject.basis("these ledger rows; epsilon is of one of them, priced alone", rows)
    return (
        words(CHANNELS.get(first.channel, first.channel)),
        words(ranges([row.round_number for row in rows])),
        words(_protection(first)),
        _norms(rows, basis),
        words(Figure(f"{ratio:.4g}", ratio, basis) if ratio else "no noise"),
        words(_sampling(first)),
        _statuses(subject, rows, basis),
        _alone(subject, rows, basis),
    )


def _protection(row: LedgerRow) -> str:
    shares = "" if row.shares is None else f" of {row.shares} honest shares"
    law = f", {law_of(row)} noise{shares}" if row.standard_deviation else ""
    steps = "" if row.count == 1 else f", {row.count} noised steps"
    return f"{row.mechanism}{law}{steps}, {row.relation}"


def _norms(rows: Sequence[LedgerRow], basis: Basis) -> Words:
    low, high = (end(row.clipping_norm for row in rows) for end in (min, max))
    if high == float("inf"):
        return words("none")
    if low == high:
        return words(Figure(f"{high:.4g}", high, basis))
    return words(f"{low:.4g} to ", Figure(f"{high:.4g}", high, basis))


def _sampling(row: LedgerRow) -> str:
    if row.cohort_kind is not None:
        drawn = f"{row.cohort_size} of {row.cohort_population} clients, drawn in secret"
        return f"{drawn} ({row.cohort_kind}); for the observer only"
    if row.sampling == "none":
        return "none"
    return f"{row.sampling} batches, probability {row.sampling_probability:g}"


def _statuses(subject: Subject, rows: Sequence[LedgerRow], basis: Basis) -> Words:
    if subject.hides_draws:
        return words("withheld, as they tell who was drawn")
    counts = {
        name: sum(row.status == name for row in rows)
        for name in ("released", "reserved", "aborted")
    }
    said = {"released": "released", "reserved": "reserved (charged too)", "aborted": "free"}
    pieces: list[Piece] = []
    for name, count in counts.items():
        if count:
            pieces += [", "] if pieces else []
            pieces += [Figure(str(count), count, basis), f" {said[name]}"]
    return tuple(pieces)


def _alone(subject: Subject, rows: Sequence[LedgerRow], basis: Basis) -> Words:
    found = _price_alone(subject, rows)
    if found is None:
        return words(epsilon_figure(0.0, basis), ": nothing had left a client")
    return by_adversary(found, basis)


def prices_alone(subject: Subject) -> list[dict[str, float]]:
    """Return what one release of each kind costs alone against each adversary."""
    found = (_price_alone(subject, rows) for rows in _kinds(subject))
    return [prices for prices in found if prices is not None]


def _price_alone(subject: Subject, rows: Sequence[LedgerRow]) -> dict[str, float] | None:
    counted = [row for row in rows if row.status != "aborted"]
    if not counted:
        return None
    section = subject.agreed.config.privacy
    one = replace(counted[0], cohort_drawn=None if counted[0].cohort_kind is None else True)
    found = epsilons(
        as_releases([one], subject.agreed.config.mechanisms),
        section.target_delta,
        section.accountant,
    )
    return {name: getattr(found, name) for name in ADVERSARIES}


def by_adversary(values: dict[str, float], basis: Basis) -> Words:
    """Return an epsilon for each adversary, or one where all are the same."""
    if len(set(values.values())) == 1:
        return words(epsilon_figure(next(iter(values.values())), basis))
    pieces: list[Piece] = []
    for name, value in values.items():
        pieces += [f"{', ' if pieces else ''}{name} ", epsilon_figure(value, basis)]
    return tuple(pieces)
