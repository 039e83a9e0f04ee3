"""Hands each client, with the next message that begins anything, a receipt of what it was charged.

The courier is a transport around another, so it adds no stage and no wait. With the first message
of a round, and with the one that asks it to personalise, a client gets what the log says of it.
Clients' answers say how far they have seen the log. They are kept with the log's heads, where a
coordinator that is started again finds them.
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
from platform.protection.charging import Budget, as_releases
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


@dataclass
class UploadsReceived:
    """What the clients of a run have uploaded, and what they were told of it.

    The digests live in this process only. Where vectors travel in the clear and a pool holds the
    same ones, digests of uploads in a file would tell whose entry is whose.
    """

    _known: dict[ClientId, tuple[UploadDigest, ...]] = field(default_factory=dict)
    _told: Mapping[ClientId, tuple[UploadDigest, ...]] = field(default_factory=dict)

    def of(self, client: ClientId) -> tuple[UploadDigest, ...]:
        """Return what a client has yet to be told of."""
        return self._known.get(client, ())

    def tell(self, told: Mapping[ClientId, tuple[UploadDigest, ...]]) -> None:
        """Remember what clients are told of now."""
        self._told = told

    def forget(self, client: ClientId) -> None:
        """Forget what a client was told of, as it has shown that it heard."""
        told = self._told.get(client, ())
        self._known[client] = tuple(one for one in self.of(client) if one not in told)

    def remember(self, answers: Mapping[ClientId, bytes | Dropout]) -> None:
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
                self._known[client] = (*self.of(client), upload)[-MOST_SENT:]


FIRST: Final = frozenset({"invitation", "pool_notice", "parting"})
"""Messages that begin a round, or come after the last one."""

_Place = tuple[str, int, int]
"""Kind, round and attempt of the messages of one stage."""


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """What the log says at the beginning of a stage.

    Attributes:
        place: Of the stage.
        attempt: Of the newest committed round.
        size: How many leaves the log has.
        signer: The log's key.
        note: The log's head, signed once for the stage.
        changes: How the log's key changed.
        new: By pseudonym the leaves that came since the last standing, with what they say.
        since: Where these begin.
        epsilons: By pseudonym.
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


