"""Receipts: a client checks the coordinator's log against its own records, and others can too.

A client knows what it released, and which head of the log it saw last. It refuses a receipt that
names other charges, leaves a charge out, calls a sent upload aborted, or comes from a log that does
not continue the log that the client saw. Then the client also refuses the message that came with
the receipt, takes no further part, and tells its owner why. It keeps valid receipts for life, and
witnesses each by a cosignature.

A file of receipts can be checked without the client. The check shows which charges the receipts
prove, whether the charges add up, and whether two clients saw different logs. It computes epsilon
anew from the leaves that the receipts prove.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

from platform.errors import ConfigError, ProtocolError
from platform.mechanisms import KNOWN, Mechanisms
from platform.parties.client_state import sent_before
from platform.protection.charging import as_releases
from platform.wire.codec import Attempt
from platform.wire.receipt_messages import (
    ADVERSARIES,
    Receipt,
    UploadDigest,
    Witnessed,
    decode_kept,
    decode_receipt,
    enclose_answer,
    unclose,
)
from privacy import Accountant, Authentication, PrivacyError, RunningLedger
from privacy.secure_aggregation import Credentials
from privacy.transparency import (
    WITNESS_KEY,
    Checkpoint,
    NoteKey,
    NoteSigner,
    SignedNote,
    cosign,
    open_change,
    open_checkpoint,
    read_note,
)
from storage import ClientIdentity, ClientStore, KeptReceipt, LedgerRow, Receipted, SeenLog
from storage.leaves import CHARGE_PREFIX, SETTLED_PREFIX, charge_data, sealed_data
from storage.ledger import ledger_key
from storage.merkle import is_consistent, leaf_hash, root_from_inclusion

Key = tuple[int, int, str]
"""Round, attempt and channel of a charge."""

_ROW: Final = tuple(field.name for field in fields(LedgerRow) if field.name != "status")
EMPTY_LOG: Final = 0
_WITNESS: Final = b"sotto/witness\n"


class ReceiptRefused(ProtocolError):
    """A receipt does not fit the client's own records; the message says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Receipts:
    """Checks and keeps one client's receipts of one run.

    Attributes:
        witness: Signs that a log was seen.
        seconds: The time, since 1970.
        trusted: The log's key, if the client's owner knows it, also after an earlier key was lost;
            None trusts the first key that is seen, and the keys to which it hands over.
        remember: Hears why a receipt was refused.
    """

    store: ClientStore
    run_id: str
    witness: NoteSigner
    seconds: Callable[[], int]
    trusted: NoteKey | None = None
    remember: Callable[[tuple[int, int], str], None] = lambda attempt, reason: None

    def answering(self, message: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        """Return the answer to a message behind a receipt, which must hold before that."""
        inner, data = unclose(message)
        witnessed = self.take(data)
        return enclose_answer(answer(inner), witnessed)

    def take(self, data: bytes) -> Witnessed:
        """Check a receipt, keep it, and say how far the client has seen the log."""
        receipt = decode_receipt(data)
        try:
            if receipt.envelope.run_id != self.run_id:
                raise ReceiptRefused("it is of another run")
            key, note, head = _opened_head(receipt.key, receipt.checkpoint)
            key.verify(receipt.signed, receipt.signature)
            reached, kept = self.store.receipts.reached(self.run_id), self.store.receipts
            is_kept = reached is not None and reached.size == head.size
            if reached is not None and is_kept and kept.of(self.run_id, head.size) == data:
                # The coordinator has repeated its request.
                return self._witnessed(reached.size, reached.cosignature)
            seen = self._seen(receipt, key, head, reached)
            if receipt.since != seen.size:
                # An honest coordinator that was started anew does not know what the client saw.
                return self._witnessed(seen.size, "")
            require_continued(receipt, seen, head)
            ahead = self._require_charges(receipt, head, reached)
            self._require_uploads(receipt.uploads)
            line = cosign(note, self.witness, self.seconds()).encode()
            attempt = (receipt.envelope.round_number, receipt.envelope.attempt)
            kept.keep(
                KeptReceipt(self.run_id, head.size, data),
                Receipted(
                    head.origin,
                    head.size,
                    *attempt,
                    "\n".join(charge_data(row).decode("ascii") for _, row in sorted(ahead.items())),
                    line,
                ),
                SeenLog(head.origin, receipt.key, head.size, head.root),
            )
            return self._witnessed(head.size, line)
        except (Authentication, ReceiptRefused, ValueError) as error:
            attempt = (receipt.envelope.round_number, receipt.envelope.attempt)
            self.remember(attempt, f"the coordinator's receipt was refused: {error}")
            raise ReceiptRefused(f"message: its receipt is refused: {error}") from error

    def _witnessed(self, size: int, line: str) -> Witnessed:
        return Witnessed(size, self.witness.key.encode(), line)

    def _seen(
        self, receipt: Receipt, key: NoteKey, head: Checkpoint, reached: Receipted | None
    ) -> SeenLog:
        """Return the newest head seen of the receipt's log; refuse another log or key."""
        is_known = self.trusted is not None
        if is_known and key != self.trusted:
            raise ReceiptRefused(f"the log is signed by {receipt.key}, not by the known key")
        origin = head.origin if reached is None else reached.origin
        if origin != head.origin and not is_known:
            raise ReceiptRefused(f"the run was in log {origin}, and now in {head.origin}")
        seen = self.store.receipts.seen(origin)
        if seen is None:
            return SeenLog(head.origin, receipt.key, EMPTY_LOG, b"")
        if not is_known:
            # The key is the one that was seen, or one to which it handed over, step by step.
            known = seen.signer
            for text in receipt.changes:
                change = open_change(text)
                if change.old is not None and change.old.encode() == known:
                    known = change.new.encode()
            if known != receipt.key:
                raise ReceiptRefused(
                    f"the log is signed by {receipt.key}, to which no key handed over"
                )
        if head.size < seen.size:
            raise ReceiptRefused(f"the log has {head.size} leaves, but {seen.size} were seen")
        return seen

    def _require_charges(
        self, receipt: Receipt, head: Checkpoint, reached: Receipted | None
    ) -> dict[Key, LedgerRow]:
        """Compare the leaves with the client's own ledger, from the last receipt's round on.

        Return charges of rounds that are not over: the log has a round's cost before it begins.
        """
        charged, aborted = read_leaves(receipt, head)
        pseudonym = self.store.identity.pseudonym
        if any(row.pseudonym != pseudonym for row in charged.values()):
            raise ReceiptRefused("it is of another client")
        last = (0, 0)
        if reached is not None:
            last = (reached.round_number, reached.attempt)
            marker = CHARGE_PREFIX.decode("ascii")
            parts = reached.ahead.split(marker)[1:]
            rows = [_charge(f"{marker}{part}".rstrip("\n").encode()) for part in parts]
            charged = {_key(row): row for row in rows} | charged
        now = (receipt.envelope.round_number, receipt.envelope.attempt)
        if now < last:
            raise ReceiptRefused(f"it is of round {now[0]}, and one of round {last[0]} came before")
        rounds = sorted({*range(last[0], now[0] + 1), *(key[0] for key in charged)})
        for row in (row for n in rounds for row in self.store.rows(self.run_id, round_number=n)):
            attempt, key = (row.round_number, row.attempt), _key(row)
            where = f"round {row.round_number}, attempt {row.attempt}, channel {row.channel}"
            if key in aborted:
                raise ReceiptRefused(f"it says that nothing was released in {where}")
            if key in charged and not charged[key].is_release_of(row):
                raise ReceiptRefused(f"it states another charge for {where}")
            if last < attempt <= now and key not in charged:
                raise ReceiptRefused(f"it leaves out the release of {where}")
        return {key: row for key, row in charged.items() if key[:2] > now}

    def _require_uploads(self, stated: Iterable[UploadDigest]) -> None:
        """Refuse a receipt of other uploads than those that the client sent."""
        known = {u[:2]: u.digest for u in sent_before(self.store.sessions.newest(self.run_id))}
        for upload in stated:
            where = f"round {upload.round_number}, attempt {upload.attempt}"
            attempt = upload[:2]
            # A client remembers only the charges of older uploads.
            if attempt not in known and not self.store.rows(self.run_id, attempt):
                raise ReceiptRefused(f"it tells of an upload in {where}, but none was sent")
            if known.get(attempt, upload.digest) != upload.digest:
                raise ReceiptRefused(f"it tells of another upload in {where} than was sent")


def witness_of(credentials: Credentials | None, identity: ClientIdentity) -> NoteSigner:
    """Return the client's cosigning key: its enrolled key, or one derived from its secret.

    The key's name is the client's pseudonym.
    """
    if credentials is not None:
        return credentials.identity.witness(identity.pseudonym)
    private = hashlib.sha256(_WITNESS + identity.handle_secret).digest()
    return NoteSigner(identity.pseudonym, private, WITNESS_KEY)


def read_leaves(receipt: Receipt, head: Checkpoint) -> tuple[dict[Key, LedgerRow], set[Key]]:
    """Return the charges in a receipt, proved and of its run, and the keys of aborted ones."""
    run_id = receipt.envelope.run_id
    charged: dict[Key, LedgerRow] = {}
    aborted: set[Key] = set()
    for leaf in receipt.leaves:
        data = sealed_data(run_id, leaf.data, leaf.salt) if leaf.salt else leaf.data
        if root_from_inclusion(leaf_hash(data), leaf.position, head.size, leaf.proof) != head.root:
            raise ReceiptRefused(f"leaf {leaf.position} is not in the log")
        if leaf.data.startswith(CHARGE_PREFIX):
            row = _charge(leaf.data)
            charged[_key(row)] = row
        elif leaf.data.startswith(SETTLED_PREFIX):
            settled = _document(leaf.data, SETTLED_PREFIX)
            key = (settled["round_number"], settled["attempt"], settled["channel"])
            if settled["status"] == "aborted":
                aborted.add(key)
        else:
            raise ReceiptRefused(f"leaf {leaf.position} is no charge")
    if any(row.run_id != run_id for row in charged.values()):
        raise ReceiptRefused("it is of another run")
    return charged, aborted


def require_continued(receipt: Receipt, seen: SeenLog, head: Checkpoint) -> None:
    """Refuse a receipt whose log does not continue the log that was seen."""
    if seen.size == EMPTY_LOG:
        return
    before, now = (seen.size, seen.root), (head.size, head.root)
    if not _is_consistent(before, now, receipt.consistency):
        raise ReceiptRefused(
            f"the log does not continue the one whose {seen.size} leaves were seen: it was forked"
        )


# All clients of one process see the same heads.
_is_consistent: Final = lru_cache(maxsize=64)(is_consistent)


@lru_cache(maxsize=64)
def _opened_head(text: str, checkpoint: str) -> tuple[NoteKey, SignedNote, Checkpoint]:
    """Return the key that a receipt names, and the head of the log that it signed."""
    key = NoteKey.decode(text)
    return key, read_note(checkpoint), open_checkpoint(checkpoint, [key])


@lru_cache(maxsize=1024)
def _charge(data: bytes) -> LedgerRow:
    """Return the row of a charge."""
    document = dict(_document(data, CHARGE_PREFIX))
    if document.get("clipping_norm") == "infinity":
        document["clipping_norm"] = float("inf")
    try:
        row = LedgerRow(**{name: document[name] for name in _ROW})
    except (KeyError, TypeError) as error:
        raise ReceiptRefused("a charge in it is incomplete") from error
    if charge_data(row) != data:
        raise ReceiptRefused("a charge in it is written in another way")
    return row


def _document(data: bytes, prefix: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data[len(prefix) :])
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused("a leaf in it does not parse") from error
    if not isinstance(found, dict):
        raise ReceiptRefused("a leaf in it does not parse")
    return found


def _key(row: LedgerRow) -> Key:
    return row.round_number, row.attempt, row.channel


TOLERANCE: Final = 1e-9
FORMAT: Final = "sotto-receipts"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RunReceipts:
    """The result of checking a client's receipts of one run.

    Attributes:
        origin: The name of their log; empty if no receipt could be read.
        heads: The log's roots by size, as the coordinator signed them.
        rounds: The last round of which they tell.
        epsilons: By adversary, computed anew; None if the rows have no price here.
        stated: By adversary, from the newest receipt.
        uploads: The uploads that the coordinator says it received, in the order of attempts.
        charged: Number of charged attempts, with those whose upload was lost on its way.
        problems: What is wrong, in words.
    """

    run_id: str
    origin: str
    heads: Mapping[int, bytes]
    count: int
    rounds: int
    epsilons: Mapping[str, float] | None
    stated: Mapping[str, float] | None
    uploads: tuple[UploadDigest, ...]
    charged: int
    problems: tuple[str, ...]


def write_receipts(kept: Sequence[KeptReceipt]) -> bytes:
    """Return receipts as a file."""
    lines: list[dict[str, Any]] = [{"format": FORMAT, "version": VERSION}]
    for receipt in kept:
        data = base64.b64encode(receipt.receipt).decode("ascii")
        lines.append({"run": receipt.run_id, "size": receipt.size, "receipt": data})
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode("ascii")


_VALID: Final = "valid: a file that `receipts export` made"


def read_receipts(path: Path) -> tuple[KeptReceipt, ...]:
    """Return the receipts of a file, or `ConfigError`."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
        head, *lines = [json.loads(line) for line in data.splitlines()]
        if (head["format"], head["version"]) != (FORMAT, VERSION):
            raise ValueError
        return tuple(
            KeptReceipt(
                str(x["run"]), int(x["size"]), base64.b64decode(x["receipt"], validate=True)
            )
            for x in lines
        )
    except OSError as error:
        raise ConfigError(
            f"FILE: {str(path)!r} cannot be read ({error.strerror}); {_VALID}"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"FILE: {str(path)!r} is no file of receipts; {_VALID}") from error


def verified(
    kept: Iterable[KeptReceipt],
    own: Sequence[LedgerRow] | None = None,
    *,
    key: NoteKey | None = None,
    mechanisms: Mechanisms = KNOWN,
) -> list[RunReceipts]:
    """Check receipts, run by run.

    With the client's own ledger the check also finds releases that no receipt names. Without the
    log's key it takes the key that signed.
    """
    runs: dict[str, list[KeptReceipt]] = {}
    for receipt in kept:
        runs.setdefault(receipt.run_id, []).append(receipt)
    found = []
    for run_id, receipts in sorted(runs.items()):
        rows = None if own is None else [row for row in own if row.run_id == run_id]
        found.append(_verified_run(run_id, receipts, rows, key=key, mechanisms=mechanisms))
    return found


def forks(one: Sequence[RunReceipts], other: Sequence[RunReceipts]) -> tuple[list[str], int]:
    """Return where two clients saw different logs, and how many heads they have in common.

    Heads of different sizes cannot be compared without the log itself. In one round all clients see
    the same head.
    """
    common, found = 0, []
    mine = _by_origin(one)
    for origin, heads in _by_origin(other).items():
        for size in sorted(heads.keys() & mine.get(origin, {}).keys()):
            common += 1
            if heads[size] != mine[origin][size]:
                found.append(f"log {origin} was forked: two clients saw different {size} leaves")
    return found, common


def _by_origin(runs: Sequence[RunReceipts]) -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {}
    for run in runs:
        found.setdefault(run.origin, {}).update(run.heads)
    return found


def _verified_run(
    run_id: str,
    kept: Sequence[KeptReceipt],
    own: Sequence[LedgerRow] | None,
    *,
    key: NoteKey | None,
    mechanisms: Mechanisms,
) -> RunReceipts:
    problems: list[str] = []
    rows: dict[Any, LedgerRow] = {}
    heads: dict[int, bytes] = {}
    uploads: dict[Attempt, bytes] = {}
    newest: Receipt | None = None
    origin = ""
    for receipt, head in _opened(run_id, sorted(kept, key=lambda k: k.size), key, problems):
        origin, newest = origin or head.origin, receipt
        problems += _continued(receipt, head, origin, heads)
        heads[head.size] = head.root
        for upload in receipt.uploads:
            if uploads.setdefault(upload[:2], upload.digest) != upload.digest:
                problems.append(
                    f"two receipts tell of different uploads in round {upload.round_number}"
                )
        try:
            charged, aborted = read_leaves(receipt, head)
        except ReceiptRefused as error:
            problems.append(f"receipt at size {head.size}: {error}")
            continue
        rows |= {ledger_key(row): row for row in charged.values()}
        for gone in [k for k in rows if (k[1], k[2], k[4]) in aborted]:
            del rows[gone]
    last = 0 if newest is None else newest.envelope.round_number
    computed = None
    paid = [row for row in rows.values() if row.round_number <= last]
    if newest is not None:
        problems += [] if own is None else _left_out(own, rows, newest)
        computed = _priced(paid, newest, mechanisms, problems)
    return RunReceipts(
        run_id=run_id,
        origin=origin,
        heads=heads,
        count=len(kept),
        rounds=last,
        epsilons=computed,
        stated=None if newest is None else newest.epsilons,
        uploads=tuple([UploadDigest(*attempt, uploads[attempt]) for attempt in sorted(uploads)]),
        charged=len({(row.round_number, row.attempt) for row in paid}),
        problems=tuple(problems),
    )


def _opened(
    run_id: str, kept: Sequence[KeptReceipt], trusted: NoteKey | None, problems: list[str]
) -> Iterator[tuple[Receipt, Checkpoint]]:
    for item in kept:
        try:
            receipt = decode_kept(item.receipt)
            key, _, head = _opened_head(receipt.key, receipt.checkpoint)
            key.verify(receipt.signed, receipt.signature)
        except (ProtocolError, Authentication, ValueError) as error:
            problems.append(f"receipt at size {item.size}: {error}")
            continue
        if receipt.envelope.run_id != run_id or head.size != item.size:
            problems.append(f"receipt at size {item.size}: it has another run or size")
            continue
        if trusted is not None and key != trusted:
            problems.append(f"receipt at size {item.size}: it is signed by {receipt.key}")
        yield receipt, head


def _continued(
    receipt: Receipt, head: Checkpoint, origin: str, heads: Mapping[int, bytes]
) -> Iterator[str]:
    if head.origin != origin:
        yield f"receipt at size {head.size}: it is of log {head.origin}, not of {origin}"
    if receipt.since not in heads:
        # The client saw that head in another run, whose receipts cover it.
        return
    seen = SeenLog(origin, receipt.key, receipt.since, heads[receipt.since])
    try:
        require_continued(receipt, seen, head)
    except ReceiptRefused as error:
        yield f"receipt at size {head.size}: {error}"


def _left_out(
    own: Sequence[LedgerRow], rows: Mapping[Any, LedgerRow], newest: Receipt
) -> Iterator[str]:
    now = (newest.envelope.round_number, newest.envelope.attempt)
    for row in own:
        where = f"round {row.round_number}, attempt {row.attempt}, channel {row.channel}"
        stated = rows.get(ledger_key(row))
        if stated is not None and not stated.is_release_of(row):
            yield f"the coordinator states another charge for {where}"
        if stated is None and (row.round_number, row.attempt) <= now:
            yield f"the coordinator leaves out the release of {where}"
        if stated is None and (row.round_number, row.attempt) > now:
            yield f"no receipt has come yet for the release of {where}"


def _priced(
    rows: Sequence[LedgerRow], newest: Receipt, mechanisms: Mechanisms, problems: list[str]
) -> dict[str, float] | None:
    """Return epsilon by adversary, and note where the coordinator states another."""
    accountant = cast("Accountant", newest.accountant)
    try:
        spent = RunningLedger(as_releases(rows, mechanisms)).epsilons(newest.delta, accountant)
    except (PrivacyError, ValueError):
        problems.append("the charges that the receipts prove cannot be priced here")
        return None
    computed: dict[str, float] = {name: getattr(spent, name) for name in ADVERSARIES}
    for name, value in computed.items():
        stated = newest.epsilons[name]
        if not math.isclose(stated, value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            problems.append(
                f"the coordinator states epsilon {stated:g} against {name}; it is {value:g}"
            )
    return computed
