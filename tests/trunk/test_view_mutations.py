"""Kept heads and clients' views of the log spoilt at random, also by who has the log's key.

A head that was changed does not fit the log, or the key; a log that was changed to fit does not fit
what one honest client has seen of it. Each attack is named as what it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import storage
from platform.disk.log_files import heads_file, keep_head, kept_heads, known_key, log_signer
from platform.parties.receipt_checks import ReceiptRefused, forks, verified
from privacy import Authentication
from privacy.transparency import (
    Checkpoint,
    NoteKey,
    NoteSigner,
    hand_over,
    sign_checkpoint,
    state_lost,
)
from storage import LedgerRow, TreeHead
from tests.storage.test_log import fill
from tests.trunk._receipts import ROW, SIGNER, Holder, Log, holder, signed
from tests.trunk.test_receipts import THIRD, decode_receipt, two_rounds

COUNTS = [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
Dice = random.Random


# --- heads beside the database --------------------------------------------------------------------


class Heads:
    """A log with all its heads kept beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sotto.db"
        self.database = storage.open_database(f"sqlite:///{self.path}")
        with self.database.unit_of_work() as unit:
            for run in ("r", "s"):
                facts = {"config_json": "{}", "config_digest": "d", "versions_json": "{}"}
                unit.runs.create(run, name=run, **facts)
            unit.commit()
        fill(self.database, rounds=2, clients=2)
        with self.database.unit_of_work(read_only=True) as unit:
            size = unit.log.size()
            self.roots = {at: unit.log.tree(at).root() for at in range(1, size + 1)}
        for at, root in self.roots.items():
            keep_head(self.path, TreeHead(at, root))
        key = known_key(self.path)
        assert key is not None
        self.key: NoteKey = key
        self.signer = log_signer(self.path)
        self.file = heads_file(self.path)
        self.lines = self.file.read_bytes().splitlines()
        self.stranger = NoteSigner(self.signer.name, bytes(32))

    def note(self, size: int, root: bytes, signer: NoteSigner | None = None) -> bytes:
        checkpoint = Checkpoint((signer or self.signer).name, size, root)
        return line_of(sign_checkpoint(checkpoint, signer or self.signer))

    def reason(self) -> str | None:
        """What is found to be wrong, None for nothing."""
        try:
            self.database.verify_log(kept_heads(self.path, self.key).heads)
        except (Authentication, storage.StorageError) as error:
            return str(error)
        return None


def line_of(note: str) -> bytes:
    return json.dumps({"note": note}).encode("ascii")


