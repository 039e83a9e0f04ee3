"""The ledger of a running run, and the check that stops it before it overspends.

`RunningLedger` is priced round after round, at a cost that does not grow with the rounds. What a
release costs depends on nothing but what it is, so a client's ledger is kept as what it was charged
for and how often, and clients that were charged alike are priced once. Every number is the one that
`epsilons` and `claimed_epsilon` give for all the rows: only equal rows are counted instead of
repeated, and that a draw was thrown away is remembered by round and attempt.

It holds what it was told. Its owner must know that the stored ledger has not changed since, or read
the stored ledger anew.

`require_affordable` asks the accountant before anything is sent. A limit also holds for releases
that are chosen one by one by what earlier ones gave where it is a *filter*, a limit on one number
that adds up. For plain Gaussian releases epsilon at a fixed delta grows with mu alone, so a limit
on it is one on the sum of mu^2, and what is composed fully adaptively under such a limit costs what
that mu costs (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023; for Renyi divergences of
one order Feldman and Zrnic 2021). Of equal releases a limit allows a certain number, and fewer of
them are a part of that many. For mixed kinds epsilon is minimised over orders, or computed from a
whole distribution, and no theorem here makes a limit on it a filter.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, get_args

from privacy._validate import require_positive, require_probability
from privacy.accounting.accountants import Accountant, EpsilonResult
from privacy.accounting.adversaries import Adversary, Epsilons, claimed_of, epsilons_of, worst_of
from privacy.accounting.composition import compose, no_cohort, round_digits
from privacy.accounting.guesses import log_odds
from privacy.errors import BudgetExhausted
from privacy.events import Release

_Facts = tuple[object, ...]
_Ledger = Mapping[_Facts, int]


class RunningLedger:
    """What clients were charged for, counted."""

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        """Start from these rows, of any number of clients and in any order."""
        self._clients: dict[str, Counter[_Facts]] = defaultdict(Counter)
        # By run and round the first attempt, and the last that was charged, if any.
        self._draws: dict[tuple[str, int], tuple[int, int]] = {}
        self._redrawn: set[str] = set()
        # One row of each kind, from which rows that say the same are made again.
        self._samples: dict[_Facts, Release] = {}
        self.add(releases)

    def add(self, releases: Iterable[Release]) -> None:
        """Count further rows, each once."""
        for release in releases:
            facts = self._facts(release)
            self._clients[release.pseudonym][facts] += release.count
            self._note_draw(release)

    @classmethod
    def joined(
        cls, ledgers: Iterable[RunningLedger], pseudonyms: Collection[str] | None = None
    ) -> RunningLedger:
        """Return a new ledger with the releases of several runs' ledgers.

        Args:
            ledgers: The ledgers.
            pseudonyms: Of these clients only; None takes everybody.
        """
        found = cls()
        for ledger in ledgers:
            found._samples.update(ledger._samples)
            found._draws.update(ledger._draws)
            found._redrawn |= ledger._redrawn
            for name in ledger._clients if pseudonyms is None else pseudonyms:
                if name in ledger._clients:
                    found._clients[name].update(ledger._clients[name])
        return found

    def charged_to_all(self, pseudonyms: Iterable[str]) -> RunningLedger:
        """Return the charge of a client that may be any one client of each run here.

        A kind of row names its run, so the most that one client was charged for each kind bounds
        what any of them was charged: a ledger with more rows is never priced lower.

        Args:
            pseudonyms: Who is charged.
        """
        most: Counter[_Facts] = Counter()
        for ledger in self._clients.values():
            most |= ledger
        found = RunningLedger.joined((self,), ())
        found._clients.update({name: Counter(most) for name in pseudonyms})
        return found

    def releases_of(self, pseudonym: str) -> list[Release]:
        """Return what one client was charged for: a row of each kind, with how often."""
        return [self._row(*kind) for kind in self._clients.get(pseudonym, Counter()).items()]

    def epsilons(self, delta: float, accountant: Accountant = "auto") -> Epsilons:
        """Return what `epsilons` says of all rows.

        Raises:
            UnsupportedEvent: As for `epsilons`.
            ValueError: `delta` or `accountant` is not valid.
        """
        clients = self._distinct(self._clients.values())
        return epsilons_of(clients, self._redrawn, delta, accountant)

    def epsilons_of_each(
        self, delta: float, accountant: Accountant = "auto"
    ) -> dict[str, Epsilons]:
        """Return what `epsilons` says of each client alone; equal ledgers are priced once.

        Raises:
            UnsupportedEvent: As for `epsilons`.
            ValueError: `delta` or `accountant` is not valid.
        """
        priced: dict[frozenset[tuple[_Facts, int]], Epsilons] = {}
        found: dict[str, Epsilons] = {}
        for name, ledger in self._clients.items():
            kind = frozenset(ledger.items())
            if kind not in priced:
                rows = [[self._row(facts, count) for facts, count in kind]]
                priced[kind] = epsilons_of(rows, self._redrawn, delta, accountant)
            found[name] = priced[kind]
        return found

    def right_guesses(
        self, accountant: Accountant = "auto", prior: float = 0.5
    ) -> dict[Adversary, float]:
        """Return the largest share of right guesses about any client, by adversary.

        Somebody knows all else, and holds one of two neighbouring worlds for real with probability
        `prior`. The number follows from all that the accountant proves, not from one epsilon.

        Raises:
            UnsupportedEvent: As for `epsilons`.
            ValueError: `accountant` or `prior` is not valid.
        """
        kinds = {frozenset(one.items()): one for one in self._clients.values()}.values()
        # Whoever was charged for a part of what another was charged for is never priced higher.
        clients = self._distinct(one for one in kinds if not any(one < more for more in kinds))
        require_probability(prior=prior)
        odds = worst_of(
            clients, self._redrawn, accountant, lambda one: log_odds(one, prior, accountant)
        )
        return {name: 1.0 / (1.0 + math.exp(-getattr(odds, name))) for name in get_args(Adversary)}

    def claimed_with(
        self, planned: Iterable[Release], delta: float, accountant: Accountant = "auto"
    ) -> EpsilonResult:
        """Return what `claimed_epsilon` says of all rows and of these, which are not added.

        Raises:
            UnsupportedEvent: As for `claimed_epsilon`.
            ValueError: `delta` or `accountant` is not valid.
        """
        further: dict[str, Counter[_Facts]] = defaultdict(Counter)
        for release in planned:
            further[release.pseudonym][self._facts(release)] += release.count
        others = (ledger for name, ledger in self._clients.items() if name not in further)
        both = (self._clients.get(name, Counter()) + added for name, added in further.items())
        return claimed_of(self._distinct((*others, *both)), delta, accountant)

    def _facts(self, release: Release) -> _Facts:
        """Return all that a price depends on, but for how often and when."""
        size: tuple[float, ...] = (release.standard_deviation, release.clipping_norm)
        if all(size):
            # Only their ratio is priced, so that a norm that adapts makes no new kind of row.
            size = (round_digits(release.standard_deviation / release.clipping_norm), 1.0)
        facts = (
            *(release.run_id, release.mechanism, *size, release.relation, release.channel),
            *(release.sampling, release.sampling_probability, release.charged),
            *(release.law, release.cohort),
        )
        if facts not in self._samples:
            self._samples[facts] = release
        return facts

    def _note_draw(self, release: Release) -> None:
        if not (release.mechanism.may_amplify and release.channel == "sum"):
            return
        key = release.run_id, release.round_number
        first, charged = self._draws.get(key, (release.attempt, -1))
        first = min(first, release.attempt)
        charged = max(charged, release.attempt if release.charged else -1)
        self._draws[key] = first, charged
        if charged > first:
            self._redrawn.add(release.run_id)

    def _distinct(self, ledgers: Iterable[_Ledger]) -> Sequence[Sequence[Release]]:
        kinds = {frozenset(ledger.items()) for ledger in ledgers}
        return [[self._row(facts, n) for facts, n in kind] for kind in kinds] or [[]]

    def _row(self, facts: _Facts, count: int) -> Release:
        return dataclasses.replace(self._samples[facts], count=count)


_TOLERANCE = 1e-9
"""Relative; only so that a run calibrated to its budget is not stopped by the last bit."""
MOST_ROUNDS = 10_000
"""Up to which rounds are counted that would still fit."""


def filter_of(releases: Iterable[Release]) -> Literal["gaussian", "equal"] | None:
    """Return the theorem by which a limit on these releases is a privacy filter, None without one.

    Args:
        releases: The ledger of one client.

    Raises:
        UnsupportedEvent: If they have no composition.
    """
    found = compose(releases, no_cohort)
    if found.integer_terms or found.is_sampled:
        return "equal" if len(found.terms) + len(found.integer_terms) == 1 else None
    return "gaussian" if found.is_noised else None


def require_affordable(
    spent: RunningLedger | Iterable[Release],
    planned: Iterable[Release],
    delta: float,
    *,
    target_epsilon: float,
    accountant: Accountant = "auto",
    limit_name: str = "privacy.target_epsilon",
) -> None:
    """Raise unless every client stays within `target_epsilon` after the planned releases.

    Call it before anything of the round is sent. The adversary is the strongest one against whom
    a client's mechanisms claim anything, see `claimed_epsilon`.

    Args:
        spent: The ledger so far, reservations included.
        planned: What the next round would add; a resend is not a new release and is not planned.
        delta: Strictly between 0 and 1.
        target_epsilon: What the whole ledger may cost.
        accountant: One by name, or "auto".
        limit_name: The key of the configuration that sets the target, for the message.

    Raises:
        BudgetExhausted: The planned releases would pass the target by more than 1e-9 of it.
        UnsupportedEvent: A release cannot be bounded, so nothing can be promised.
        ValueError: `delta` or `target_epsilon` is not valid.
    """
    require_positive(target_epsilon=target_epsilon)
    ledger = spent if isinstance(spent, RunningLedger) else RunningLedger(spent)
    cost = ledger.claimed_with(planned, delta, accountant).epsilon
    if cost > target_epsilon * (1.0 + _TOLERANCE):
        raise BudgetExhausted(
            f"{limit_name} is {target_epsilon:g} and the planned releases would bring "
            f"epsilon to {cost:.6g} at delta {delta:g}; nothing was sent",
            epsilon=cost,
            target_epsilon=target_epsilon,
        )


def affordable_rounds(
    spent: RunningLedger,
    planned: Iterable[Release],
    delta: float,
    *,
    target_epsilon: float,
    accountant: Accountant = "auto",
    likely: int = 1,
    most: int = MOST_ROUNDS,
) -> int:
    """Return how many times the planned releases still fit the target, by `require_affordable`.

    The accountant is asked about each number, as epsilon does not grow evenly: what is left of a
    target, divided by the price of one round, is not how many rounds are left.

    Args:
        spent: The ledger so far, reservations included.
        planned: What one round would add.
        delta: Strictly between 0 and 1.
        target_epsilon: What the whole ledger may cost.
        accountant: One by name, or "auto".
        likely: Where the search begins; it takes few steps if the answer is near.
        most: The largest answer: so many, or more.

    Raises:
        UnsupportedEvent: A release cannot be bounded, so nothing can be promised.
        ValueError: `delta` or `target_epsilon` is not valid, or nothing is planned.
    """
    once = list(planned)
    if not once:
        raise ValueError("planned is empty; what costs nothing fits without end")

    def fits(rounds: int) -> bool:
        added = [dataclasses.replace(row, count=row.count * rounds) for row in once]
        try:
            require_affordable(
                spent, added, delta, target_epsilon=target_epsilon, accountant=accountant
            )
        except BudgetExhausted:
            return False
        return True

    return _last_fit(fits, min(max(likely, 1), most), most)


def _last_fit(fits: Callable[[int], bool], start: int, most: int) -> int:
    """Return the largest number up to `most` that fits, 0 if 1 does not: gallop, then bisect."""
    low, high, step = start, start, 1
    if fits(start):
        # `low` fits; look for a `high` that does not.
        while low == high:
            if low >= most:
                return most
            high = min(low + step, most)
            if fits(high):
                low, step = high, 2 * step
    else:
        # `high` does not fit; look for a `low` that does.
        while low == high:
            low = max(high - step, 0)
            if low and not fits(low):
                high, step = low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
