"""The coordinator's courier: it hands each client a receipt of what the client was charged.

The courier is a transport around another transport, so it adds no stage and no wait. A client gets
its receipt with the first message of a round, and with the message that asks it to personalise.
Clients' answers say how far they have seen the log. The coordinator keeps these answers with the
log's heads, and finds them there when it is started again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from platform.disk.log_files import KeptChanges, add_note, kept_notes, log_signer
from platform.disk.opening import Records
from platform.errors import CoordinatorBehind, ProtocolError
from platform.protection.charging import Limits, as_releases
from platform.rounds.run import Roll
from platform.wire.codec import Attempt, Envelope, peek
from platform.wire.messages import Stage
from platform.wire.receipt_messages import (
    ADVERSARIES,
    MOST_SENT,
    Receipt,
    ReceiptLeaf,
    UploadDigest,
    Witnessed,
    enclose,
    sign_receipts,
    unclose_answer,
)
from platform.wire.transport import ClientId, Dropout, Transport
from privacy import Authentication, Epsilons, RunningLedger
from privacy.transparency import (
    Checkpoint,
    NoteKey,
    NoteSigner,
    SignedNote,
    decode_checkpoint,
    is_change,
    read_note,
    read_signature,
    require_cosigned,
    sign_checkpoint,
)
from storage import Leaf, UnitOfWork
from storage.ledger import ledger_key
from storage.log import ledger_data
from storage.merkle import MerkleTree

FIRST: Final = frozenset({"invitation", "pool_notice", "parting"})
"""Messages that begin a round, or come after the last one."""

_Place = tuple[str, int, int]
"""Kind, round and attempt of the messages of one stage."""


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """The content of the log at the beginning of a stage.

    Attributes:
        attempt: The attempt of the newest committed round.
        size: How many leaves the log has.
        signer: The log's key.
        note: The log's head, signed once for the stage.
        changes: How the log's key changed.
        new: By pseudonym, the leaves since the last standing, with their contents.
        since: The log's size at the last standing, 0 before any.
        epsilons: By pseudonym, the client's epsilons.
    """

    place: _Place
    attempt: Attempt
    size: int
    signer: NoteSigner
    note: str
    changes: tuple[str, ...]
    new: Mapping[str, Sequence[tuple[Leaf, bytes]]]
    since: int
    epsilons: Mapping[str, Epsilons]

    @cached_property
    def key(self) -> str:
        """The public half of the log's key, as text."""
        return self.signer.key.encode()

    @cached_property
    def opened(self) -> SignedNote:
        """The head in its parts."""
        return read_note(self.note)


_Digests = tuple[UploadDigest, ...]