def a_flip(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    lines = list(heads.lines)
    at = dice.randrange(len(lines))
    place = dice.randrange(len(lines[at]))
    line = bytearray(lines[at])
    line[place] ^= 1 << dice.randrange(8)
    lines[at] = bytes(line)
    return lines, "line"


def a_cut(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    lines = list(heads.lines)
    at = dice.randrange(len(lines))
    lines[at] = lines[at][: dice.randrange(len(lines[at]))]
    return lines, f"line {at + 1} "


def another_root(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    """Of a fork, signed by the log's own key."""
    lines, size = list(heads.lines), dice.randrange(1, len(heads.roots) + 1)
    lines.insert(dice.randrange(len(lines) + 1), heads.note(size, dice.randbytes(32)))
    return lines, "head"


def another_size(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    """A true root for another number of leaves, or more of them than there are: a rollback."""
    lines, sizes = list(heads.lines), len(heads.roots)
    root = heads.roots[dice.randrange(1, sizes + 1)]
    wrong = [s for s in range(1, 3 * sizes) if heads.roots.get(s) != root]
    lines.insert(dice.randrange(len(lines) + 1), heads.note(dice.choice(wrong), root))
    return lines, "head"


def a_strangers_head(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    """Of the true tree, but by another key of the same name, in place of one or beside it."""
    lines, at = list(heads.lines), dice.randrange(len(heads.lines))
    lines[at : at + dice.randrange(2)] = [heads.note(at + 1, heads.roots[at + 1], heads.stranger)]
    return lines, f"line {at + 1}: the note is signed by none"


def a_replaced_key(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    """Who has no key says that the old one is lost, and signs everything after that."""
    at = dice.randrange(len(heads.lines))
    after = [heads.note(s, heads.roots[s], heads.stranger) for s in range(at + 1, len(heads.roots))]
    lost = line_of(state_lost(heads.stranger))
    return [*heads.lines[:at], lost, *after], f"line {at + 1} hands the log over"


def a_false_hand_over(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    """The old key's part is by the new one."""
    lines, at = list(heads.lines), dice.randrange(len(heads.lines))
    forger = NoteSigner(heads.signer.name, dice.randbytes(32))
    note = hand_over(heads.signer, heads.stranger).split("\n\n")[0] + "\n"
    lines.insert(at, line_of(forger.sign(note).encode()))
    return lines, f"line {at + 1}"


ON_HEADS = (
    a_flip,
    a_cut,
    another_root,
    another_size,
    a_strangers_head,
    a_replaced_key,
    a_false_hand_over,
)


@pytest.mark.parametrize("count", COUNTS)
def test_every_change_of_kept_heads_is_named(tmp_path: Path, count: int) -> None:
    heads = Heads(tmp_path)
    assert heads.reason() is None
    dice = Dice(count)
    for number in range(count):
        lines, named = dice.choice(ON_HEADS)(heads, dice)
        heads.file.write_bytes(b"".join(line + b"\n" for line in lines))
        reason = heads.reason()
        assert reason is not None and named in reason, (number, named, reason)
    heads.file.write_bytes(b"".join(line + b"\n" for line in heads.lines))
    assert heads.reason() is None
    heads.database.close()


# --- what a client is shown -----------------------------------------------------------------------


def a_fork(log: Log, dice: Dice) -> tuple[bytes, str]:
    """A leaf that was seen says something else, is gone, or another came before it."""
    leaves, at = list(log.leaves), dice.randrange(len(log.leaves))
    changed = dice.randrange(3)
    if changed == 0:
        leaves[at] += b" "
    elif changed == 1:
        leaves[at : at + 1] = [] if at + 1 < len(leaves) else [b"other"]
    else:
        leaves.insert(at, dice.randbytes(8))
    other = Log(leaves + [b"more"] * dice.randrange(1, 6))
    return other.receipt(6, [], attempt=(2, 1)), "it was forked"


def a_rollback(log: Log, dice: Dice) -> tuple[bytes, str]:
    """The log ends before what was seen."""
    size = dice.randrange(1, len(log.leaves))
    return Log(log.leaves[:size]).receipt(6, []), f"has {size} leaves, but 6 were seen"


def told(log: Log, row: LedgerRow | None, **changes: Any) -> bytes:
    """The receipt of a third round, with what is said to be its charge."""
    after = Log(list(log.leaves))
    positions = [] if row is None else [after.charge(row)]
    after.event()
    return after.receipt(6, positions, attempt=(3, 1), **changes)


def an_undercharge(log: Log, dice: Dice) -> tuple[bytes, str]:
    factor = 1 + dice.random()
    cheaper: dict[str, Any] = dice.choice(
        [
            {"standard_deviation": THIRD.standard_deviation * factor},
            {"clipping_norm": THIRD.clipping_norm / factor},
            {"sampling": "poisson", "sampling_probability": 1 / factor},
            {"relation": "add_remove"},
            {"mechanism": "central_noise"},
            {"count": dice.randrange(2, 9)},
        ]
    )
    return told(log, replace(THIRD, **cheaper)), "states another charge for round 3"


def a_hidden_release(log: Log, dice: Dice) -> tuple[bytes, str]:
    """Left out, put elsewhere, or called aborted."""
    kind = dice.randrange(4)
    left_out = "leaves out the release of round 3"
    if kind == 0:
        return told(log, None), left_out
    if kind == 1:
        return told(log, replace(THIRD, channel=dice.choice(("pool", "metrics")))), left_out
    if kind == 2:
        return told(log, replace(THIRD, attempt=dice.randrange(2, 99))), left_out
    after = Log(list(log.leaves))
    positions = [after.charge(THIRD), after.settle(THIRD, "aborted")]
    receipt = after.receipt(6, positions, attempt=(3, 1))
    return receipt, "says that nothing was released in round 3"


def another_key(log: Log, dice: Dice) -> tuple[bytes, str]:
    """A new key with nothing, with a loss that nobody confirmed, or one that a stranger handed."""
    new = NoteSigner(SIGNER.name, dice.randbytes(32))
    changes = dice.choice(
        [(), (state_lost(new),), (hand_over(NoteSigner(SIGNER.name, dice.randbytes(32)), new),)]
    )
    after = Log([*log.leaves, b"more"], new, changes)
    return after.receipt(6, []), "to which no key handed over"


def a_false_signature(log: Log, dice: Dice) -> tuple[bytes, str]:
    """All is as it should be, but for who says so."""
    true = decode_receipt(told(log, THIRD))
    return signed(true, NoteSigner(SIGNER.name, dice.randbytes(32))), "does not verify"


ON_VIEWS: tuple[Callable[[Log, Dice], tuple[bytes, str]], ...] = (
    a_fork,
    a_rollback,
    an_undercharge,
    a_hidden_release,
    another_key,
    a_false_signature,
)


@pytest.fixture
def seen(tmp_path: Path) -> tuple[Holder, Log]:
    """A client that has seen two rounds, has released in a third, and the true log."""
    client = holder(tmp_path)
    log = two_rounds(client)
    client.release(THIRD)
    return client, log


@pytest.mark.parametrize("count", COUNTS)
def test_every_false_view_is_named_by_a_client_that_saw_the_true_one(
    seen: tuple[Holder, Log], count: int
) -> None:
    client, log = seen
    dice = Dice(count)
    for number in range(count):
        lie, named = dice.choice(ON_VIEWS)(log, dice)
        with pytest.raises(ReceiptRefused) as caught:
            client.receipts.take(lie)
        assert named in str(caught.value), (number, named)
    assert [kept.size for kept in client.kept()] == [4, 6]
    assert client.receipts.take(told(log, THIRD)).cosignature


@pytest.mark.parametrize("count", [20, pytest.param(2_000, marks=pytest.mark.slow)])
def test_two_clients_that_were_shown_different_logs_find_out(
    seen: tuple[Holder, Log], count: int
) -> None:
    """Each view holds in itself; only side by side they tell."""
    client, log = seen
    dice = Dice(count)
    mine = verified(client.kept())
    assert forks(mine, mine) == ([], 2)
    for number in range(count):
        leaves = list(log.leaves)
        at = dice.randrange(len(leaves))
        leaves[at] = dice.randbytes(12)
        receipt = Log(leaves).receipt(0, [], attempt=(2, 1))
        theirs = verified([storage.KeptReceipt(ROW.run_id, 6, receipt)])
        problems, common = forks(mine, theirs)
        assert (len(problems), common) == (1, 1), number
        assert "two clients saw different 6 leaves" in problems[0]
