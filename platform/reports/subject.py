"""What a report is about: a run whose records agree, its budget, and what sections ask of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from platform.agreement import Agreed
from platform.agreement.attempts import is_charged
from platform.agreement.budgets import ClientBudget, RunBudget
from platform.agreement.reading import RunRecords
from platform.agreement.statements import unfinished_document
from platform.protection.secure_terms import SecureTerms, terms_of_others
from platform.reports.blocks import Basis, Figure, Place, epsilon_text
from platform.rounds.documents import ADVERSARIES, in_rounds, json_number
from privacy import MechanismFacts, ReleaseKey
from storage import LedgerRow


@dataclass(frozen=True, kw_only=True)
class LogView:
    """A log that was recomputed from its rows and held against the heads that were kept of it.

    Attributes:
        size: How many leaves it has.
        root: Of their tree, in hexadecimal.
        key: The public key by which the kept heads are signed; None where none is known.
        heads: How many heads are kept beside the database.
        was_lost: Whether a key took over that the one before it did not sign.
        charges: Which leaf each ledger row is, from 0.
        events: Which leaf each entry of an audit log is, by run and number.
    """

    size: int
    root: str
    key: str | None
    heads: int
    was_lost: bool
    charges: Mapping[ReleaseKey, int]
    events: Mapping[tuple[str, int], int]

    @property
    def is_signed(self) -> bool:
        """Whether some head of it is signed by a key that is known."""
        return self.key is not None and self.heads > 0


@dataclass(frozen=True)
class Subject:
    """One run.

    Attributes:
        budget: What was spent, client by client, with the run's agreed records.
        log: The log that its records are in; None where nobody read it.
    """

    budget: RunBudget
    log: LogView | None = None

    @property
    def agreed(self) -> Agreed:
        """The run's records."""
        return self.budget.agreed

    @property
    def run_id(self) -> str:
        """The run."""
        return self.agreed.records.run_id

    @property
    def facts(self) -> MechanismFacts:
        """What the mechanism declares."""
        return self.agreed.config.mechanism.facts

    @property
    def is_void(self) -> bool:
        """Whether the claim protects nobody, because anyone with the seed can compute the noise."""
        return self.facts.claims and self.agreed.config.privacy.noise_source == "seeded"

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What a finished run states of itself."""
        return self.agreed.summary

    @property
    def delta(self) -> float:
        """Of every epsilon."""
        return self.agreed.config.privacy.target_delta

    @property
    def rows(self) -> Sequence[LedgerRow]:
        """The ledger that counts."""
        return self.agreed.spending.ledger

    @property
    def is_simulated(self) -> bool:
        """Whether all clients were in the coordinator's process."""
        return self.agreed.config.federation is None

    @cached_property
    def terms(self) -> SecureTerms | None:
        """What secure sums withstand; None without them."""
        config = self.agreed.config
        return terms_of_others(config) if config.secure_aggregation.enabled else None

    @property
    def withstands_liars(self) -> bool:
        """Whether secure sums withstand a server that lies."""
        return self.terms is not None and self.terms.active

    @property
    def method_origin(self) -> str | None:
        """Return where a method from outside the package came from; None for one of its own."""
        for item in self.agreed.records.entries("run.created"):
            told = item.detail.get("method")
            if isinstance(told, Mapping):
                return ", ".join(f"{name} {text}" for name, text in sorted(told.items()))
        return None

    @property
    def hides_draws(self) -> bool:
        """Whether the ledger tells who was drawn in secret, as those of early versions do."""
        return any(row.cohort_drawn is False for row in self.rows)

    @cached_property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that are over, as they are shown."""
        document = self.summary or unfinished_document(self.agreed)
        found: Sequence[Mapping[str, Any]] = document["rounds"]
        return found

    @property
    def trained(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that trained."""
        return in_rounds(self.rounds)

    @property
    def epsilons(self) -> Mapping[str, float | None]:
        """Against each adversary, the worst client's; None where no release has told it yet."""
        if self.agreed.is_unpriced:
            return dict.fromkeys(ADVERSARIES)
        return {name: getattr(self.budget.epsilons, name) for name in ADVERSARIES}

    def worst(self, adversary: str) -> ClientBudget | None:
        """Return the client whose epsilon against an adversary is stated; None without clients."""
        clients = self.budget.clients
        return max(clients, key=lambda one: getattr(one.epsilons, adversary), default=None)

    def epsilon(self, adversary: str) -> Figure:
        """Return a run's epsilon against one adversary."""
        value = self.epsilons[adversary]
        return epsilon_figure(value, self._basis_of(adversary))

    def _basis_of(self, adversary: str) -> Basis:
        worst = self.worst(adversary)
        if worst is None:
            return self.nothing_charged
        name = worst.member.pseudonym
        return self.basis(
            f"all charged ledger rows of client {self.shown(name)}, which has spent most, composed "
            f"by accountant {self.budget.epsilons.accountant} at delta {self.delta:g}",
            [row for row in self.rows if row.pseudonym == name],
            pseudonyms=(self.shown(name),),
        )

    def shown(self, pseudonym: str) -> str:
        """Return a pseudonym, or a placeholder if the pseudonym would reveal a secret draw."""
        return "(withheld)" if self.hides_draws else pseudonym

    @property
    def nothing_charged(self) -> Basis:
        """What a number rests on before anything was charged."""
        return Basis(what="an empty ledger: nothing has been charged", run_id=self.run_id)

    def basis(
        self, what: str, rows: Sequence[LedgerRow], pseudonyms: tuple[str, ...] | None = None
    ) -> Basis:
        """Return what a number rests on that follows from ledger rows."""
        run = self.agreed.spending.run_id
        places = {(row.round_number, row.attempt, row.channel) for row in rows}
        # In a secret draw a row says by being charged who was drawn.
        client = "" if pseudonyms is None or self.hides_draws else f" --client {pseudonyms[0]}"
        return Basis(
            what=what,
            run_id=run,
            places=tuple(sorted(places)),
            pseudonyms=pseudonyms,
            check=f"python -m platform.coordinator budget {run}{client}",
        )

    def stated(self, field: str) -> Basis:
        """Return what a number rests on that a finished run's summary states."""
        return self._bound(self.agreed.records, f"{field} in summary.json", "run.finished")

    def configured(self, key: str) -> Basis:
        """Return what a number rests on that the configuration states."""
        return self._bound(self.agreed.records, f"{key} in the configuration", "run.created")

    def of_round(self, number: int) -> Basis:
        """Return what a number rests on that a round's document states."""
        what, endings = f"the document of round {number}", ("round.committed", "round.lost")
        return self._bound(self.agreed.spending, what, *endings, number=number)

    def _bound(
        self, records: RunRecords, what: str, *actions: str, number: int | None = None
    ) -> Basis:
        """Return a document that an entry of the audit log holds the digest of."""
        found = (item.entry for item in records.entries(*actions) if item.entry.round == number)
        entries = tuple(entry.sequence for entry in found)
        return Basis(
            what=f"{what}, whose digest the run's audit log holds",
            run_id=records.run_id,
            entries=entries[:1],
            check=f"python -m platform.coordinator audit verify --run {records.run_id}",
        )

    def reserving(self, place: Place) -> int | None:
        """Return the number of the audit entry that bound the rows of a place before release."""
        for item in self.agreed.spending.entries("release.reserved"):
            entry = item.entry
            if (entry.round, item.detail.get("attempt"), entry.channel) == place:
                return entry.sequence
        return None

    @property
    def charged_rows(self) -> Sequence[LedgerRow]:
        """The ledger rows that are charged."""
        return [row for row in self.rows if is_charged(row)]


def epsilon_figure(value: float | None, basis: Basis) -> Figure:
    """Return an epsilon as a number that rests on something."""
    stated = None if value is None or math.isnan(value) else json_number(value)
    return Figure(epsilon_text(value), stated, basis)
