"""The log over all events and charges: its Merkle tree, its proofs, and what spoils it."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage
from storage import LedgerRow, log
from storage.database import Database
from storage.homes import open_home
from storage.leaves import charge_data, settled_data
from storage.merkle import (
    EMPTY_ROOT,
    MerkleTree,
    completed,
    inclusion_proofs,
    is_consistent,
    leaf_hash,
    path_length,
    root_from_inclusion,
)
from storage.sealing import row_digest
from tests.storage._filling import COHORT, ROW
from tests.storage._raw import REFUSED, spoil

INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
# Roots of the first 1, 2, ... of these leaves, as implementations of Certificate Transparency
# have them in their tests.
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def mth(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, 2.1.1, word by word."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


class Store:
    """Leaves and tiles as they are stored, filled in batches."""

    def __init__(self, leaves: Sequence[bytes], cuts: Sequence[int] = ()) -> None:
        self.levels: dict[tuple[int, int], bytes] = {}
        at = 0
        for end in (*sorted(cuts), len(leaves)):
            added = [leaf_hash(leaf) for leaf in leaves[at:end]]
            for level, position, found in list(completed(self.read, at, added)):
                assert (level, position) not in self.levels
                self.levels[level, position] = found
            self.levels |= {(0, at + i): found for i, found in enumerate(added)}
            at = end

    def read(self, level: int, start: int, count: int) -> list[bytes]:
        return [self.levels[level, start + at] for at in range(count)]


def made(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_published_roots() -> None:
    store = Store(INPUTS)
    assert MerkleTree(store.read, 0).root() == EMPTY_ROOT
    for size, root in enumerate(ROOTS, 1):
        assert MerkleTree(store.read, size).root().hex() == root


def test_published_proofs() -> None:
    """The paths of leaf 0 among 8 and of leaf 2 among 3, and from 1 to 8 and 6 to 8 leaves."""
    tree = MerkleTree(Store(INPUTS).read, 8)
    assert [step.hex() for step in tree.inclusion_proof(0)] == [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]
    three = MerkleTree(tree.read, 3).inclusion_proof(2)
    assert [step.hex() for step in three] == [ROOTS[1]]
    assert [step.hex() for step in tree.consistency_proof(6)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert tree.consistency_proof(1) == tree.inclusion_proof(0)


@pytest.mark.slow
def test_a_tree_of_three_levels() -> None:
    """More than 256 tiles, so that a tile of the second level is full."""
    leaves = made(65_536 + 700)
    store = Store(leaves, cuts=[65_000, 65_536])
    assert (2, 0) in store.levels
    for size in (65_535, 65_536, 65_537, 66_236):
        tree = MerkleTree(store.read, size)
        assert tree.root() == mth(leaves[:size])
        for position in (0, 65_000, size - 1):
            found = root_from_inclusion(
                leaf_hash(leaves[position]), position, size, tree.inclusion_proof(position)
            )
            assert found == tree.root()


@given(st.data())
def test_what_is_stored_does_not_depend_on_batches(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 1200))
    cuts = data.draw(st.lists(st.integers(0, size), max_size=5))
    leaves = made(size)
    assert Store(leaves, cuts).levels == Store(leaves).levels


@given(st.data())
def test_proofs_show_what_they_should_and_nothing_else(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 600))
    position = data.draw(st.integers(0, size - 1))
    earlier = data.draw(st.integers(0, size))
    leaves = made(size)
    tree = MerkleTree(Store(leaves).read, size)
    found, root = leaf_hash(leaves[position]), mth(leaves)
    proof = tree.inclusion_proof(position)
    assert root_from_inclusion(found, position, size, proof) == root
    assert root_from_inclusion(leaf_hash(b"else"), position, size, proof) != root
    other = data.draw(st.integers(-1, size).filter(lambda at: at != position))
    assert root_from_inclusion(found, other, size, proof) != root
    for spoilt in mutations(proof, data):
        assert root_from_inclusion(found, position, size, spoilt) != root

    old = (earlier, mth(leaves[:earlier]))
    steps = tree.consistency_proof(earlier)
    assert is_consistent(old, (size, root), steps)
    assert not is_consistent((earlier, leaf_hash(b"else")), (size, root), steps)
    if earlier:
        assert not is_consistent(old, (size, leaf_hash(b"else")), steps)
    for spoilt in mutations(steps, data):
        assert not is_consistent(old, (size, root), spoilt)


def mutations(proof: Sequence[bytes], data: st.DataObject) -> list[list[bytes]]:
    """The proof with one more step, one less, a short one, and a flipped bit."""
    found = [[*proof, bytes(32)], [*proof, b""]]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        flipped = bytes([proof[at][0] ^ 1]) + proof[at][1:]
        found += [
            [*proof[:at], *proof[at + 1 :]],
            [*proof[:at], flipped, *proof[at + 1 :]],
            [*proof[:at], proof[at][:31], *proof[at + 1 :]],
        ]
    return found


def test_there_is_no_proof_of_what_is_not_there() -> None:
    tree = MerkleTree(Store(made(5)).read, 5)
    for position in (-1, 5):
        with pytest.raises(IndexError):
            tree.inclusion_proof(position)
    for earlier in (-1, 6):
        with pytest.raises(IndexError):
            tree.consistency_proof(earlier)
    assert tree.consistency_proof(0) == tree.consistency_proof(5) == ()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 9, 63, 64, 65, 257])
def test_proofs_of_all_leaves_at_once_lead_to_the_defined_root(size: int) -> None:
    leaves = [bytes([at % 256, at // 256]) for at in range(size)]
    hashes = [leaf_hash(leaf) for leaf in leaves]
    root, proofs = inclusion_proofs(hashes)
    assert root == mth(leaves)
    assert len(proofs) == size
    for at, proof in enumerate(proofs):
        assert len(proof) == path_length(at, size)
        assert root_from_inclusion(hashes[at], at, size, proof) == root


Raw = Callable[[], Any]


def fill(database: storage.Database, rounds: int = 3, clients: int = 4) -> None:
    """Two runs that take turns, a transaction a round and another for its end."""
    for number in range(1, rounds + 1):
        for run in ("r", "s"):
            rows = [
                replace(ROW, run_id=run, round_number=number, pseudonym=f"p{at}")
                for at in range(clients)
            ]
            with database.unit_of_work() as unit:
                unit.ledger.reserve(rows)
                unit.audit.append(run, actor="coordinator", action="round.opened", round=number)
                unit.commit()
            with database.unit_of_work() as unit:
                lost = [rows[0].pseudonym]
                kept = [row.pseudonym for row in rows[1:]]
                unit.ledger.set_status(run, number, 1, "aborted", pseudonyms=lost)
                unit.ledger.set_status(run, number, 1, "released", pseudonyms=kept)
                unit.audit.append(run, actor="coordinator", action="round.committed", round=number)
                unit.commit()


def data_of(database: storage.Database) -> list[bytes]:
    with database.unit_of_work(read_only=True) as unit:
        return [unit.log.data(leaf) for leaf in unit.log.leaves(0, unit.log.size())]


def test_everything_is_one_leaf_in_its_order(database: storage.Database) -> None:
    fill(database, rounds=1, clients=2)
    said = [data.split(b"\n", 1) for data in data_of(database)]
    kinds = [marker.decode() for marker, _ in said]
    a_round = [
        *["sotto-charge-v1"] * 2,
        "sotto-audit-v1",
        *["sotto-settled-v1"] * 2,
        "sotto-audit-v1",
    ]
    # Within a transaction in the order of what was done.
    assert kinds == a_round * 2
    assert json.loads(said[3][1])["status"] == "aborted"
    assert json.loads(said[4][1])["status"] == "released"


def test_the_root_is_that_of_what_the_leaves_say(database: storage.Database) -> None:
    fill(database, rounds=4, clients=33)
    said = data_of(database)
    assert len(said) > 512
    head = database.verify_log()
    assert head == storage.TreeHead(len(said), mth(said))
    with database.unit_of_work(read_only=True) as unit:
        for size in (0, 1, 255, 256, 257, len(said)):
            assert unit.log.tree(size).root() == mth(said[:size])
        tree = unit.log.tree()
        for position in (0, 255, 256, len(said) - 1):
            proof = tree.inclusion_proof(position)
            found = leaf_hash(said[position])
            assert root_from_inclusion(found, position, len(said), proof) == head.root
        with pytest.raises(storage.NotFound, match=f"has {len(said)} leaves, not"):
            unit.log.tree(len(said) + 1)


def test_what_is_undone_leaves_no_leaf(database: storage.Database) -> None:
    fill(database, rounds=1)
    before = database.verify_log()
    with database.unit_of_work() as unit:
        unit.audit.append("r", actor="coordinator", action="round.opened")
    assert database.verify_log() == before
    fill_again = replace(ROW, round_number=9)
    with database.unit_of_work() as unit:
        unit.ledger.reserve([fill_again])
        unit.commit()
        # A unit of work may go on after a commit.
        unit.ledger.set_status("r", 9, 1, "released")
        unit.commit()
    assert database.verify_log().size == before.size + 2


def test_lookups(database: storage.Database) -> None:
    fill(database)
    with database.unit_of_work(read_only=True) as unit:
        leaf = unit.log.of_event("s", 2)
        assert (leaf.kind, leaf.sequence) == ("event", 2)
        assert unit.log.leaf(leaf.position) == leaf
        charges = unit.log.of_client("r", "p0")
        assert [(c.kind, c.round_number, c.status) for c in charges] == [
            ("charge", 1, None),
            ("settled", 1, "aborted"),
            ("charge", 2, None),
            ("settled", 2, "aborted"),
            ("charge", 3, None),
            ("settled", 3, "aborted"),
        ]
        with pytest.raises(storage.NotFound, match="has no event 99"):
            unit.log.of_event("s", 99)
        with pytest.raises(storage.NotFound, match="no leaf 1000"):
            unit.log.leaf(1000)


def test_who_was_drawn_in_secret_is_a_commitment(database: storage.Database) -> None:
    """Two clients of whom one was drawn look alike, and a guess cannot be tried out."""
    rows = [
        replace(ROW, pseudonym=name, **{**COHORT, "cohort_drawn": drawn})
        for name, drawn in (("in", True), ("out", False))
    ]
    with database.unit_of_work() as unit:
        unit.ledger.reserve(rows)
        unit.ledger.set_status("r", 1, 1, "released")
        unit.commit()
    database.verify_log()
    with database.unit_of_work(read_only=True) as unit:
        leaves = unit.log.leaves(0, 4)
        for leaf, row in zip(leaves, rows, strict=False):
            data = unit.log.data(leaf)
            assert data == charge_data(row)
            assert leaf.salt is not None
            assert len(leaf.salt) == 32
            commitment = hashlib.sha256(leaf.salt + data).hexdigest()
            shown = json.dumps(
                {"commitment": commitment, "run_id": "r"}, separators=(",", ":")
            ).encode()
            assert leaf.hash == leaf_hash(b"sotto-sealed-v1\n" + shown)
            assert leaf.hash != leaf_hash(data)
    assert len({leaf.salt for leaf in leaves}) == 4


ATTACKS = {
    "an event's detail": (
        "UPDATE audit SET detail = '{\"a\":1}' WHERE run_id = 'r' AND sequence = 2",
        "leaf 9: event 2 of 'r' does not fit its hash",
    ),
    "an event's time as bytes": (
        "UPDATE audit SET time = x'00' WHERE run_id = 'r' AND sequence = 2",
        "leaf 9: its row holds a value of a type",
    ),
    "an event is gone": (
        "DELETE FROM audit WHERE run_id = 'r' AND sequence = 2",
        "leaf 9: event 2 of 'r' is gone",
    ),
    "a leaf is gone": ("DELETE FROM leaves WHERE position = 5", "leaf 5: it is missing"),
    "the last leaf is gone": (
        "DELETE FROM leaves WHERE position = 59",
        "leaf 59: event 6 of 's' has no leaf",
    ),
    "a leaf of another event": (
        "UPDATE leaves SET sequence = 3 WHERE run_id = 'r' AND sequence = 2",
        "leaf 9: it is of event 3, not 2",
    ),
    "a leaf of another client": (
        "UPDATE leaves SET pseudonym = 'p3' WHERE position = 1",
        "leaf 1: its charge",
    ),
    "a leaf's hash": (
        "UPDATE leaves SET hash = zeroblob(32) WHERE position = 7",
        "leaf 7: its settled does not fit its hash",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_edit_is_named(attack: str, database: storage.Database, raw: Raw) -> None:
    fill(database)
    database.verify_log()
    statement, message = ATTACKS[attack]
    spoil(raw, statement)
    with pytest.raises(storage.LogBroken, match=message.replace("(", r"\(")):
        database.verify_log()


def test_a_ledger_row_that_was_resealed_no_longer_fits(database, raw):
    """An undercharge by somebody who computes our digests: the leaf still says what it was."""
    fill(database)
    with database.unit_of_work(read_only=True) as unit:
        (row,) = (r for r in unit.ledger.rows("r", pseudonym="p1") if r.round_number == 1)
    digest = row_digest("ledger", asdict(replace(row, standard_deviation=99.0)))
    change = f"standard_deviation = 99.0, digest = x'{digest.hex()}'"
    where = "run_id = 'r' AND round_number = 1 AND pseudonym = 'p1'"
    spoil(raw, f"UPDATE ledger SET {change} WHERE {where}")  # noqa: S608
    database.verify_integrity()
    with pytest.raises(storage.LogBroken, match="leaf 1: its charge"):
        database.verify_log()
    with (
        database.unit_of_work(read_only=True) as unit,
        pytest.raises(storage.LogBroken, match=r"leaf 1: .* logged"),
    ):
        unit.log.data(unit.log.leaf(1))


def test_kept_heads(database: storage.Database) -> None:
    heads = [database.verify_log()]
    for _ in range(3):
        add_events(database, 1)
        heads.append(database.verify_log())
    assert heads[0].size == 0
    assert database.verify_log(heads) == heads[-1]
    with pytest.raises(storage.LogBroken, match="there are 4 leaves"):
        database.verify_log([storage.TreeHead(4, bytes(32))])
    with pytest.raises(storage.LogBroken, match="leaf 1: a kept head"):
        database.verify_log([storage.TreeHead(2, bytes(32))])


def test_an_erased_run_is_noticed_by_a_kept_head(database: storage.Database, raw: Raw) -> None:
    """All that a run left, its leaves included, and what came after it moved up."""
    fill(database)
    kept = database.verify_log()
    tables = ("audit", "ledger", "leaves")
    spoil(raw, *(f"DELETE FROM {table} WHERE run_id = 's'" for table in tables))  # noqa: S608
    with raw() as connection:
        places = connection.execute("SELECT position FROM leaves ORDER BY position").fetchall()
    moves = [
        f"UPDATE leaves SET position = {new} WHERE position = {old}"  # noqa: S608
        for new, (old,) in enumerate(places)
        if new != old
    ]
    spoil(raw, *moves)
    # What is left is a log that holds.
    assert database.verify_log().size == 30
    with pytest.raises(storage.LogBroken, match="there are 60 leaves"):
        database.verify_log([kept])


def test_tiles_are_held_against_their_leaves(database: storage.Database, raw: Raw) -> None:
    fill(database, rounds=4, clients=33)
    spoil(raw, "UPDATE tiles SET hash = zeroblob(32) WHERE level = 1 AND position = 1")
    with pytest.raises(storage.LogBroken, match=r"leaf 256: .* differs"):
        database.verify_log()
    spoil(raw, "DELETE FROM tiles WHERE level = 1 AND position = 1")
    with pytest.raises(storage.LogBroken, match=r"leaf 256: .* missing"):
        database.verify_log()
    with database.unit_of_work(read_only=True) as unit, pytest.raises(storage.LogBroken):
        unit.log.tree().root()


def add_events(database: storage.Database, count: int) -> None:
    """So many events in one transaction."""
    with database.unit_of_work() as unit:
        for _ in range(count):
            unit.audit.append("r", actor="coordinator", action="run.resumed")
        unit.commit()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification reads 100 leaves at a time."""
    query = log._PAGE_OF_LEAVES
    assert query.endswith(f"LIMIT {log._PAGE}")
    monkeypatch.setattr(log, "_PAGE_OF_LEAVES", query.replace(f"LIMIT {log._PAGE}", "LIMIT 100"))
    monkeypatch.setattr(log, "_PAGE", 100)


