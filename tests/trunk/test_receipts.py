"""Receipts: a client holds the coordinator's log against what it knows itself.

Kept heads and clients' views of the log are spoilt at random too, also by who has the log's key. A
head that was changed does not fit the log, or the key; a log that was changed to fit does not fit
what one honest client has seen of it.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform.disk.log_files import (
    add_note,
    heads_file,
    keep_head,
    kept_heads,
    kept_notes,
    known_key,
    log_signer,
)
from platform.errors import CoordinatorBehind, ProtocolError, RunStopped
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.receipt_checks import (
    ReceiptRefused,
    forks,
    read_receipts,
    verified,
    write_receipts,
)
from platform.rounds.observing import SilentObserver
from platform.rounds.receipts import Courier, witnessed_sizes
from platform.wire.codec import Envelope
from platform.wire.outside_rounds import Parting, encode_parting
from platform.wire.receipt_messages import (
    ADVERSARIES,
    ReceiptLeaf,
    decode_receipt,
    enclose,
    is_enclosed,
    unclose,
)
from platform.wire.transport import Transport
from privacy import Authentication
from privacy.transparency import (
    Checkpoint,
    NoteKey,
    NoteSigner,
    hand_over,
    read_note,
    require_cosigned,
    sign_checkpoint,
    state_lost,
)
from privacy.transparency.checkpoints import Signature
from storage import (
    ClientStore,
    KeptReceipt,
    LedgerRow,
    StorageError,
    TreeHead,
    open_client_stores,
    open_database,
)
from tests.storage.test_log import fill
from tests.trunk._receipts import ROW, RUN, SIGNER, Holder, Log, holder, signed
from tests.trunk._runs import NONE, OS, Finished, Storage, gaussian_epsilon, opened, over, stores_of

SECOND = replace(ROW, round_number=2)
PLAIN = "secure_aggregation.enabled=false"


def exact(rounds: int) -> float:
    return gaussian_epsilon(ROW.standard_deviation, rounds)


def spent(rounds: int) -> dict[str, float]:
    return dict.fromkeys(ADVERSARIES, exact(rounds))


def two_rounds(client: Holder) -> Log:
    """A client that released twice, and was given a true receipt after each round."""
    log = Log()
    log.event()
    first = log.charge(ROW)
    client.release(ROW)
    log.settle(ROW)
    # What the second round costs is logged before it begins, so the first receipt says it.
    second = log.charge(SECOND)
    said = client.receipts.take(log.receipt(0, [first, 2, second], epsilons=spent(1)))
    assert said.size == 4 and said.cosignature
    client.release(SECOND)
    settled = log.settle(SECOND)
    log.event()
    client.receipts.take(log.receipt(4, [settled], attempt=(2, 1), epsilons=spent(2)))
    return log


def test_true_receipts_are_kept_and_witnessed_and_cost_what_the_formula_says(tmp_path):
    client = holder(tmp_path)
    log = two_rounds(client)
    assert [kept.size for kept in client.kept()] == [4, 6]
    seen = client.store.receipts.seen(SIGNER.name)
    assert seen is not None and (seen.size, seen.root) == (6, log.tree().root())
    reached = client.store.receipts.reached(RUN)
    assert reached is not None and (reached.round_number, reached.ahead) == (2, "")
    note = read_note(decode_receipt(client.kept()[-1].receipt).checkpoint + reached.cosignature)
    assert require_cosigned(note, client.receipts.witness.key) == 1_700_000_000
    (tmp_path / "file").write_bytes(write_receipts(client.kept()))
    assert list(read_receipts(tmp_path / "file")) == client.kept()
    (run,) = verified(client.kept(), client.store.rows())
    assert run.problems == () and run.epsilons == pytest.approx(spent(2), rel=1e-9)
    last = client.kept()[-1].receipt
    first, again = client.receipts.take(last), client.receipts.take(last)
    assert first == again and first.cosignature
    assert len(client.kept()) == 2


def test_a_coordinator_that_was_started_anew_is_told_what_was_seen(tmp_path: Path) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    log.event()
    said = client.receipts.take(log.receipt(0, [1], attempt=(2, 1)))
    assert (said.size, said.cosignature) == (6, "")
    assert client.receipts.take(log.receipt(6, [], attempt=(2, 1))).size == 7


def forked(log: Log) -> Log:
    other = Log(list(log.leaves))
    other.leaves[1] = other.leaves[1].replace(b"4.0", b"5.0")
    other.event()
    return other


def told(log: Log, row: LedgerRow | None, **changes: Any) -> bytes:
    """The receipt of a third round, with what is said to be its charge."""
    after = Log(list(log.leaves))
    positions = [] if row is None else [after.charge(row)]
    after.event()
    return after.receipt(6, positions, attempt=(3, 1), **changes)


THIRD = replace(ROW, round_number=3)
NEW = NoteSigner("sotto/new", bytes(32))
# Those that have random contents are `ON_VIEWS`.
ATTACKS: dict[str, tuple[Callable[[Log], bytes], str]] = {
    "somebody's": (lambda log: told(log, replace(THIRD, pseudonym="bob")), "of another client"),
    "another run's": (lambda log: told(log, replace(THIRD, run_id="other")), "of another run"),
    "an earlier release that was aborted": (
        lambda log: log.receipt(6, [log.settle(SECOND, "aborted")], attempt=(2, 1)),
        "nothing was released",
    ),
    "an older round": (lambda log: log.receipt(6, [], attempt=(1, 1)), "of round 2"),
    "a fork of the same size": (
        lambda log: Log(forked(log).leaves[:6]).receipt(6, [], attempt=(2, 1)),
        "it was forked",
    ),
    "another log": (lambda log: Log([*log.leaves, b"x"], NEW).receipt(0, []), "in log sotto/log"),
    "an event for a charge": (lambda log: told(log, THIRD, leaves=false_leaf(log)), "not in the"),
    "a false checkpoint": (lambda log: false_checkpoint(told(log, THIRD)), "signed by none"),
}


def false_leaf(log: Log) -> tuple[ReceiptLeaf, ...]:
    return (ReceiptLeaf(0, log.leaves[1], b"", log.tree().inclusion_proof(0)),)


def false_checkpoint(receipt: bytes) -> bytes:
    return signed(replace(decode_receipt(receipt), checkpoint=NEW.sign("a\n").encode()))


@pytest.fixture
def seen(tmp_path: Path) -> tuple[Holder, Log]:
    """A client that has seen two rounds, has released in a third, and the true log."""
    client = holder(tmp_path)
    log = two_rounds(client)
    client.release(THIRD)
    return client, log


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_lie_is_named_and_kept_nowhere(seen: tuple[Holder, Log], attack: str) -> None:
    (client, log), (lie, reason) = seen, ATTACKS[attack]
    with pytest.raises(ReceiptRefused, match=reason):
        client.receipts.take(lie(log))
    assert [kept.size for kept in client.kept()] == [4, 6]
    assert len(client.told) == 1 and reason in client.told[0]


def test_a_key_that_was_handed_over_is_taken(tmp_path: Path) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    new = NoteSigner(SIGNER.name, bytes(32))
    following = Log([*log.leaves, b"more"], new, (hand_over(SIGNER, new),))
    assert client.receipts.take(following.receipt(6, [], attempt=(2, 1))).size == 7
    with pytest.raises(ReceiptRefused, match="no key handed"):
        client.receipts.take(Log([*log.leaves, b"more", b"x"]).receipt(7, [], attempt=(2, 1)))
    log, client = Log(), holder(tmp_path, "bob", trusted=new.key)
    log.event()
    with pytest.raises(ReceiptRefused, match="the known key"):
        client.receipts.take(log.receipt(0, []))


def test_an_understated_epsilon_and_a_release_that_no_receipt_tells_of_are_named(tmp_path):
    client = holder(tmp_path)
    log = two_rounds(client)
    log.event()
    low = {**spent(2), "server": exact(2) * (1 - 1e-7)}
    client.receipts.take(log.receipt(6, [], attempt=(2, 1), epsilons=low))
    (run,) = verified(client.kept())
    assert len(run.problems) == 1 and "against server" in run.problems[0]
    client.release(THIRD)
    (run,) = verified(client.kept(), client.store.rows())
    (problem,) = [problem for problem in run.problems if "against server" not in problem]
    assert "release of round 3" in problem


def test_kept_receipts_of_a_fork_or_of_another_hand_are_named(tmp_path):
    client = holder(tmp_path)
    log = two_rounds(client)
    first, last = client.kept()
    fork = Log(forked(log).leaves[:6]).receipt(4, [], attempt=(2, 1), epsilons=spent(2))
    (run,) = verified([first, last._replace(receipt=fork)])
    assert any("size 6: the log does not continue" in problem for problem in run.problems)
    flipped = last.receipt[:-1] + bytes([last.receipt[-1] ^ 1])
    (run,) = verified([first, last._replace(receipt=flipped)])
    assert any("receipt at size 6: " in problem for problem in run.problems)


def test_receipts_that_share_no_head_are_not_said_to_agree(client, tmp_path):
    """A log that was forked and then grew by another number of leaves: no two heads compare."""
    one, other = holder(tmp_path), holder(tmp_path, "bob")
    log = two_rounds(one)
    fork = forked(Log(log.leaves[:5]))
    fork.event()
    other.receipts.take(fork.receipt(0, [], attempt=(1, 1)))
    files = tmp_path / "one", tmp_path / "other"
    for file, party in zip(files, (one, other), strict=True):
        file.write_bytes(write_receipts(party.kept()))
    arguments = ("receipts", "verify", str(files[0]), "--compare", str(files[1]))
    shown = client(*arguments)
    assert shown.code == 3 and "nothing could be" in shown.err
    (compared,) = client(*arguments, "--json").document["compared"]
    assert compared["common"] == 0 and len(compared["problems"]) == 1


def mutated(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    kind = dice.randrange(3)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + 1 + dice.randrange(40) :]
    to = dice.randrange(len(data))
    low, high = min(at, to), max(at, to)
    return data[high:] + data[low:high] + data[:low]


@pytest.mark.parametrize(
    "count", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_no_change_of_a_receipt_is_taken(seen: tuple[Holder, Log], count: int) -> None:
    client, log = seen
    true, dice = told(log, THIRD), random.Random(count)
    for _ in range(count):
        spoilt = mutated(true, dice)
        if spoilt != true:
            with pytest.raises(ProtocolError):
                client.receipts.take(spoilt)
    client.receipts.take(true)


def with_receipts(simulation: Simulation) -> Simulation:
    """A simulation whose coordinator hands out receipts, as that of a federation does."""
    run = simulation.run
    facts = {"run_id": run.run_id, "roll": run.roll, "records": run.records}
    courier = Courier(transport=run.transport, budget=run.terms.budget, **facts)
    return replace(simulation, run=replace(run, transport=courier))


def held(storage: Storage, *overrides: str) -> Finished:
    return storage.finish(with_receipts(storage.create(*overrides)))


@pytest.fixture(scope="module")
def receipted(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("receipted")
    return held(Storage(folder), OS, PLAIN)


def stores(run: Finished) -> Mapping[str, ClientStore]:
    return open_client_stores(stores_of(run.folder), read_only=True).stores


def test_every_client_of_a_run_has_receipts_that_add_up_and_cosigns_heads(receipted):
    runs, file = [], receipted.storage.file
    key = known_key(file)
    for store in stores(receipted).values():
        (run,) = verified(store.receipts.all(), store.rows(), key=key)
        assert run.problems == () and run.rounds == 3
        runs.append(run)
    final = receipted.summary["final"]["epsilon"]
    for name in ADVERSARIES:
        assert max(run.epsilons[name] for run in runs) == pytest.approx(final[name], rel=1e-9)
    problems, common = forks(runs[:1], runs[1:2])
    assert problems == [] and common >= 2
    sizes = witnessed_sizes(file)
    assert sizes.keys() == {store.identity.pseudonym for store in stores(receipted).values()}
    assert len(set(sizes.values())) == 1 and kept_heads(file, key).heads
    assert len([note for _, note in kept_notes(file) if len(note.signatures) > 1]) == 3


def spoilt_receipt(message: bytes) -> bytes:
    if not is_enclosed(message):
        return message
    inner, receipt = unclose(message)
    return enclose(inner, receipt[:-1] + bytes([receipt[-1] ^ 1]))


def test_a_run_whose_receipts_are_spoilt_on_the_way_stops(storage: Storage) -> None:
    """Nobody goes on with a coordinator whose log leaves out what they released."""
    with opened(storage.create(OS, "cohort.retries=0", PLAIN)) as simulation:
        through = simulation.run.transport.exchange

        class Spoiling(Transport):
            def exchange(self, stage: Any, messages: Any, deadline: Any) -> Any:
                spoilt = {client: spoilt_receipt(each) for client, each in messages.items()}
                return through(stage, spoilt, deadline)

        with pytest.raises(RunStopped):
            execute(with_receipts(over(simulation, Spoiling())), SilentObserver())
    run = Finished(storage, simulation.run_id, {})
    for store in stores(run).values():
        assert all("receipt was refused" in f.reason for f in store.failures(run.run_id))


def test_a_run_without_noise_states_that_nothing_is_proven(storage: Storage) -> None:
    run = held(storage, NONE, "rounds=1", PLAIN)
    for store in stores(run).values():
        (found,) = verified(store.receipts.all(), store.rows())
        assert found.problems == ()
        assert found.stated is not None and math.isinf(found.stated["server"])


def test_a_database_older_than_the_heads_beside_it_is_not_gone_on_with(receipted, tmp_path):
    """Rolled back alone, while what clients have witnessed stayed where it was."""
    storage = Storage(tmp_path / "copy")
    shutil.copytree(receipted.storage.folder, storage.folder)
    with opened(storage.reopen(receipted.run_id)) as simulation:
        courier = with_receipts(simulation).run.transport
        assert isinstance(courier, Courier)
        sizes = witnessed_sizes(storage.file)
        witness, ahead = next(iter(sizes)), max(sizes.values()) + 50
        signer = log_signer(storage.file)
        note = signer.sign(Checkpoint(signer.name, ahead, bytes(32)).encode())
        note = note.with_signatures([Signature(witness, b"abcd", bytes(72))])
        add_note(storage.file, note.encode())
        name = {p: c for c, p in courier.roll.pseudonyms.items()}[witness]
        again = with_receipts(simulation).run.transport
        parting = encode_parting(Parting(Envelope(receipted.run_id, 4, 0, (3, 1)), {}, None))
        with pytest.raises(CoordinatorBehind, match="an old copy"):
            again.exchange("personalise", {name: parting}, None)


def test_the_command_line(client, receipted, tmp_path):
    file, other = tmp_path / "one", tmp_path / "other"
    for path, store in zip((file, other), stores(receipted).values(), strict=False):
        path.write_bytes(write_receipts(store.receipts.all()))
    key = known_key(receipted.storage.file)
    assert key is not None
    arguments = ("receipts", "verify", str(file), "--compare", str(other), "--key", key.encode())
    answer = client(*arguments, "--json")
    assert (answer.code, answer.err) == (0, "")
    (run,) = answer.document["runs"]
    assert run["rounds"] == 3 and run["problems"] == []
    assert answer.document["compared"][0]["common"] >= 2
    lines = file.read_text().splitlines()
    spoilt = json.loads(lines[-1])
    spoilt["receipt"] = spoilt["receipt"][:-8] + "AAAAAA=="
    file.write_text("\n".join([*lines[:-1], json.dumps(spoilt), ""]))
    answer = client(*arguments)
    assert answer.code == 3 and "error: run" in answer.err
    file.write_text("{}")
    answer = client(*arguments)
    assert (answer.code, answer.err.count("\n")) == (2, 1)


COUNTS = [60, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
Dice = random.Random


class Heads:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "sotto.db"
        self.database = open_database(f"sqlite:///{self.path}")
        facts = {"config_json": "{}", "config_digest": "d", "versions_json": "{}"}
        with self.database.unit_of_work() as unit:
            for run in ("r", "s"):
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
        except (Authentication, StorageError) as error:
            return str(error)
        return None


def line_of(note: str) -> bytes:
    return json.dumps({"note": note}).encode("ascii")


def a_flip(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    lines, at = list(heads.lines), dice.randrange(len(heads.lines))
    line = bytearray(lines[at])
    line[dice.randrange(len(line))] ^= 1 << dice.randrange(8)
    lines[at] = bytes(line)
    return lines, "line"


def a_cut(heads: Heads, dice: Dice) -> tuple[list[bytes], str]:
    lines, at = list(heads.lines), dice.randrange(len(heads.lines))
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
    return lines, f"line {at + 1}: the note"


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
    *(a_flip, a_cut, another_root, another_size),
    *(a_strangers_head, a_replaced_key, a_false_hand_over),
)


@pytest.mark.parametrize("count", COUNTS)
def test_every_change_of_kept_heads_is_named(tmp_path: Path, count: int) -> None:
    heads = Heads(tmp_path)
    assert heads.reason() is None
    dice = Dice(count)
    for number in range(count):
        lines, named = ON_HEADS[number % len(ON_HEADS)](heads, dice)
        heads.file.write_bytes(b"".join(line + b"\n" for line in lines))
        reason = heads.reason()
        assert reason is not None and named in reason, (number, named, reason)
    heads.file.write_bytes(b"".join(line + b"\n" for line in heads.lines))
    assert heads.reason() is None
    heads.database.close()


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
    size = dice.randrange(1, len(log.leaves))
    return Log(log.leaves[:size]).receipt(6, []), f"has {size} leaves"


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
    return told(log, replace(THIRD, **cheaper)), "another charge for"


def a_hidden_release(log: Log, dice: Dice) -> tuple[bytes, str]:
    """Left out, put elsewhere, or called aborted."""
    kind, left_out = dice.randrange(4), "leaves out"
    if kind == 0:
        return told(log, None), left_out
    if kind == 1:
        return told(log, replace(THIRD, channel=dice.choice(("pool", "metrics")))), left_out
    if kind == 2:
        return told(log, replace(THIRD, attempt=dice.randrange(2, 99))), left_out
    after = Log(list(log.leaves))
    positions = [after.charge(THIRD), after.settle(THIRD, "aborted")]
    return after.receipt(6, positions, attempt=(3, 1)), "nothing was released"


def another_key(log: Log, dice: Dice) -> tuple[bytes, str]:
    """A new key with nothing, with a loss that nobody confirmed, or one that a stranger handed."""
    new = NoteSigner(SIGNER.name, dice.randbytes(32))
    stranger = NoteSigner(SIGNER.name, dice.randbytes(32))
    changes = dice.choice([(), (state_lost(new),), (hand_over(stranger, new),)])
    after = Log([*log.leaves, b"more"], new, changes)
    return after.receipt(6, []), "no key handed"


def a_false_signature(log: Log, dice: Dice) -> tuple[bytes, str]:
    """All is as it should be, but for who says so."""
    true = decode_receipt(told(log, THIRD))
    return signed(true, NoteSigner(SIGNER.name, dice.randbytes(32))), "does not verify"


ON_VIEWS = (
    *(a_fork, a_rollback, an_undercharge, a_hidden_release),
    *(another_key, a_false_signature),
)


@pytest.mark.parametrize("count", COUNTS)
def test_every_false_view_is_named_by_a_client_that_saw_the_true_one(seen, count):
    client, log = seen
    dice = Dice(count)
    for number in range(count):
        lie, named = ON_VIEWS[number % len(ON_VIEWS)](log, dice)
        with pytest.raises(ReceiptRefused) as caught:
            client.receipts.take(lie)
        assert named in str(caught.value), (number, named)
    assert [kept.size for kept in client.kept()] == [4, 6]
    assert client.receipts.take(told(log, THIRD)).cosignature


@pytest.mark.parametrize("count", [20, pytest.param(2_000, marks=pytest.mark.slow)])
def test_two_clients_that_were_shown_different_logs_find_out(seen, count):
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
        theirs = verified([KeptReceipt(ROW.run_id, 6, receipt)])
        problems, common = forks(mine, theirs)
        assert (len(problems), common) == (1, 1), number
        assert "different 6 leaves" in problems[0]
