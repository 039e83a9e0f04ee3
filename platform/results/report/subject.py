"""The subject of a report: a run whose records agree, its budget, and the basis of each number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from platform.agreement import Agreed
from platform.agreement.budgets import ClientBudget, RunBudget
from platform.agreement.reading import RunRecords
from platform.agreement.statements import guesses_of, unfinished_document
from platform.config.run import recorded_origins
from platform.disk.log_files import heads_file, kept_heads, known_key
from platform.errors import RunStopped
from platform.protection.sums import SecureTerms, terms_of_others
from platform.results.report.blocks import Basis, Figure, Place
from platform.rounds.documents import ADVERSARIES, in_rounds
from privacy import MechanismFacts
from storage import Database, LedgerRow


@dataclass(frozen=True, kw_only=True)
class LogView:
    """The log over all runs, recomputed from its rows and compared with the heads that were kept.

    Attributes:
        size: Number of leaves.
        root: Root of their tree, in hexadecimal.
        key: The public key that the kept heads are signed with; None if no key is known.
        heads: Number of heads that are kept beside the database.
        was_lost: Whether a new key took over without the signature of the key before it.
        charges: Position of each ledger row among the leaves, from 0; by run, place and client.
        events: Position of each audit entry among the leaves, by run and number.
    """

    size: int
    root: str
    key: str | None
    heads: int
    was_lost: bool
    charges: Mapping[tuple[str, Place, str], int]
    events: Mapping[tuple[str, int], int]

    @property
    def is_signed(self) -> bool:
        """Whether a known key signed at least one head."""
        return self.key is not None and self.heads > 0


def read_log(database: Database, run_ids: Iterable[str]) -> LogView:
    """Recompute the log from its rows, and return the places of some runs' records in it.

    Signatures and kept heads must hold, and a key that signs heads needs one.
    """
    trusted = known_key(database.path)
    kept = kept_heads(database.path, trusted)
    if trusted is not None and not kept.heads:
        raise RunStopped(f"{heads_file(database.path).name}: it has no head, but there is a key")
    head = database.verify_log(kept.heads)
    charges: dict[tuple[str, Place, str], int] = {}
    events: dict[tuple[str, int], int] = {}
    with database.unit_of_work(read_only=True) as uow:
        for run_id in sorted(set(run_ids)):
            for leaf in uow.log.charges(run_id=run_id):
                if leaf.kind == "charge":
                    place = leaf.round_number or 0, leaf.attempt or 0, leaf.channel or ""
                    key = (leaf.run_id, place, leaf.pseudonym or "")
                    charges[key] = leaf.position
            for entry in uow.audit.query(run=run_id):
                leaf = uow.log.of_event(run_id, entry.sequence)
                events[run_id, leaf.sequence or 0] = leaf.position
    return LogView(
        size=head.size,
        root=head.root.hex(),
        key=None if kept.key is None else kept.key.encode(),
        heads=len(kept.heads),
        was_lost=bool(kept.lost),
        charges=charges,
        events=events,
    )


@dataclass(frozen=True)
class Subject:
    """One run.

    Attributes:
        budget: The spending of each client, with the run's agreed records.
        log: The log that holds the records; None if it was not read.
    """

    budget: RunBudget
    log: LogView | None = None

    @property
    def agreed(self) -> Agreed:
        """The run's records."""
        return self.budget.agreed

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.agreed.records.run_id

    @property
    def facts(self) -> MechanismFacts:
        """The facts that the mechanism declares."""
        return self.agreed.config.mechanism.facts

    @property
    def is_void(self) -> bool:
        """Whether the claim is worthless because a seed in the configuration gives the noise."""
        return self.facts.claims and self.agreed.config.privacy.noise_source == "seeded"

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """The summary of a finished run; None before."""
        return self.agreed.summary

    @property
    def delta(self) -> float:
        """Delta of every epsilon."""
        return self.agreed.config.privacy.target_delta

    @property
    def rows(self) -> Sequence[LedgerRow]:
        """The ledger that counts for this run."""
        return self.agreed.spending.ledger

    @property
    def is_simulated(self) -> bool:
        """Whether all clients ran in the coordinator's process."""
        return self.agreed.config.federation is None

    @cached_property
    def terms(self) -> SecureTerms | None:
        """The terms of secure aggregation; None without it."""
        config = self.agreed.config
        return terms_of_others(config) if config.secure_aggregation.enabled else None

    @property
    def origins(self) -> Mapping[str, str]:
        """Origins of the run's plug-ins, by their roles."""
        return {
            role: ", ".join(f"{name} {text}" for name, text in sorted(told.items()))
            for item in self.agreed.records.entries("run.created")
            for role, told in recorded_origins(item.detail).items()
        }

    @property
    def hides_draws(self) -> bool:
        """Whether the ledger shows a secret draw, as ledgers of early versions do."""
        return any(row.cohort_drawn is False for row in self.rows)

    @cached_property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The documents of the rounds that are over."""
        document = self.summary or unfinished_document(self.agreed)
        found: Sequence[Mapping[str, Any]] = document["rounds"]
        return found

    @property
    def trained(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that trained."""
        return in_rounds(self.rounds)

    @property
    def epsilons(self) -> Mapping[str, float | None]:
        """The worst client's epsilon against each adversary; None until a release is priced."""
        if self.agreed.is_unpriced:
            return dict.fromkeys(ADVERSARIES)
        return {name: getattr(self.budget.epsilons, name) for name in ADVERSARIES}

    @cached_property
    def right_guesses(self) -> Mapping[str, float] | None:
        """The largest share of right guesses against each adversary; None as for `epsilons`."""
        return guesses_of(self.agreed)

    def worst(self, adversary: str) -> ClientBudget | None:
        """Return the client with the largest epsilon against an adversary; None without clients."""
        clients = self.budget.clients
        return max(clients, key=lambda one: getattr(one.epsilons, adversary), default=None)

    def rows_of(self, *pseudonyms: str) -> list[LedgerRow]:
        """Return the ledger rows of some clients."""
        wanted = set(pseudonyms)
        return [row for row in self.rows if row.pseudonym in wanted]

    def epsilon(self, adversary: str) -> Figure:
        """Return the run's epsilon against one adversary."""
        worst = self.worst(adversary)
        if worst is None:
            basis = Basis(what="an empty ledger: nothing has been charged", run_id=self.run_id)
        else:
            who = self.shown(worst.pseudonym)
            basis = self.basis(
                f"all charged ledger rows of client {who}, which has spent most, composed by "
                f"accountant {self.budget.epsilons.accountant} at delta {self.delta:g}",
                self.rows_of(worst.pseudonym),
                pseudonyms=(who,),
            )
        return basis.epsilon(self.epsilons[adversary])

    def shown(self, pseudonym: str) -> str:
        """Return a pseudonym, or a placeholder if the pseudonym would reveal a secret draw."""
        return "(withheld)" if self.hides_draws else pseudonym

    def basis(
        self, what: str, rows: Sequence[LedgerRow], pseudonyms: tuple[str, ...] | None = None
    ) -> Basis:
        """Return the basis of a number that follows from ledger rows."""
        run = self.agreed.spending.run_id
        # A charged row shows that a client was drawn, so secret draws name no client.
        client = "" if pseudonyms is None or self.hides_draws else f" --client {pseudonyms[0]}"
        return Basis(
            what=what,
            run_id=run,
            places=tuple(sorted({(row.round_number, row.attempt, row.channel) for row in rows})),
            pseudonyms=pseudonyms,
            check=f"sotto budget {run}{client}",
        )

    def stated(self, field: str) -> Basis:
        """Return the basis of a number in a finished run's summary."""
        return self._bound(self.agreed.records, f"{field} in summary.json", "run.finished")

    def configured(self, key: str) -> Basis:
        """Return the basis of a number in the configuration."""
        return self._bound(self.agreed.records, f"{key} in the configuration", "run.created")

    def of_round(self, number: int) -> Basis:
        """Return the basis of a number in a round's document."""
        what, endings = f"the document of round {number}", ("round.committed", "round.lost")
        return self._bound(self.agreed.spending, what, *endings, number=number)

    def _bound(
        self, records: RunRecords, what: str, *actions: str, number: int | None = None
    ) -> Basis:
        """Return the basis of a number in a document whose digest an audit entry holds."""
        found = (item.entry for item in records.entries(*actions) if item.entry.round == number)
        entries = tuple(entry.sequence for entry in found)
        return Basis(
            what=f"{what}, whose digest the run's audit log holds",
            run_id=records.run_id,
            entries=entries[:1],
            check=f"sotto audit verify --run {records.run_id}",
        )
