"""The releases of the clients, kind by kind, and the privacy budget: spent, reserved and left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from platform.agreement.budgets import ClientBudget
from platform.agreement.statements import lifetime_of, stopping_of
from platform.protection.charging import as_releases, law_of
from platform.results.report.blocks import (
    Basis,
    Block,
    Figure,
    Line,
    Piece,
    Plot,
    Section,
    Words,
    bullets,
    epsilon_text,
    facts,
    paragraph,
    ranges,
    table,
)
from platform.results.report.subject import Subject
from platform.rounds.documents import ADVERSARIES, json_number
from privacy import epsilons
from privacy.accounting.composition import compose, no_cohort
from privacy.accounting.gaussian import total_mu
from storage import LedgerRow

CHANNELS: Final = {"sum": "update, into the sum", "pool": "pool entry", "metrics": "measurement"}
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
RELEASE_COLUMNS: Final = (
    "Release",
    "Rounds",
    "Protected by",
    "Bound C",
    "Noise over C",
    "Sampling counted on",
    "Ledger rows",
    "Epsilon of one alone",
)
STATUSES: Final = {"released": "released", "reserved": "reserved (charged too)", "aborted": "free"}
MOST_NAMED: Final = 3
"""Most clients that a cell names; the basis of the row's numbers names all of them."""
NO_LIMIT: Final = "no limit, so nothing is counted down"


def releases_section(subject: Subject) -> Section:
    """Return each kind of release, with its noise and its price alone."""
    blocks: list[Block] = []
    if subject.facts.claims:
        accountant = subject.budget.epsilons.accountant
        how = "; ".join(f"{name}: {FLAVOURS.get(name, name)}" for name in accountant.split("+"))
        blocks.append(
            paragraph(
                "Every epsilon here is of approximate differential privacy at delta "
                f"{subject.delta:g}. It covers all releases of the unit that has spent most. Delta "
                f"is the probability that the promise does not cover. The accountant is {how}."
            )
        )
        worst = subject.worst("server")
        if worst is not None and accountant == "exact":
            rows = subject.rows_of(worst.pseudonym)
            found = compose(as_releases(rows, subject.agreed.config.mechanisms), no_cohort)
            if found.is_noised and not found.is_empty:
                mu = total_mu(found)
                blocks.append(
                    paragraph(
                        "In its own terms the run is mu-Gaussian-differentially private with mu = ",
                        Figure(f"{mu:.6g}", mu, subject.epsilon("server").basis),
                        " against an adversary who sees every release. This mu can be converted at "
                        "any other delta.",
                    )
                )
        accountants = {} if subject.summary is None else subject.summary["accountants"]
        if accountants:
            sentences: list[Words] = []
            for name, value in accountants.items():
                said = f"By accountant {name}, for the client that has spent most: "
                # An accountant without a number gives its reason.
                has_number = not isinstance(value, str) or value == "inf"
                stated = Figure(epsilon_text(value), value, subject.stated("accountants"))
                sentences.append((said, stated if has_number else value))
            blocks.append(bullets(*sentences))
    kinds = _kinds(subject)
    if not kinds:
        blocks.append(paragraph("No release of any client is in the ledger."))
    else:
        blocks += [
            table(
                "Each kind of release, and the epsilon of one of them alone",
                RELEASE_COLUMNS,
                (_release_row(subject, rows) for rows in kinds),
            ),
            paragraph(
                "C bounds the length of one unit's contribution. The noise column is the standard "
                "deviation of the noise as a multiple of C. The coordinator reserves a row before "
                "anything leaves a client; a row is free only if it is known that nothing left."
            ),
        ]
    return Section("releases", "What left the clients", tuple(blocks))


def _kinds(subject: Subject) -> list[list[LedgerRow]]:
    """Return ledger rows grouped by price; rows that differ in an adaptive bound are one kind."""
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


