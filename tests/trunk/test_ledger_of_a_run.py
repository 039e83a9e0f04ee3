"""What a run charges, when it writes that down, and what its database does not say."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from platform.experiment.finishing import execute
from platform.parties.identities import client_names
from platform.rounds.attempts import draw_cohort
from platform.rounds.observing import SilentObserver
from platform.wire.codec import peek
from platform.wire.messages import ROUND_STAGES
from platform.wire.transport import Dropout, Transport
from tests.trunk._runs import (
    LOST,
    OS,
    ROUNDS,
    Finished,
    Storage,
    gaussian_epsilon,
    of_clients,
    opened,
    over,
)

FACTS = (
    "run_id, round_number, attempt, pseudonym, channel, mechanism, standard_deviation,"
    " clipping_norm, relation, sampling"
)


def test_survivors_are_released_and_the_lost_stay_charged(noised_run):
    identities = noised_run.identities()
    expected = {
        (number, pseudonym): "released" if name in survivors else "reserved"
        for number, survivors in noised_run.survivors().items()
        for name, (pseudonym, _) in identities.items()
    }
    rows = noised_run.storage.rows("SELECT round_number, pseudonym, status FROM ledger")
    assert {(number, who): status for number, who, status in rows} == expected
    assert list(expected.values()).count("reserved") == LOST * ROUNDS


def handle(secret: bytes, run_id: str, number: int) -> bytes:
    """A client's handle in one round, written down a second time on purpose."""
    text = f'["sotto pool handle", "{run_id}", {number}]'
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


def test_clients_keep_the_same_books(noised_run):
    """A survivor's own ledger is the coordinator's; who was lost before training sent nothing."""
    identities, survivors = noised_run.identities(), noised_run.survivors()
    books = of_clients(noised_run.folder, f"SELECT client, {FACTS} FROM ledger")  # noqa: S608
    for name, (pseudonym, _) in identities.items():
        own = set(books.get(name, ()))
        query = f"SELECT {FACTS} FROM ledger WHERE pseudonym = ?"  # noqa: S608
        theirs = set(noised_run.storage.rows(query, pseudonym))
        sent = {number for number, names in survivors.items() if name in names}
        assert own == {row for row in theirs if row[1] in sent}
        assert len(theirs) == ROUNDS


@dataclass
class Watch:
    inner: Transport
    storage: Storage
    folder: Path
    run_id: str
    cohorts: Mapping[int, tuple[str, ...]]
    stages: list[tuple[int, str]] = field(default_factory=list)
    uploads: int = 0

    def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: float | None) -> Any:
        _, envelope = peek(next(iter(messages.values())))
        if stage not in ROUND_STAGES:
            # Nothing that is said outside rounds is a release.
            return self.inner.exchange(stage, messages, deadline)
        self.stages.append((envelope.round_number, stage))
        self.require_reserved(envelope.round_number, envelope.attempt)
        answers = self.inner.exchange(stage, messages, deadline)
        if stage == "train":
            self.require_own_rows(envelope.round_number, answers)
        return answers

    def require_reserved(self, number: int, attempt: int) -> None:
        query = (
            "SELECT pseudonym, channel FROM ledger WHERE run_id = ? AND round_number = ?"
            " AND attempt = ? AND status = 'reserved'"
        )
        found = self.storage.rows(query, self.run_id, number, attempt)
        names = of_clients(self.folder, "SELECT client, pseudonym FROM identity")
        expected = [(names[client][0][0], "sum") for client in self.cohorts[number]]
        assert sorted(found) == sorted(expected)

    def require_own_rows(self, number: int, answers: Mapping[str, bytes | Dropout]) -> None:
        answered = [name for name, answer in answers.items() if not isinstance(answer, Dropout)]
        for table in ("ledger", "tombstones"):
            query = f"SELECT client, channel FROM {table} WHERE round_number = ?"  # noqa: S608
            written = of_clients(self.folder, query, number)
            assert written == {name: [("sum",)] for name in answered}
        self.uploads += len(answered)


def test_spend_is_on_the_disk_before_the_first_message(storage):
    """The second round's keys came with the first one's last message, so it has a stage less."""
    chosen = ("rounds=2", "cohort.dropout_rate=0")
    with opened(storage.create(*chosen)) as simulation:
        config = simulation.run.terms.config
        cohorts = {number: draw_cohort(config, client_names(5), number) for number in (1, 2)}
        place = (storage, simulation.folder, simulation.run_id)
        watch = Watch(simulation.run.transport, *place, cohorts)
        execute(over(simulation, watch), SilentObserver())
    usual = ("share", "train", "unmask")
    assert watch.stages == [(1, "advertise"), *((n, stage) for n in (1, 2) for stage in usual)]
    assert watch.uploads == 2 * 5


def test_missing_entry_voids_the_rounds_entries_but_not_its_sum(storage):
    """The sum minus the entries that did come would be the entry of who did not send it."""
    with opened(storage.create("rounds=1")) as simulation:
        silent = dataclasses.replace(simulation.run.transport, lost_at="unmask")
        execute(over(simulation, silent), SilentObserver())
    assert storage.rows("SELECT * FROM pool") == []
    assert storage.rows("SELECT DISTINCT status FROM ledger") == [("released",)]
    assert storage.rows("SELECT count(*) FROM rounds") == [(1,)]
    actions = [action for (action,) in storage.rows("SELECT action FROM audit")]
    assert actions.count("pool.discarded") == 1 and "pool.committed" not in actions


