"""Receipts are tied to the bytes that a client sent, and to those that were signed with them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform.errors import ProtocolError
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.parties.client_state import Session, decode_session, encode_session
from platform.parties.receipt_checks import ReceiptRefused, read_receipts, verified, write_receipts
from platform.wire.codec import Envelope, peek
from platform.wire.receipt_messages import (
    ADVERSARIES,
    MOST_SENT,
    UploadDigest,
    decode_kept,
    decode_receipt,
    decode_uploads,
    encode_uploads,
    sign_receipts,
)
from platform.wire.transport import ClientId, Dropout, Transport
from privacy import Authentication
from storage import ClientStore, SessionRecord
from tests.trunk._receipts import ROW, RUN, SIGNER, Holder, Log, holder
from tests.trunk._runs import OS, Finished, Storage, crashed, over
from tests.trunk.test_receipts import PLAIN, exact, stores, two_rounds, with_receipts

VECTORS = Path(__file__).parents[1] / "vectors" / "receipts"
SENT = UploadDigest(1, 1, hashlib.sha256(b"what was sent").digest())
OTHER = SENT._replace(digest=hashlib.sha256(b"something else").digest())


def remember(client: Holder, *uploads: UploadDigest) -> None:
    """A client whose session says what it has sent."""
    session = Session(envelope=Envelope(RUN, 1, 1), awaits="nothing", sent=uploads)
    record = SessionRecord(RUN, 1, 1, noiseless_round=0, state=encode_session(session))
    client.store.sessions.keep(record, after=None, request_digest=b"r" * 32, reply=b"reply")


def one_round(client: Holder, *uploads: UploadDigest) -> bytes:
    """The receipt of a round in which a client released something, and these bytes came."""
    log = Log()
    first = log.charge(ROW)
    client.release(ROW)
    log.settle(ROW)
    return log.receipt(0, [first, 1], uploads=uploads)


@pytest.mark.parametrize(("sent", "stated"), [((SENT,), (SENT,)), ((), (OTHER,)), ((SENT,), ())])
def test_a_receipt_of_what_was_sent_is_taken(tmp_path, sent, stated):
    """What either side no longer knows is no lie: the session goes when its run is erased, and a
    coordinator that was started anew says nothing."""
    client = holder(tmp_path)
    if sent:
        remember(client, *sent)
    assert client.receipts.take(one_round(client, *stated)).cosignature
    (run,) = verified(client.kept())
    assert (run.uploads, run.charged) == (stated, 1)


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (OTHER, "another upload in round 1, attempt 1"),
        (SENT._replace(attempt=2), "upload in round 1, attempt 2"),
        (SENT._replace(round_number=9), "upload in round 9"),
    ],
)
def test_a_receipt_of_other_bytes_is_refused(tmp_path, stated, reason):
    client = holder(tmp_path)
    remember(client, SENT)
    with pytest.raises(ReceiptRefused, match=reason):
        client.receipts.take(one_round(client, stated))
    assert client.kept() == []
    assert len(client.told) == 1 and reason in client.told[0]


def test_two_receipts_that_tell_of_different_uploads(tmp_path: Path) -> None:
    client = holder(tmp_path)
    log = two_rounds(client)
    for at, upload in ((6, SENT), (7, OTHER)):
        log.event()
        client.receipts.take(log.receipt(at, [], attempt=(2, 1), uploads=(upload,)))
    (run,) = verified(client.kept())
    assert any("different uploads in" in problem for problem in run.problems)


def test_a_session_remembers_its_last_uploads() -> None:
    session = Session(envelope=Envelope(RUN, 1, 1), awaits="train")
    for attempt in range(1, 2 * MOST_SENT):
        session = replace(session, envelope=Envelope(RUN, 1, attempt)).having_sent(b"%d" % attempt)
    record = SessionRecord(RUN, 1, 2 * MOST_SENT - 1, state=encode_session(session))
    found = decode_session(record)
    assert found is not None and found.sent == session.sent
    assert [u.attempt for u in found.sent] == list(range(MOST_SENT, 2 * MOST_SENT))
    assert found.sent[0].digest == hashlib.sha256(b"%d" % MOST_SENT).digest()


def together(tmp_path: Path, count: int) -> list[bytes]:
    """Receipts of one stage, which differ in nothing but what is random in each."""
    receipt = decode_receipt(one_round(holder(tmp_path), SENT))
    return sign_receipts([receipt] * count, SIGNER.signed)


@pytest.mark.parametrize("count", [1, 7])
def test_one_signature_holds_for_every_receipt_of_a_stage(tmp_path: Path, count: int) -> None:
    receipts = together(tmp_path, count)
    assert len({receipt[-64:] for receipt in receipts}) == 1 and len(set(receipts)) == count
    for found in map(decode_receipt, receipts):
        SIGNER.key.verify(found.signed, found.signature)


def test_a_receipt_holds_in_its_own_place_only(tmp_path: Path) -> None:
    """Each bit of the end, which no frame holds: the proof, the place, the number of receipts."""
    receipts = together(tmp_path, 3)
    for data in receipts:
        for at in range(len(data) - 64 - 16 - 2 * 32, len(data)):
            spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            with pytest.raises((ProtocolError, Authentication)):
                found = decode_receipt(spoilt)
                SIGNER.key.verify(found.signed, found.signature)
    # The same receipt twice: without random bytes the others' hashes could be guessed.
    one, other, _ = receipts
    assert one[-80 - 64 : -80 - 32] != other[-80 - 64 : -80 - 32]


def digest(upload: bytes) -> bytes:
    return hashlib.sha256(upload).digest()


Heard = dict[str, dict[int, bytes]]


def listened(simulation: Simulation, heard: Heard) -> Simulation:
    """A simulation with receipts whose uploads are written down, by pseudonym and round."""
    through = simulation.run.transport.exchange

    class Listening(Transport):
        def exchange(self, *arguments: Any) -> Mapping[ClientId, bytes | Dropout]:
            answers = through(*arguments)
            for client, answer in answers.items():
                if isinstance(answer, bytes) and peek(answer)[0] == "upload":
                    of_client = heard.setdefault(simulation.run.roll.pseudonyms[client], {})
                    of_client[peek(answer)[1].round_number] = answer
            return answers

    return with_receipts(over(simulation, Listening()))


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Heard]:
    storage, uploads = Storage(tmp_path_factory.mktemp("heard")), {}
    return storage.finish(listened(storage.create(OS, PLAIN), uploads)), uploads


def test_receipts_of_a_run_tell_of_the_bytes_on_the_wire(heard: tuple[Finished, Heard]) -> None:
    run, uploads = heard
    for store in stores(run).values():
        (found,) = verified(store.receipts.all(), store.rows())
        sent = uploads[store.identity.pseudonym]
        assert found.uploads == tuple(UploadDigest(n, 1, digest(x)) for n, x in sent.items())
        # What is lost on its way is charged, and nobody can say what it was.
        assert sent and found.charged >= attempts(store) and found.problems == ()


def test_digests_of_uploads_are_in_no_file_of_the_coordinator(heard):
    """In the clear, and with a pool of the same vectors, they would say whose entry is whose."""
    run, uploads = heard
    digests = [digest(x) for sent in uploads.values() for x in sent.values()]
    files = [f for f in run.storage.folder.iterdir() if f.is_file()]
    assert run.storage.file in files
    for file in files:
        data = file.read_bytes()
        assert not any(d in data or d.hex().encode() in data for d in digests), file.name


@pytest.mark.slow
def test_after_a_restart_only_what_came_since_is_told(storage, monkeypatch):
    heard: Heard = {}
    simulation = listened(storage.create(OS), heard)
    crashed(monkeypatch, simulation, Client, "_disclose", 7, after=True)
    run = storage.finish(listened(storage.reopen(simulation.run_id), heard))
    for store in stores(run).values():
        (found,) = verified(store.receipts.all(), store.rows())
        assert found.problems == ()
        told = {upload.round_number: upload.digest for upload in found.uploads}
        sent = {n: digest(x) for n, x in heard.get(store.identity.pseudonym, {}).items()}
        # The second round's uploads came before the crash, and nobody wrote them down.
        assert told.items() <= sent.items() and 2 not in told
        assert (3 in told) == (3 in sent) and found.charged >= attempts(store) >= len(sent)


def attempts(store: ClientStore) -> int:
    return len({(row.round_number, row.attempt) for row in store.rows()})


def test_the_command_line_says_which_round_an_upload_is_of(client, heard, tmp_path):
    run, uploads = heard
    store = next(s for s in stores(run).values() if len(uploads[s.identity.pseudonym]) == 3)
    file, upload = tmp_path / "receipts", tmp_path / "upload"
    file.write_bytes(write_receipts(store.receipts.all()))
    upload.write_bytes(uploads[store.identity.pseudonym][2])
    arguments = ("receipts", "verify", str(file), "--upload", str(upload))
    shown = client(*arguments)
    assert shown.code == 0 and "3 of 3" in shown.out
    assert "round 2, attempt 1" in " ".join(shown.out.split())
    (bound,) = client(*arguments, "--json").document["uploads"]
    assert (bound["round"], bound["run"]) == (2, run.run_id)
    upload.write_bytes(upload.read_bytes()[:-1])
    shown = client(*arguments)
    assert shown.code == 3 and "no receipt is" in shown.err


def test_first_receipts_are_still_verified() -> None:
    kept = read_receipts(VECTORS / "version-1.jsonl")
    assert len(kept) == 2
    (run,) = verified(kept, key=SIGNER.key)
    assert (run.problems, run.rounds, run.uploads, run.charged) == ((), 2, (), 2)
    assert run.epsilons is not None
    for name in ADVERSARIES:
        assert run.epsilons[name] == pytest.approx(exact(2), rel=1e-9)
        assert math.isclose(decode_kept(kept[-1].receipt).epsilons[name], exact(2), rel_tol=1e-9)


def test_first_receipts_are_not_taken_from_a_coordinator(tmp_path: Path) -> None:
    """Nobody can go back to what said less."""
    (first, _) = read_receipts(VECTORS / "version-1.jsonl")
    with pytest.raises(ProtocolError, match="receipt"):
        holder(tmp_path).receipts.take(first.receipt)


@pytest.mark.parametrize("data", [b"x", encode_uploads([SENT])[:-1]])
def test_uploads_that_do_not_parse_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="uploads"):
        decode_uploads(data)