def _release_row(subject: Subject, rows: Sequence[LedgerRow]) -> tuple[Piece | Words, ...]:
    first = rows[0]
    ratio = first.standard_deviation / first.clipping_norm
    shares = "" if first.shares is None else f" of {first.shares} honest shares"
    law = f", {law_of(first)} noise{shares}" if first.standard_deviation else ""
    steps = "" if first.count == 1 else f", {first.count} noised steps"
    alone = _price_alone(subject, rows)
    basis = subject.basis("these ledger rows; epsilon is of one of them, priced alone", rows)
    low, high = (end(row.clipping_norm for row in rows) for end in (min, max))
    norm = Figure(f"{high:.4g}", high, basis)
    sampling = "none"
    if first.cohort_kind is not None:
        drawn = f"{first.cohort_size} of {first.cohort_population} clients, drawn in secret"
        sampling = f"{drawn} ({first.cohort_kind}); for the observer only"
    elif first.sampling != "none":
        sampling = f"{first.sampling} batches, probability {first.sampling_probability:g}"
    statuses: list[Piece] = []
    for name, said in STATUSES.items():
        if count := sum(row.status == name for row in rows):
            statuses += [", "] if statuses else []
            statuses += [basis.count(count), f" {said}"]
    return (
        CHANNELS.get(first.channel, first.channel),
        ranges(row.round_number for row in rows),
        f"{first.mechanism}{law}{steps}, {first.relation}",
        "none" if math.isinf(high) else norm if low == high else (f"{low:.4g} to ", norm),
        Figure(f"{ratio:.4g}", ratio, basis) if ratio else "no noise",
        sampling,
        "withheld, as they tell who was drawn" if subject.hides_draws else tuple(statuses),
        (basis.epsilon(0.0), ": nothing had left a client")
        if alone is None
        else by_adversary(alone, basis),
    )


def prices_alone(subject: Subject) -> list[dict[str, float]]:
    """Return the price of one release of each kind, alone, against each adversary."""
    found = (_price_alone(subject, rows) for rows in _kinds(subject))
    return [prices for prices in found if prices is not None]


def _price_alone(subject: Subject, rows: Sequence[LedgerRow]) -> dict[str, float] | None:
    counted = [row for row in rows if row.status != "aborted"]
    if not counted:
        return None
    config = subject.agreed.config
    one = replace(counted[0], cohort_drawn=None if counted[0].cohort_kind is None else True)
    releases = as_releases([one], config.mechanisms)
    found = epsilons(releases, config.privacy.target_delta, config.privacy.accountant)
    return {name: getattr(found, name) for name in ADVERSARIES}


def by_adversary(values: dict[str, float], basis: Basis) -> Words:
    """Return an epsilon for each adversary, or one epsilon if all are the same."""
    if len(set(values.values())) == 1:
        return (basis.epsilon(next(iter(values.values()))),)
    pieces: list[Piece] = []
    for name, value in values.items():
        pieces += [f"{', ' if pieces else ''}{name} ", basis.epsilon(value)]
    return tuple(pieces)


def spending_section(subject: Subject) -> Section:
    """Return the budget: of the run, round by round, of each client, over its lifetime, left."""
    blocks = (*_run(subject), *_rounds(subject), *_clients(subject), *_attempts(subject))
    return Section("budget", "The privacy budget", blocks)