def test_independent_pool_noise_is_a_second_release(storage, noised_run):
    chosen = ("privacy.target_epsilon=null", "privacy.noise_multiplier=5.0")
    run = storage.run(*chosen, "rounds=1", "pool.noise=independent")
    (document,) = run.summary["rounds"]
    for adversary in ("server", "peers"):
        assert document["epsilon"][adversary] == pytest.approx(gaussian_epsilon(5.0, 2), rel=1e-6)
    query = "SELECT channel, count(*) FROM ledger GROUP BY channel"
    assert storage.rows(query) == [("pool", 5), ("sum", 5)]
    assert noised_run.storage.rows(query) == [("sum", 15)]


@pytest.fixture(scope="module")
def os_run(make_storage: Any) -> Iterator[tuple[Finished, str]]:
    """A run with noise of the operating system, and all that was logged meanwhile."""
    records: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    root, listener = logging.getLogger(), Listener()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        run = make_storage("os").run(OS)
    finally:
        root.setLevel(level)
        root.removeHandler(listener)
    yield run, "\n".join(records)


def tables(run: Finished) -> dict[str, list[tuple[Any, ...]]]:
    names = run.storage.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name: run.storage.rows(f"SELECT * FROM {name}") for (name,) in names}  # noqa: S608


def joined(values: Iterable[Any]) -> bytes:
    return b"\0".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


def spellings(value: bytes) -> set[bytes]:
    texts = {
        *(value.hex(), value.hex().upper(), base64.b64encode(value).decode().rstrip("=")),
        *(base64.urlsafe_b64encode(value).decode().rstrip("="), repr(value)[2:-1]),
    }
    return {value, *(text.encode() for text in texts)}


def handles(run: Finished) -> dict[tuple[str, int], bytes]:
    return {
        (name, number): handle(secret, run.run_id, number)
        for name, (_, secret) in run.identities().items()
        for number in range(1, ROUNDS + 2)
    }


def test_audit_log_and_logs_hold_no_handle_entry_or_secret(os_run):
    run, logged = os_run
    audit = "\n".join(map(repr, run.storage.rows("SELECT * FROM audit")))
    text = (audit + logged).encode()
    entries = [entry for (entry,) in run.storage.rows("SELECT entry FROM pool")]
    digests = [hashlib.sha256(e).digest() for e in entries]
    secrets = [secret for _, secret in run.identities().values()]
    assert len(entries) == 5 - LOST and "release.reserved" in audit
    for value in (*handles(run).values(), *secrets, *digests, *(e[-64:] for e in entries)):
        assert not any(spelling in text for spelling in spellings(value))


def test_pool_row_names_nobody(os_run):
    run, _ = os_run
    identities = run.identities()
    pseudonyms = [p for p, _ in identities.values()]
    raw = [bytes.fromhex(p) for p in pseudonyms if re.fullmatch("([0-9a-f]{2})+", p)]
    known = [one.encode() for one in (*identities, *pseudonyms)]
    pool = tables(run)["pool"]
    assert len(pool) == 5 - LOST
    for row in pool:
        text = joined(row)
        assert not [w for w in (*known, *raw, *(s for _, s in identities.values())) if w in text]
        assert not re.search(rb"20\d\d-\d\d-\d\d", text)
    columns = {row[1] for row in run.storage.rows("PRAGMA table_info(pool)")}
    assert columns == {"key", "run_id", "generation", "cover", "handle", "entry", "digest"}


def test_no_other_table_knows_an_entry(os_run):
    run, _ = os_run
    pool = run.storage.rows("SELECT handle, key, entry FROM pool")
    for name, rows in tables(run).items():
        if name == "pool":
            continue
        text = joined(value for row in rows for value in row)
        for *row, entry in pool:
            for value in (*row, entry, hashlib.sha256(entry).digest()):
                assert not any(spelling in text for spelling in spellings(value)), name


def test_bytes_of_the_database_hold_no_secret_no_personal_part_and_nothing_expired(os_run):
    run, _ = os_run
    folder = run.storage.folder
    data = b"".join(p.read_bytes() for p in sorted(folder.glob("sotto.db*")))
    assert all(secret not in data for _, secret in run.identities().values())
    survivors = run.survivors()
    for (name, number), value in handles(run).items():
        assert (value in data) is (number == ROUNDS and name in survivors[ROUNDS])
    for personal, _ in run.personal_parts().values():
        assert len(personal) > 1000
        assert personal[-200:] not in data and b"gate." not in data


def test_run_document_names_survivors_but_no_pseudonym(os_run):
    """A name beside a pseudonym in one row would tie the ledger to a person for everybody."""
    run, _ = os_run
    names = run.identities()
    for row in (row for rows in tables(run).values() for row in rows):
        text = json.dumps([v if not isinstance(v, bytes) else v.hex() for v in row])
        named = any(name in text for name in names)
        assert not (named and any(pseudonym in text for pseudonym, _ in names.values()))