@pytest.mark.usefixtures("small_pages")
def test_a_writer_need_not_wait_for_a_whole_verification(database, url):
    """What it adds in between is checked as well, and its erasing of old pages is not held up."""
    add_events(database, 150)
    told: list[int] = []
    with storage.open_database(url, busy_timeout=0.1) as other:

        def write(size: int) -> None:
            told.append(size)
            if len(told) == 1:
                fill(other, rounds=1)
                # Fails with a CheckpointError where a reader keeps its snapshot.
                add_events(other, 1)

        head = database.verify_log(progress=write)
    assert told == [100, head.size]
    assert head.size == 150 + 2 * 10 + 1
    assert database.verify_log([head]) == head


@pytest.mark.usefixtures("small_pages")
def test_what_is_spoiled_meanwhile_is_named(database: storage.Database, raw: Raw) -> None:
    add_events(database, 150)
    statement = "UPDATE audit SET detail = '{\"a\":1}' WHERE run_id = 'r' AND sequence = 140"
    with pytest.raises(storage.LogBroken, match="leaf 139: event 140"):
        database.verify_log(progress=lambda _: spoil(raw, statement))


def test_a_leaf_before_the_first(database: storage.Database, raw: Raw) -> None:
    fill(database)
    spoil(raw, "INSERT INTO leaves SELECT -1, kind, run_id, sequence, round_number, attempt,"
          " pseudonym, channel, status, salt, hash FROM leaves WHERE position = 0")  # fmt: skip
    with pytest.raises(storage.LogBroken, match="61 leaves, of which 60"):
        database.verify_log()