@dataclass(kw_only=True)
class _Standings:
    """Reads what the log says, once for all messages of a stage.

    Attributes:
        run_id: The run.
        budget: At what epsilon is stated, and by whom.
        file: The database's.
        now: What it said last.
    """

    run_id: str
    budget: Budget
    file: Path
    now: _Standing | None = None
    _spent: RunningLedger = field(default_factory=RunningLedger, init=False, repr=False)
    _rounds: int = field(default=0, init=False, repr=False)
    _changes: KeptChanges = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin to read how the log's key changed."""
        self._changes = KeptChanges(self.file)

    def at(self, uow: UnitOfWork, place: _Place) -> _Standing | None:
        """Return what the log says at a stage; None before any round."""
        if self.now is None or self.now.place != place:
            attempt = uow.rounds.newest(self.run_id)
            self.now = None if attempt is None else self._read(uow, place, attempt)
        return self.now

    def _read(self, uow: UnitOfWork, place: _Place, attempt: Attempt) -> _Standing:
        tree, signer = uow.log.tree(), log_signer(self.file)
        # What this stage's own attempt is charged was written before the stage began.
        numbers = range(self._rounds + 1, attempt[0] + 2)
        rows = {ledger_key(r): r for r in uow.ledger.rows_of_rounds(self.run_id, numbers)}
        over = [row for row in rows.values() if row.round_number <= attempt[0]]
        self._spent.add(as_releases(over, self.budget.mechanisms))
        self._rounds = attempt[0]
        before = 0 if self.now is None else self.now.size
        new: dict[str, list[tuple[Leaf, bytes]]] = defaultdict(list)
        for leaf in uow.log.leaves(before, tree.size) if before else ():
            if leaf.kind != "event" and leaf.pseudonym is not None:
                row = rows.get(
                    (leaf.run_id, leaf.round_number, leaf.attempt, leaf.pseudonym, leaf.channel)  # type: ignore[arg-type]
                )
                if row is not None:
                    new[leaf.pseudonym].append((leaf, ledger_data(leaf, row)))
        return _Standing(
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


@dataclass(kw_only=True)
class Courier:
    """A transport that carries receipts with the messages of another.

    Attributes:
        transport: Carries the messages.
        run_id: The run.
        roll: Who takes part.
        budget: At what epsilon is stated, and by whom.
        records: Where the log is.
    """

    transport: Transport
    run_id: str
    roll: Roll
    budget: Budget
    records: Records
    _seen: dict[ClientId, int] = field(default_factory=dict, init=False)
    _standings: _Standings = field(init=False, repr=False)
    _uploads: UploadsReceived = field(default_factory=UploadsReceived, init=False)

    def __post_init__(self) -> None:
        """Find out how far clients have seen the log."""
        self._standings = _Standings(run_id=self.run_id, budget=self.budget, file=self.records.file)
        sizes = witnessed_sizes(self.records.file)
        self._seen = {c: sizes.get(p, 0) for c, p in self.roll.pseudonyms.items()}

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message, some with a receipt, and return the answers to these.

        Raises:
            CoordinatorBehind: A client has seen more of the log than there is.
        """
        carried = self._with_receipts(messages)
        answers = self.transport.exchange(stage, carried, deadline)
        if stage == "train":
            self._uploads.remember(answers)
        lines: list[str] = []
        opened = {client: self._opened(client, answers[client], lines) for client in answers}
        if lines and self._standings.now is not None:
            add_note(self.records.file, f"{self._standings.now.note}{''.join(lines)}")
        return opened

    def _with_receipts(self, messages: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
        """Return the messages, with a receipt where a message begins something."""
        places: dict[ClientId, _Place | None] = {}
        for client, message in messages.items():
            kind, envelope = peek(message)
            begins = kind in FIRST
            places[client] = (kind, envelope.round_number, envelope.attempt) if begins else None
        first = next(filter(None, places.values()), None)
        if first is None:
            return messages
        with self.records.read() as uow:
            standing = self._standings.at(uow, first)
            told = [c for c in messages if places[c] and c in self.roll.pseudonyms]
            if standing is None or not told:
                return messages
            tree = uow.log.tree(standing.size)
            # Most clients have seen the log at the same size.
            proof = cache(tree.consistency_proof)
            receipts = [self._receipt(uow, tree, standing, c, proof=proof) for c in told]
        signed = sign_receipts(receipts, standing.signer.signed)
        self._uploads.tell({c: r.uploads for c, r in zip(told, receipts, strict=True)})
        enclosed = {c: enclose(messages[c], r) for c, r in zip(told, signed, strict=True)}
        return {client: enclosed.get(client, message) for client, message in messages.items()}

    def _opened(
        self, client: ClientId, answer: bytes | Dropout, lines: list[str]
    ) -> bytes | Dropout:
        if isinstance(answer, Dropout):
            return answer
        try:
            reply, said = unclose_answer(answer)
        except ProtocolError:
            return Dropout("the answer does not parse")
        if said is not None:
            self._note(client, said, lines)
        return reply

    def _note(self, client: ClientId, said: Witnessed, lines: list[str]) -> None:
        """Remember how far a client has seen the log, if it shows that it did."""
        standing = self._standings.now
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
        self._uploads.forget(client)
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
                " the database is an old copy, and its runs cannot be gone on with"
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
            uploads=self._uploads.of(client),
        )


def witnessed_sizes(database: Path) -> dict[str, int]:
    """Return the newest size of a log that each client has cosigned, by pseudonym.

    Raises:
        Authentication: A line of the kept heads is not valid.
    """
    sizes: dict[str, int] = {}
    for _, note in kept_notes(database):
        if not is_change(note):
            head = decode_checkpoint(note)
            sizes |= {s.name: head.size for s in note.signatures if s.name != head.origin}
    return sizes