def _run(subject: Subject) -> Iterator[Block]:
    config, clients = subject.agreed.config, subject.budget.clients
    stopping = stopping_of(subject.agreed.spending, config)
    holds = "nothing was charged that is claimed" if stopping is None else stopping["holds"]
    run_left: Piece | Words = NO_LIMIT
    lifetime_left: Piece | Words = NO_LIMIT
    if lefts := [one.left for one in clients if one.left is not None]:
        basis = subject.basis("limit less epsilon of the client that has spent most", subject.rows)
        run_left = (basis.left(min(lefts)), " for the client that has spent most")
    if lefts := [one.lifetime.left for one in clients if one.lifetime.left is not None]:
        basis = subject.basis("limit less epsilon over all runs, least over clients", subject.rows)
        lifetime_left = basis.left(min(lefts))
    against = "peers" if subject.facts.is_bare_to_server else "the server"

    def limit_of(key: str, limit: float | None) -> Piece | Words:
        if limit is None:
            return "none"
        stated = Figure(f"{limit:g}", limit, subject.configured(f"privacy.{key}"))
        return ("epsilon ", stated, f" against {against}")

    coming, fitting = subject.budget.coming, subject.budget.rounds_left
    forecast: Piece | Words = "none: the run will release nothing more"
    if coming is not None:
        planned = subject.configured("rounds").count(coming.rounds)
        forecast = (planned, " are to come, and no known limit ends the run before")
        if fitting is not None:
            what = "all charged ledger rows, and one more round as the last"
            left = subject.basis(what, subject.rows).count(fitting)
            forecast = (left, " at the noise of the rounds so far, and ", planned, " are to come")
    yield facts(
        *((f"Of the run, against {name}", subject.epsilon(name)) for name in ADVERSARIES),
        ("However the run ends", holds),
        ("Limit of the run", limit_of("target_epsilon", config.privacy.target_epsilon)),
        ("Left of the run's limit", run_left),
        ("Over a client's lifetime", _lifetime(subject)),
        ("Limit of a lifetime", limit_of("lifetime_budget", config.privacy.lifetime_budget)),
        ("Left of a lifetime's limit", lifetime_left),
        ("Rounds that still fit", forecast),
    )
    yield paragraph(
        f"A lifetime here is {lifetime_of(config)}. Epsilons do not add up: the rest of a limit is "
        "a difference, and does not promise that a release of that epsilon still fits."
    )
    for text in sorted({one.lifetime.holds or "" for one in clients} - {""}):
        yield paragraph(f"Over a client's lifetime {text}.")


def _lifetime(subject: Subject) -> Piece | Words:
    clients = subject.budget.clients
    problems = [one.lifetime.problem for one in clients if one.lifetime.problem is not None]
    if problems:
        return f"not known: {min(problems)}"
    if not clients or subject.agreed.is_unpriced:
        return "nothing was charged"
    most = max(
        clients, key=lambda one: -1.0 if one.lifetime.epsilon is None else one.lifetime.epsilon
    )
    runs = ", ".join(most.lifetime.runs) or "no run"
    who, count = subject.shown(most.pseudonym), len(most.lifetime.runs)
    basis = subject.basis(
        f"all charges of client {who} in {runs}, composed as one",
        subject.rows_of(most.pseudonym),
        pseudonyms=(who,),
    )
    plural = "" if count == 1 else "s"
    said = f" for the client that has spent most, in {count} run{plural}"
    return (basis.epsilon(most.lifetime.epsilon), said)


