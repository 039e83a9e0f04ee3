"""Receipts: a client holds the coordinator's log against what it knows itself."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform.cli.client_app import main
from platform.disk.log_files import add_note, kept_heads, kept_notes, known_key, log_signer
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
from platform.wire.transport import ClientId, Dropout, Transport
from privacy.transparency import (
    Checkpoint,
    NoteSigner,
    hand_over,
    read_note,
    require_cosigned,
)
from privacy.transparency.notes import Signature
from storage import ClientStore, open_client_stores
from tests.trunk._receipts import ROW, RUN, SIGNER, Holder, Log, holder, signed
from tests.trunk._runs import (
    NONE,
    OS,
    Answer,
    Finished,
    Storage,
    command_line,
    gaussian_epsilon,
    opened,
    stores_of,
)

SECOND = replace(ROW, round_number=2)


def exact(rounds: int) -> float:
    """Epsilon of so many rounds by the exact Gaussian formula."""
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


def test_true_receipts_are_kept_and_witnessed(tmp_path: Path) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    assert [kept.size for kept in client.kept()] == [4, 6]
    seen = client.store.receipts.seen(SIGNER.name)
    assert seen is not None and (seen.size, seen.root) == (6, log.tree().root())
    reached = client.store.receipts.reached(RUN)
    assert reached is not None and (reached.round_number, reached.ahead) == (2, "")
    note = read_note(decode_receipt(client.kept()[-1].receipt).checkpoint + reached.cosignature)
    assert require_cosigned(note, client.receipts.witness.key) == 1_700_000_000


def test_the_same_request_again_changes_nothing(tmp_path: Path) -> None:
    client = holder(tmp_path)
    two_rounds(client)
    (tmp_path / "file").write_bytes(write_receipts(client.kept()))
    assert list(read_receipts(tmp_path / "file")) == client.kept()
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


def grown(log: Log, row: Any, **changes: Any) -> bytes:
    """The next receipt, of a third round, with a leaf of the row."""
    positions = [log.charge(row)] if row is not None else []
    log.event()
    return log.receipt(6, positions, attempt=(3, 1), **changes)


THIRD = replace(ROW, round_number=3)
NEW = NoteSigner("sotto/new", bytes(32))
# Those that `test_view_mutations.py` has with random contents are there only.
ATTACKS: dict[str, tuple[Callable[[Log], bytes], str]] = {
    "somebody else's": (
        lambda log: grown(log, replace(THIRD, pseudonym="bob")),
        "of another client",
    ),
    "another run's": (lambda log: grown(log, replace(THIRD, run_id="other")), "of another run"),
    "an earlier release that was aborted": (
        lambda log: log.receipt(6, [log.settle(SECOND, "aborted")], attempt=(2, 1)),
        "says that nothing was released in round 2",
    ),
    "an older round": (lambda log: log.receipt(6, [], attempt=(1, 1)), "one of round 2 came"),
    "a fork of the same size": (
        lambda log: Log(forked(log).leaves[:6]).receipt(6, [], attempt=(2, 1)),
        "it was forked",
    ),
    "another log": (
        lambda log: Log([*log.leaves, b"more"], NEW).receipt(0, []),
        "was in log sotto/log, and now in sotto/new",
    ),
    "an event for a charge": (lambda log: grown(log, THIRD, leaves=false_leaf(log)), "not in the"),
    "a false checkpoint": (
        lambda log: signed(
            replace(decode_receipt(grown(log, THIRD)), checkpoint=NEW.sign("a\n").encode())
        ),
        "signed by none",
    ),
}


def false_leaf(log: Log) -> tuple[ReceiptLeaf, ...]:
    tree = log.tree()
    return (ReceiptLeaf(0, log.leaves[1], b"", tree.inclusion_proof(0)),)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_lie_is_named_and_kept_nowhere(tmp_path: Path, attack: str) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    client.release(THIRD)
    lie, reason = ATTACKS[attack]
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
    with pytest.raises(ReceiptRefused, match="no key handed over"):
        client.receipts.take(Log([*log.leaves, b"more", b"x"]).receipt(7, [], attempt=(2, 1)))


def test_a_key_that_the_owner_knows_is_required(tmp_path: Path) -> None:
    log = Log()
    log.event()
    client = holder(tmp_path, trusted=NoteSigner(SIGNER.name, bytes(32)).key)
    with pytest.raises(ReceiptRefused, match="not by the known key"):
        client.receipts.take(log.receipt(0, []))


def test_receipts_cost_what_the_formula_says(tmp_path: Path) -> None:
    client = holder(tmp_path)
    two_rounds(client)
    (run,) = verified(client.kept(), client.store.rows())
    assert run.problems == ()
    assert run.epsilons is not None
    for name in ADVERSARIES:
        assert run.epsilons[name] == pytest.approx(exact(2), rel=1e-9)


def test_an_understated_epsilon_is_named(tmp_path: Path) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    log.event()
    low = {**spent(2), "server": exact(2) * (1 - 1e-7)}
    client.receipts.take(log.receipt(6, [], attempt=(2, 1), epsilons=low))
    (run,) = verified(client.kept())
    (problem,) = run.problems
    assert "against server; it is" in problem


def test_a_release_that_no_receipt_tells_of(tmp_path: Path) -> None:
    client = holder(tmp_path)
    two_rounds(client)
    client.release(THIRD)
    (run,) = verified(client.kept(), client.store.rows())
    (problem,) = run.problems
    assert problem.startswith("no receipt has come yet for the release of round 3, attempt 1")


def test_receipts_that_share_no_head_are_not_said_to_agree(
    client: Callable[..., Answer], tmp_path: Path
) -> None:
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
    assert shown.code == 3
    assert "nothing could be compared" in shown.err
    (compared,) = client(*arguments, "--json").document["compared"]
    assert compared["common"] == 0 and len(compared["problems"]) == 1


# --- spoilt at random -----------------------------------------------------------------------------


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One byte changed, one cut away, or two parts swapped."""
    at = dice.randrange(len(data))
    kind = dice.randrange(3)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + 1 + dice.randrange(40) :]
    to = dice.randrange(len(data))
    low, high = min(at, to), max(at, to)
    return data[high:] + data[low:high] + data[:low]


