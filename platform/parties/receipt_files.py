"""Receipts by themselves: what they prove was charged, whether it adds up, and whose logs fork.

A file of receipts is all that is needed: a client can hand it to anybody, and two clients can
compare theirs. Epsilon is computed anew from the leaves that the receipts prove.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from platform.errors import ConfigError, ProtocolError
from platform.mechanisms import BUILT_IN, Mechanisms
from platform.parties.receipts import (
    ReceiptRefused,
    opened_head,
    read_leaves,
    require_continued,
)
from platform.protection.ledger_rows import as_releases
from platform.wire.envelopes import Attempt
from platform.wire.first_receipts import decode_kept
from platform.wire.receipts import ADVERSARIES, Receipt, UploadDigest
from privacy import Accountant, Authentication, PrivacyError, RunningLedger
from privacy.transparency import Checkpoint, NoteKey
from storage import KeptReceipt, LedgerRow, SeenLog
from storage.ledger import ledger_key

TOLERANCE: Final = 1e-9
FORMAT: Final = "sotto-receipts"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class ShownLog:
    """What receipts show of a log.

    Attributes:
        origin: Its name; empty where none could be read.
        heads: Roots by size, as the coordinator signed them.
    """

    origin: str
    heads: Mapping[int, bytes]


@dataclass(frozen=True)
class Received:
    """What a coordinator received of a client in a run, by its own word.

    Attributes:
        uploads: In the order of attempts.
        charged: Attempts that were charged, also those whose upload was lost on its way.
    """

    uploads: tuple[UploadDigest, ...]
    charged: int


@dataclass(frozen=True, kw_only=True)
class RunReceipts:
    """What a client's receipts of one run come to.

    Attributes:
        run_id: The run.
        log: The log that they are of.
        count: How many there are.
        rounds: The last round that they tell of.
        epsilons: By adversary, computed anew; None where that could not be done.
        stated: By adversary what the newest receipt states.
        received: What the coordinator received.
        problems: What is wrong, in words.
    """

    run_id: str
    log: ShownLog
    count: int
    rounds: int
    epsilons: Mapping[str, float] | None
    stated: Mapping[str, float] | None
    received: Received
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
    """Return the receipts of a file.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
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
    mechanisms: Mechanisms = BUILT_IN,
) -> list[RunReceipts]:
    """Return what receipts come to, run by run.

    Args:
        kept: The receipts of one client.
        own: The client's own ledger, to find releases that no receipt tells of; None without one.
        key: The log's key where it is known; None takes the one that signed.
        mechanisms: All that a charge may name.
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
    """Return where two clients were shown different logs, and how many heads they have in common.

    Heads of different sizes cannot be compared without the log itself; in one round all are shown
    the same.
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
        found.setdefault(run.log.origin, {}).update(run.log.heads)
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
        problems += _bound(receipt, uploads)
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
        computed = _priced(paid, newest, mechanisms)
        problems += _understated(computed, newest)
    return RunReceipts(
        run_id=run_id,
        log=ShownLog(origin, heads),
        count=len(kept),
        rounds=last,
        epsilons=computed,
        stated=None if newest is None else newest.epsilons,
        received=Received(
            tuple([UploadDigest(*attempt, uploads[attempt]) for attempt in sorted(uploads)]),
            len({(row.round_number, row.attempt) for row in paid}),
        ),
        problems=tuple(problems),
    )


def _bound(receipt: Receipt, uploads: dict[Attempt, bytes]) -> Iterator[str]:
    """Add the uploads that a receipt tells of, and say which were told otherwise before."""
    for upload in receipt.uploads:
        if uploads.setdefault(upload[:2], upload.digest) != upload.digest:
            yield f"two receipts tell of different uploads in round {upload.round_number}"


def _opened(
    run_id: str, kept: Sequence[KeptReceipt], trusted: NoteKey | None, problems: list[str]
) -> Iterator[tuple[Receipt, Checkpoint]]:
    for item in kept:
        try:
            receipt = decode_kept(item.receipt)
            key, _, head = opened_head(receipt)
            key.verify(receipt.signed, receipt.signature)
        except (ProtocolError, Authentication, ValueError) as error:
            problems.append(f"receipt at size {item.size}: {error}")
            continue
        if receipt.envelope.run_id != run_id or head.size != item.size:
            problems.append(f"receipt at size {item.size}: it is another one")
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
        # It continues what was seen in another run, whose receipt says so.
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
    rows: Sequence[LedgerRow], newest: Receipt, mechanisms: Mechanisms
) -> dict[str, float] | None:
    try:
        spent = RunningLedger(as_releases(rows, mechanisms)).epsilons(
            newest.delta, cast("Accountant", newest.accountant)
        )
    except (PrivacyError, ValueError):
        return None
    return {name: getattr(spent, name) for name in ADVERSARIES}


def _understated(computed: Mapping[str, float] | None, newest: Receipt) -> Iterator[str]:
    if computed is None:
        yield "what the receipts prove cannot be priced here"
        return
    for name, value in computed.items():
        stated = newest.epsilons[name]
        if not math.isclose(stated, value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"the coordinator states epsilon {stated:g} against {name}; it is {value:g}"