@dataclass(kw_only=True)
class Courier:
    """A transport that carries receipts with the messages of another.

    The digests of uploads live in this process only. Where vectors travel in the clear and a pool
    holds the same vectors, digests of uploads in a file would tell which client gave which entry.

    Attributes:
        budget: The delta and the accountant of the epsilons that receipts state.
        records: Where the log is.
    """

    transport: Transport
    run_id: str
    roll: Roll
    budget: Limits
    records: Records
    _seen: dict[ClientId, int] = field(init=False, repr=False)
    _standing: _Standing | None = field(default=None, init=False, repr=False)
    _spent: RunningLedger = field(default_factory=RunningLedger, init=False, repr=False)
    _rounds: int = field(default=0, init=False, repr=False)
    _changes: KeptChanges = field(init=False, repr=False)
    _uploads: dict[ClientId, _Digests] = field(default_factory=dict, init=False, repr=False)
    _told: Mapping[ClientId, _Digests] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Find out how far clients have seen the log."""
        self._changes = KeptChanges(self.records.file)
        sizes = witnessed_sizes(self.records.file)
        self._seen = {c: sizes.get(p, 0) for c, p in self.roll.pseudonyms.items()}

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message, some with a receipt, and return the clients' answers."""
        carried = self._with_receipts(messages)
        answers = self.transport.exchange(stage, carried, deadline)
        if stage == "train":
            self._remember(answers)
        lines: list[str] = []
        opened: dict[ClientId, bytes | Dropout] = {}
        for client, answer in answers.items():
            opened[client] = answer
            if isinstance(answer, Dropout):
                continue
            try:
                opened[client], said = unclose_answer(answer)
            except ProtocolError:
                opened[client] = Dropout("the answer does not parse")
                continue
            if said is not None:
                self._note(client, said, lines)
        if lines and self._standing is not None:
            add_note(self.records.file, f"{self._standing.note}{''.join(lines)}")
        return opened

    def _remember(self, answers: Mapping[ClientId, bytes | Dropout]) -> None:
        """Remember the uploads among these answers."""
        for client, answer in answers.items():
            if isinstance(answer, Dropout):
                continue
            try:
                kind, envelope = peek(answer)
            except ProtocolError:
                continue
            if kind == "upload":
                digest = hashlib.sha256(answer).digest()
                upload = UploadDigest(envelope.round_number, envelope.attempt, digest)
                self._uploads[client] = (*self._uploads.get(client, ()), upload)[-MOST_SENT:]

    def _with_receipts(self, messages: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
        """Return the messages, with a receipt on each whose kind is in `FIRST`."""
        places: dict[ClientId, _Place | None] = {}
        for client, message in messages.items():
            kind, envelope = peek(message)
            begins = kind in FIRST
            places[client] = (kind, envelope.round_number, envelope.attempt) if begins else None
        first = next(filter(None, places.values()), None)
        if first is None:
            return messages
        with self.records.read() as uow:
            standing = self._standing_at(uow, first)
            told = [c for c in messages if places[c] and c in self.roll.pseudonyms]
            if standing is None or not told:
                return messages
            tree = uow.log.tree(standing.size)
            # Most clients have seen the log at the same size.
            proof = cache(tree.consistency_proof)
            receipts = [self._receipt(uow, tree, standing, c, proof=proof) for c in told]
        signed = sign_receipts(receipts, standing.signer.signed)
        self._told = {c: r.uploads for c, r in zip(told, receipts, strict=True)}
        enclosed = {c: enclose(messages[c], r) for c, r in zip(told, signed, strict=True)}
        return {client: enclosed.get(client, message) for client, message in messages.items()}

    def _standing_at(self, uow: UnitOfWork, place: _Place) -> _Standing | None:
        """Return what the log says at a stage, read once for all messages; None before a round."""
        now = self._standing
        if now is not None and now.place == place:
            return now
        attempt = uow.rounds.newest(self.run_id)
        if attempt is None:
            self._standing = None
            return None
        tree, signer = uow.log.tree(), log_signer(self.records.file)
        # The charges of this stage's own attempt were written before the stage began.
        numbers = range(self._rounds + 1, attempt[0] + 2)
        rows = {ledger_key(r): r for r in uow.ledger.rows_of_rounds(self.run_id, numbers)}
        over = [row for row in rows.values() if row.round_number <= attempt[0]]
        self._spent.add(as_releases(over, self.budget.mechanisms))
        self._rounds = attempt[0]
        before = 0 if now is None else now.size
        new: dict[str, list[tuple[Leaf, bytes]]] = defaultdict(list)
        for leaf in uow.log.leaves(before, tree.size) if before else ():
            if leaf.kind != "event" and leaf.pseudonym is not None:
                row = rows.get(
                    (leaf.run_id, leaf.round_number, leaf.attempt, leaf.pseudonym, leaf.channel)  # type: ignore[arg-type]
                )
                if row is not None:
                    new[leaf.pseudonym].append((leaf, ledger_data(leaf, row)))
        self._standing = _Standing(
            place=place,
            attempt=attempt,
            size=tree.size,
            signer=signer,
            note=sign_checkpoint(Checkpoint(signer.name, tree.size, tree.root()), signer),
            changes=self._changes.all(),
            new=new,
            since=before,
            epsilons=self._spent.epsilons_of_each(self.budget.delta, self.budget.accountant),
        )
        return self._standing

    def _note(self, client: ClientId, said: Witnessed, lines: list[str]) -> None:
        """Remember how far a client has seen the log, if the client proves it."""
        standing = self._standing
        if standing is None or said.size > standing.size:
            return
        if not said.cosignature:
            # The client asks for a proof from there, next time.
            self._seen[client] = said.size
            return
        try:
            line = read_signature(said.cosignature.removesuffix("\n"))
            if line.encode() != said.cosignature:
                raise Authentication("the cosignature is not one line")
            key, enrolled = NoteKey.decode(said.key), self.roll.identities.get(client)
            if key.name != self.roll.pseudonyms[client] or enrolled not in (None, key.public):
                raise Authentication("the cosignature is by another key")
            require_cosigned(replace(standing.opened, signatures=(line,)), key)
        except (Authentication, ValueError):
            return
        self._seen[client] = standing.size
        told = self._told.get(client, ())
        kept = tuple(one for one in self._uploads.get(client, ()) if one not in told)
        self._uploads[client] = kept
        lines.append(said.cosignature)

    def _receipt(
        self,
        uow: UnitOfWork,
        tree: MerkleTree,
        standing: _Standing,
        client: ClientId,
        *,
        proof: Callable[[int], tuple[bytes, ...]],
    ) -> Receipt:
        since = self._seen.get(client, 0)
        if since > standing.size:
            raise CoordinatorBehind(
                f"{client} has seen {since} leaves of the log, but there are {standing.size}:"
                " the database is an old copy, and its runs cannot be resumed"
            )
        pseudonym = self.roll.pseudonyms[client]
        spent = standing.epsilons.get(pseudonym)
        if standing.since and since >= standing.since:
            found = standing.new.get(pseudonym, ())
            leaves = [item for item in found if item[0].position >= since]
        else:
            stored = uow.log.of_client(self.run_id, pseudonym, since)
            leaves = [(x, uow.log.data(x)) for x in stored if x.position < standing.size]
        return Receipt(
            envelope=Envelope(self.run_id, *standing.attempt),
            since=since,
            key=standing.key,
            changes=standing.changes,
            checkpoint=standing.note,
            consistency=proof(since),
            leaves=tuple(
                ReceiptLeaf(
                    leaf.position, data, leaf.salt or b"", tree.inclusion_proof(leaf.position)
                )
                for leaf, data in leaves
            ),
            epsilons={n: 0.0 if spent is None else getattr(spent, n) for n in ADVERSARIES},
            delta=self.budget.delta,
            accountant=self.budget.accountant,
            uploads=self._uploads.get(client, ()),
        )


def witnessed_sizes(database: Path) -> dict[str, int]:
    """Return the newest size of a log that each client has cosigned, by pseudonym."""
    sizes: dict[str, int] = {}
    for _, note in kept_notes(database):
        if not is_change(note):
            head = decode_checkpoint(note)
            sizes |= {s.name: head.size for s in note.signatures if s.name != head.origin}
    return sizes