def test_rows_are_only_ever_added(database, raw):
    fill(database, rounds=2, clients=33)
    for table in ("audit", "leaves", "tiles"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET hash = x'00'"):  # noqa: S608
            with raw() as connection, pytest.raises(REFUSED, match="append-only"):
                connection.execute(statement)


@pytest.mark.parametrize(
    ("tables", "clients"),
    # A tile is written once there are 256 leaves.
    [(("audit", "ledger", "leaves"), 2), (("tiles",), 64)],
)
def test_any_change_of_any_column_is_noticed(database, raw, path, tables, clients):
    """Also of ledger rows, whose digest is put right as a careful forger would."""
    fill(database, rounds=1, clients=clients)
    kept = database.verify_log()
    database.close()
    whole, dice = path.read_bytes(), random.Random(5)
    with raw() as connection:
        columns = [
            (table, column[1])
            for table in tables
            for column in connection.execute(f"PRAGMA table_info({table})").fetchall()
            if (table, column[1]) != ("ledger", "digest")
        ]
    assert columns
    for table, column in columns:
        path.write_bytes(whole)
        with raw() as connection:
            connection.execute("PRAGMA ignore_check_constraints=ON")
            connection.unguard()
            change(connection, table, column, dice)
        assert is_noticed(path, kept), (table, column)


def change(connection: Any, table: str, column: str, dice: random.Random) -> None:
    """Another value in one row of a table."""
    found = connection.execute(f"SELECT * FROM {table}")  # noqa: S608
    names, rows = [item[0] for item in found.description], found.fetchall()
    values = dice.choice(rows)
    old = dict(zip(names, values, strict=True))
    changes = {column: spoilt(old[column])}
    if table == "ledger":
        facts = {k: v for k, v in {**old, **changes}.items() if k != "digest"}
        changes["digest"] = row_digest(table, facts)
    settings = ", ".join(f"{name} = ?" for name in changes)
    where = " AND ".join(f"{name} IS ?" for name in names)
    connection.execute(
        f"UPDATE {table} SET {settings} WHERE {where}",  # noqa: S608
        (*changes.values(), *values),
    )


def spoilt(value: Any) -> Any:
    if value is None:
        return 1
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    if isinstance(value, str):
        return f"{value}x"
    # Not a value that another row has.
    return value + 10**6


def is_noticed(path: Path, kept: storage.TreeHead) -> bool:
    try:
        # Past the checks of opening, which find missing triggers.
        home = open_home(path, busy_timeout=1.0, read_only=False)
        with Database(home, now=lambda: datetime.now(UTC), is_read_only=False) as database:
            database.verify_log([kept])
    except storage.StorageError:
        return True
    return False


STRANGE = [
    replace(ROW, pseudonym='a"b\\\n\u2028\u00e9\U0001f600', mechanism=""),
    replace(ROW, clipping_norm=math.inf),
    replace(ROW, standard_deviation=1e-300, clipping_norm=1e22, sampling_probability=0.1),
    replace(ROW, standard_deviation=np.float64(0.5), count=2**62),
    replace(ROW, noise_kind="skellam", share_deviation=1.5, shares=3, dimension=8, corrupt=0),
    replace(ROW, cohort_kind="poisson", cohort_size=1, cohort_population=2, cohort_drawn=True),
]


@pytest.mark.parametrize("strange", STRANGE)
def test_leaves_of_the_ledger_are_what_json_says(strange: LedgerRow) -> None:
    facts = asdict(strange)
    del facts["status"]
    if facts["clipping_norm"] == math.inf:
        facts["clipping_norm"] = "infinity"
    written = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    assert charge_data(strange) == b"sotto-charge-v1\n" + written.encode("ascii")
    key = ("run_id", "round_number", "attempt", "pseudonym", "channel")
    settled = {**{name: facts[name] for name in key}, "status": "aborted"}
    written = json.dumps(settled, sort_keys=True, separators=(",", ":"))
    assert settled_data(strange, "aborted") == b"sotto-settled-v1\n" + written.encode("ascii")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_in_no_leaf(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        charge_data(replace(ROW, standard_deviation=value))
