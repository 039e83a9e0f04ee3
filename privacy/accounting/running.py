"""A ledger that is priced round after round, at a cost that does not grow with the rounds.

What a release costs depends on nothing but what it is, so a client's ledger is kept as what it was
charged for and how often, and clients that were charged alike are priced once. Every number is the
one that `epsilons` and `claimed_epsilon` give for all the rows: only equal rows are counted instead
of repeated, and that a draw was thrown away is remembered by round and attempt.

It holds what it was told. Whoever keeps one must know that the stored ledger is still the one that
it was told of, or read that anew.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from privacy.accounting.adversaries import Epsilons, claimed_of, epsilons_of
from privacy.accounting.composition import round_digits
from privacy.accounting.headline import Accountant, EpsilonResult
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
        """Return what ledgers of different runs hold together, as a new one.

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
        """Return what clients are charged each of whom may be any one client of each run here.

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
