"""The audit log: one hash chain per run, to which rows are only ever added.

Each row's hash covers the previous row's hash and all of its own fields. So a changed, removed or
moved row breaks the chain at a row that `verify` names. Without its tail a chain is shorter and
still valid: only a head kept elsewhere (`AuditHead`) shows the cut. A party that can rewrite the
whole file can also rewrite the whole chain, up to such a head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Final, Literal

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from storage._validate import canonical_json, require_count, require_text, utc_text
from storage.errors import AuditChainBroken
from storage.leaves import NewLeaves, event_data
from storage.records import GENESIS_HASH, AuditEntry, AuditHead
from storage.runs import require_run
from storage.sealing import Rows
from storage.tables import Audit

_HEAD: Final = "SELECT sequence, hash FROM audit WHERE run_id = ? ORDER BY sequence DESC LIMIT 1"
_HEADS: Final = (
    "SELECT audit.run_id, sequence, hash FROM runs JOIN audit ON audit.run_id = runs.run_id"
    " AND sequence = (SELECT max(sequence) FROM audit WHERE run_id = runs.run_id)"
)
_INSERTION: Final = (
    "INSERT INTO audit (sequence, run_id, actor, action, round_number, channel, time, detail, hash)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FACTS: Final = attrgetter(*[field.name for field in fields(AuditEntry)][:-1])


class AuditRepository:
    """Adds to, reads and verifies the audit log."""

    def __init__(
        self, session: Session, rows: Rows, now: Callable[[], datetime], leaves: NewLeaves
    ) -> None:
        """Work within the session's transaction, as `rows` does; `now` dates the entries."""
        self._session = session
        self._rows = rows
        self._leaves = leaves
        self._now = now

    def append(
        self,
        run: str,
        *,
        actor: str,
        action: str,
        round: int | None = None,
        channel: str | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> AuditEntry:
        """Add an entry to the end of the run's chain.

        `detail` is a JSON object. It stays for ever and has many readers, so it must never hold a
        handle, an entry of the pool, a digest of such an entry, or the experts that a client got.

        Raises:
            InvalidRecordError: A text is empty, or the detail is not JSON.
        """
        require_text(actor=actor, action=action)
        if round is not None:
            require_count(round=round)
        if channel is not None:
            require_text(channel=channel)
        text = canonical_json("detail", {} if detail is None else detail)
        moment = utc_text("time", self._now())
        head = self.head(run)
        facts = (head.count + 1, run, actor, action, round, channel, moment, text)
        data = event_data(head.hash, facts)
        entry = AuditEntry(*facts, hashlib.sha256(data).hexdigest())
        self._rows.statements.run(_INSERTION, (*facts, entry.hash))
        self._leaves.add_event(run, entry.sequence, data)
        return entry

    def query(
        self,
        *,
        run: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        round: int | None = None,
        channel: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        detail_contains: str | None = None,
        limit: int | None = None,
    ) -> tuple[AuditEntry, ...]:
        """Return the entries that meet every given condition, by run and sequence.

        Without a limit all chains in question are verified first, because a changed entry may meet
        other conditions than the written one. With a limit, `verify` has that task: reading a
        million entries takes longer than people wait for the first hundred.

        Every filter that is not None must fit. `since` and `until` have a time zone, and both
        moments count. `detail_contains` is text of the detail's canonical JSON, case-sensitive. The
        run must exist. `limit` is the most entries to return.

        Raises:
            AuditChainBroken: The chain of a run in question does not hold.
            InvalidRecordError: A moment has no time zone.
        """
        if run is not None:
            require_run(self._rows, run)
        if limit is None:
            for known in self.known("run") if run is None else (run,):
                self.verify(known)
        equal = (
            (Audit.run_id, run),
            (Audit.actor, actor),
            (Audit.action, action),
            (Audit.round_number, round),
            (Audit.channel, channel),
        )
        where: list[ColumnElement[bool]] = [
            column == value for column, value in equal if value is not None
        ]
        if since is not None:
            where.append(Audit.time >= utc_text("since", since))
        if until is not None:
            where.append(Audit.time <= utc_text("until", until))
        if detail_contains is not None:
            where.append(func.instr(Audit.detail, detail_contains) > 0)
        return tuple(self._entries(*where, limit=limit))

    def known(self, field: Literal["run", "actor", "action", "channel"]) -> tuple[str, ...]:
        """Return all values of a field, in order; missing values are left out."""
        column = {
            "run": Audit.run_id,
            "actor": Audit.actor,
            "action": Audit.action,
            "channel": Audit.channel,
        }[field]
        found = self._session.scalars(select(column).distinct().order_by(column))
        return tuple(value for value in found if value is not None)

    def beginnings(self) -> tuple[AuditEntry, ...]:
        """Return the first entry of each run, by run, without a check of the chains after it."""
        return tuple(self._entries(Audit.sequence == 1))

    def head(self, run: str) -> AuditHead:
        """Return the length of the run's chain and its last hash."""
        require_run(self._rows, run)
        last = self._rows.statements.run(_HEAD, (run,))
        return AuditHead(*last[0]) if last else AuditHead(0, GENESIS_HASH)

    def heads(self) -> dict[str, AuditHead]:
        """Return the length and last hash of every run's chain; reads only ends."""
        found = self._rows.statements.run(_HEADS)
        return {run: AuditHead(count, digest) for run, count, digest in found}

    def verify(self, run: str, head: AuditHead | None = None) -> AuditHead:
        """Recompute the run's whole chain, and return its verified end.

        `head` is the end of the chain at some earlier time, kept outside the database. Later
        entries are fine; without `head` a cut tail is not noticed.

        Raises:
            AuditChainBroken: Names the first entry that is wrong or missing.
        """
        require_run(self._rows, run)
        reached = AuditHead(0, GENESIS_HASH)
        met = head is None or head == reached
        for entry in self._entries(Audit.run_id == run):
            expected = reached.count + 1
            if entry.sequence != expected:
                raise AuditChainBroken(run, expected, f"entry {entry.sequence} is in its place")
            if entry.hash != _hash_after(reached, entry):
                raise AuditChainBroken(run, expected, "its contents do not match its hash")
            reached = AuditHead(entry.sequence, entry.hash)
            met = met or head == reached
            if head is not None and reached.count == head.count and not met:
                raise AuditChainBroken(run, expected, "it is not the entry that the head names")
        if head is not None and not met:
            reason = f"the head says there are {head.count} entries, but there are {reached.count}"
            raise AuditChainBroken(run, min(reached.count, head.count) + 1, reason)
        return reached

    def _entries(
        self, *where: ColumnElement[bool], limit: int | None = None
    ) -> Iterator[AuditEntry]:
        columns = (
            Audit.sequence,
            Audit.run_id,
            Audit.actor,
            Audit.action,
            Audit.round_number,
            Audit.channel,
            Audit.time,
            Audit.detail,
            Audit.hash,
        )
        query = select(*columns).where(*where).order_by(Audit.run_id, Audit.sequence).limit(limit)
        # The block closes the result even if the caller does not read to the end.
        with self._session.execute(query.execution_options(yield_per=1000)) as found:
            for row in found:
                yield AuditEntry(*row)


def _hash_after(head: AuditHead, entry: AuditEntry) -> str:
    """Return the hash that an entry must have after `head`."""
    facts = _FACTS(entry)
    try:
        return hashlib.sha256(event_data(head.hash, facts)).hexdigest()
    # Bytes in place of text: SQLite keeps any type in any column.
    except TypeError as error:
        raise AuditChainBroken(entry.run, entry.sequence, "it holds bytes") from error
