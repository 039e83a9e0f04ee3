"""A charge, the answer that it pays for, and what the client keeps are durable at once or not.

Training is answered by one client with a store of its own, and every statement that it sends its
database is made to fail in turn. Afterwards somebody else reads the file: an answer without its
charge would be a release that no ledger knows.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from methods import Examples
from platform.contract.driving import RUN, Setting, make_clients, quick_folder
from platform.errors import ProtocolError
from platform.parties.client import Client
from platform.wire import messages
from platform.wire.codec import Envelope
from platform.wire.messages import Assignment, Invitation
from platform.wire.transport import Dropout, answer
from privacy import UnsupportedEvent, UploadNoise
from storage import StorageError
from storage.engine import Statements
from tests.trunk.test_hostile_assignments import Method

ENVELOPE = Envelope(RUN, 1, 1)
CALLS = ("run", "count", "run_many")


class Failing:
    """Lets the nth statement from now on fail; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.left, self.seen = nth, 0
        for name in CALLS:
            original = getattr(Statements, name)

            def failing(statements, text, *values, original=original):
                self.seen += 1
                if self.seen == self.left:
                    raise StorageError("the disk is gone")
                return original(statements, text, *values)

            monkeypatch.setattr(Statements, name, failing)


def client_in(folder: Path) -> Client:
    """A client that has joined the round."""
    data = {"client-0": Examples({"labels": np.zeros(2, np.int64)})}
    setting = Setting(mechanism=UploadNoise(1.0, 1.0))
    (client,) = make_clients(Method(pooled=False), data, folder, setting).values()
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
    return client


def training() -> bytes:
    broadcast = {"x": np.zeros(2, np.float32), "y": np.ones((2, 3), np.float32)}
    return messages.encode_assignment(Assignment(ENVELOPE, b"", broadcast, ()))


def durable(folder: Path) -> dict[str, int]:
    """Rows of each kind, as another process finds them."""
    tables = ("ledger", "replies", "personal")
    with closing(sqlite3.connect(folder / "client-0.db")) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in tables
        }


def test_whatever_fails_nothing_is_durable_in_part(monkeypatch: pytest.MonkeyPatch):
    joined = {"ledger": 0, "replies": 1, "personal": 0}
    outcomes = []
    for nth in range(1, 200):
        with quick_folder() as folder, monkeypatch.context() as patched:
            client = client_in(folder)
            assert durable(folder) == joined
            failing = Failing(patched, nth)
            try:
                reply = client.handle(training())
            except StorageError:
                # It never left, so it may or may not be there; but with all that belongs to it.
                outcomes.append(durable(folder))
                continue
            assert failing.seen < nth
            assert durable(folder) == {"ledger": 1, "replies": 2, "personal": 1}
            assert messages.decode_upload(reply).vector is not None
            break
    assert len(outcomes) >= 3
    assert all(found in (joined, {"ledger": 1, "replies": 2, "personal": 1}) for found in outcomes)
    assert joined in outcomes


def test_an_answer_that_was_not_made_durable_is_made_anew_and_charged_once(
    monkeypatch: pytest.MonkeyPatch,
):
    with quick_folder() as folder:
        client = client_in(folder)
        with monkeypatch.context() as patched:
            Failing(patched, 2)
            with pytest.raises(StorageError):
                client.handle(training())
        first = client.handle(training())
        assert client.handle(training()) == first
        assert durable(folder)["ledger"] == 1


@pytest.mark.parametrize("error", [UnsupportedEvent("no bound"), ProtocolError("message: no")])
def test_a_client_that_cannot_price_or_trust_a_message_is_lost_and_stops_nobody(error: Exception):
    def handler(message: bytes) -> bytes:
        raise error

    reply = answer(handler, b"")
    assert isinstance(reply, Dropout) and "refused" in reply.reason