def survives(client: Holder, data: bytes) -> bool:
    try:
        client.receipts.take(data)
    except ProtocolError:
        return False
    return True


@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_no_change_of_a_receipt_is_taken(tmp_path: Path, count: int) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    client.release(THIRD)
    true = grown(log, THIRD)
    dice = random.Random(count)
    for _ in range(count):
        spoilt = mutated(true, dice)
        if spoilt != true:
            assert not survives(client, spoilt)
    assert survives(client, true)


# --- whole runs -----------------------------------------------------------------------------------


def with_receipts(
    simulation: Simulation, lie: Callable[[bytes], bytes] | None = None
) -> Simulation:
    """A simulation whose coordinator hands out receipts, as that of a federation does."""
    run = simulation.run
    courier = Courier(
        transport=run.transport if lie is None else Lying(run.transport, lie),
        run_id=run.run_id,
        roll=run.roll,
        budget=run.terms.budget,
        records=run.records,
    )
    return replace(simulation, run=replace(run, transport=courier))


def held(storage: Storage, *overrides: str) -> Finished:
    with opened(storage.create(*overrides)) as simulation:
        summary = execute(with_receipts(simulation), SilentObserver())
        return Finished(storage, simulation.run_id, summary)


@pytest.fixture(scope="module")
def receipted(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run of five clients with receipts."""
    return held(Storage(tmp_path_factory.mktemp("receipted")), OS)


def stores(run: Finished) -> Mapping[str, ClientStore]:
    return open_client_stores(stores_of(run.folder), read_only=True).stores


def test_every_client_of_a_run_has_receipts_that_add_up(receipted: Finished) -> None:
    key = known_key(receipted.storage.file)
    worst = dict.fromkeys(ADVERSARIES, 0.0)
    runs = []
    for store in stores(receipted).values():
        (run,) = verified(store.receipts.all(), store.rows(), key=key)
        assert run.problems == ()
        assert run.rounds == 3 and run.epsilons is not None
        worst = {name: max(worst[name], run.epsilons[name]) for name in ADVERSARIES}
        runs.append(run)
    final = receipted.summary["final"]["epsilon"]
    assert worst == pytest.approx({name: final[name] for name in ADVERSARIES}, rel=1e-9)
    problems, common = forks(runs[:1], runs[1:2])
    assert problems == [] and common >= 2


def test_heads_are_cosigned_by_all_clients(receipted: Finished) -> None:
    file = receipted.storage.file
    pseudonyms = {store.identity.pseudonym for store in stores(receipted).values()}
    sizes = witnessed_sizes(file)
    assert sizes.keys() == pseudonyms
    assert len(set(sizes.values())) == 1
    witnessed = [note for _, note in kept_notes(file) if len(note.signatures) > 1]
    assert len(witnessed) == 3
    assert kept_heads(file, known_key(file)).heads


class Lying(Transport):
    """Between an honest courier and the clients, with the log's key in its hands."""

    def __init__(self, through: Transport, lie: Callable[[bytes], bytes]) -> None:
        self.through, self.lie = through, lie

    def exchange(
        self, stage: Any, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        told = {c: self.told(message) for c, message in messages.items()}
        return self.through.exchange(stage, told, deadline)

    def told(self, message: bytes) -> bytes:
        if not is_enclosed(message):
            return message
        inner, receipt = unclose(message)
        return enclose(inner, self.lie(receipt))


def test_a_run_whose_receipts_are_spoilt_on_the_way_stops(storage: Storage) -> None:
    """Nobody goes on with a coordinator whose log leaves out what they released."""

    def lie(receipt: bytes) -> bytes:
        return receipt[:-1] + bytes([receipt[-1] ^ 1])

    with opened(storage.create(OS, "cohort.retries=0")) as simulation:
        with pytest.raises(RunStopped):
            execute(with_receipts(simulation, lie), SilentObserver())
    run = Finished(storage, simulation.run_id, {})
    for store in stores(run).values():
        assert all("receipt was refused" in f.reason for f in store.failures(run.run_id))


def test_a_run_without_noise_states_that_nothing_is_proven(storage: Storage) -> None:
    run = held(storage, NONE, "rounds=2")
    for store in stores(run).values():
        (found,) = verified(store.receipts.all(), store.rows())
        assert found.problems == ()
        assert found.stated is not None and math.isinf(found.stated["server"])


@pytest.fixture
def client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """The data holder's command line."""
    return command_line(monkeypatch, capsys, main)


def test_a_database_older_than_the_heads_beside_it_is_not_gone_on_with(storage: Storage) -> None:
    """Rolled back alone, while what clients have witnessed stayed where it was."""
    run = held(storage, OS, "rounds=2")
    with opened(storage.reopen(run.run_id)) as simulation:
        courier = with_receipts(simulation).run.transport
        assert isinstance(courier, Courier)
        envelope = Envelope(run.run_id, 3, 0, (2, 1))
        sizes = witnessed_sizes(storage.file)
        witness = next(iter(sizes))
        ahead = max(sizes.values()) + 50
        signer = log_signer(storage.file)
        note = signer.sign(Checkpoint(signer.name, ahead, bytes(32)).encode())
        add_note(
            storage.file,
            note.with_signatures([Signature(witness, b"abcd", bytes(72))]).encode(),
        )
        name = {p: c for c, p in courier.roll.pseudonyms.items()}[witness]
        again = with_receipts(simulation).run.transport
        parting = encode_parting(Parting(envelope, {}, None))
        with pytest.raises(CoordinatorBehind, match="the database is an old copy"):
            again.exchange("personalise", {name: parting}, None)


def test_the_command_line(
    client: Callable[..., Answer], receipted: Finished, tmp_path: Path
) -> None:
    file, other = tmp_path / "one", tmp_path / "other"
    a, b, *_ = stores(receipted).values()
    file.write_bytes(write_receipts(a.receipts.all()))
    other.write_bytes(write_receipts(b.receipts.all()))
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