def _rounds(subject: Subject) -> Iterator[Block]:
    if not subject.rounds:
        yield paragraph("No round is over.")
        return
    # Adversaries with the same points share a line.
    lines: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name in ADVERSARIES:
        spent = ((float(d["round"]), float(d["epsilon"][name])) for d in subject.rounds)
        points = tuple((number, value) for number, value in spent if math.isfinite(value))
        lines.setdefault(points, []).append(name)
    infinite = lines.pop((), [])
    if lines:
        drawn = tuple(Line(", ".join(names), points) for points, names in lines.items())
        ends = "; ".join(f"{line.label}: {epsilon_text(line.points[-1][1])}" for line in drawn)
        target = subject.agreed.config.privacy.target_epsilon
        missing = f" Infinite, so not drawn: {', '.join(infinite)}." if infinite else ""
        yield Plot(
            title="Epsilon spent, round by round",
            says=f"Cumulative epsilon after the last round shown: {ends}.{missing}",
            across="Round",
            up="Epsilon",
            lines=drawn,
            limit=None if target is None else (target, f"limit {target:g}"),
        )
    rows: list[tuple[Piece | Words, ...]] = []
    for document in subject.rounds:
        number, secret = int(document["round"]), document["cohort"] is None
        stated = subject.of_round(number)
        basis = subject.basis(
            f"all charged ledger rows up to round {number}, the worst client's",
            [row for row in subject.rows if row.round_number <= number],
        )
        counts = (document["cohort"], document["dropped"])
        accuracies = (document["accuracy"][which] for which in ("mean", "worst"))
        rows.append(
            (
                f"{number}{' (collection)' if document.get('phase') == 'collection' else ''}",
                *("secret" if secret else stated.count(count) for count in counts),
                *("not measured" if one is None else stated.share(one) for one in accuracies),
                by_adversary({n: float(document["epsilon"][n]) for n in ADVERSARIES}, basis),
            )
        )
    yield table(
        "Round by round: epsilon is cumulative, so each row covers all rows above it; it holds for "
        "a row that is chosen before the run",
        ("Round", "Clients", "Lost", "Mean accuracy", "Worst client", "Epsilon"),
        rows,
    )


def _clients(subject: Subject) -> Iterator[Block]:
    if subject.hides_draws:
        yield paragraph(
            "This report shows no single clients. That would reveal who was drawn into which "
            "cohort, and the epsilon against the observer holds only while that is secret."
        )
        return
    alike: dict[tuple[Any, ...], list[ClientBudget]] = {}
    for one in subject.budget.clients:
        spent = tuple(json_number(getattr(one.epsilons, name)) for name in ADVERSARIES)
        reserved = (one.reserved_epsilon, *sorted(one.reserved_releases.items()))
        life = (one.lifetime.epsilon, one.lifetime.left, one.lifetime.problem)
        key = (*spent, reserved, one.left, *life, one.gone)
        alike.setdefault(key, []).append(one)
    rows: list[tuple[Piece | Words, ...]] = []
    for group in alike.values():
        first, names = group[0], tuple(one.pseudonym for one in group)
        basis = subject.basis(
            "the charged ledger rows of each of these clients",
            subject.rows_of(*names),
            pseudonyms=names,
        )
        known = subject.facts.claims or first.releases > 0
        named = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} clients"
        life_spent = first.lifetime.epsilon
        left, life_left = (
            "no limit" if value is None else basis.left(value)
            for value in (first.left, first.lifetime.left)
        )
        rows.append(
            (
                f"{named}{'; take part no more' if first.gone else ''}",
                by_adversary({name: getattr(first.epsilons, name) for name in ADVERSARIES}, basis)
                if known
                else "not known yet",
                basis.epsilon(first.reserved_epsilon) if first.reserved_releases else "none",
                left,
                "not known" if life_spent is None else basis.epsilon(life_spent),
                life_left,
            )
        )
    if rows:
        yield table(
            "Client by client, those that stand alike in one row",
            ("Clients", "Epsilon", "Reserved only", "Left of run", "Lifetime", "Left of lifetime"),
            rows,
        )


def _attempts(subject: Subject) -> Iterator[Block]:
    at: dict[tuple[int, int], list[LedgerRow]] = {}
    for row in subject.rows:
        at.setdefault((row.round_number, row.attempt), []).append(row)
    rows: list[tuple[Piece, ...]] = []
    for one, cost in subject.budget.attempts:
        basis = subject.basis("the rows of this attempt", at.get(one.place, ()))
        place, why = f"round {one.round_number}, attempt {one.attempt}", one.why or "it goes on"
        charged = basis.count(one.charged)
        rows.append((place, one.state, why, charged, basis.epsilon(cost)))
    if rows:
        yield table(
            "Attempts that gave no result, and by how much less epsilon would be without each",
            ("Round and attempt", "State", "Why", "Clients charged", "Cost"),
            rows,
        )
