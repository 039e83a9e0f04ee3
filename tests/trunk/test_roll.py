"""The roll call against clients that lie: one of them stops a run in one sentence, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from platform.errors import ClientsSilent, RunStopped
from platform.rounds.asking import call_roll
from platform.wire.codec import framed, peek
from platform.wire.messages import Stage
from platform.wire.transport import ClientId
from privacy.secure_aggregation import Enrolment, Identity
from privacy.secure_aggregation.identities import Member

NAMES = ("a", "b", "c")
KEYS = {name: Identity(name.encode().ljust(32)).public for name in (*NAMES, "stranger", "revoked")}
ENROLMENT = Enrolment(
    7,
    MappingProxyType(
        {
            **{name: Member(KEYS[name]) for name in NAMES},
            "revoked": Member(None, (KEYS["revoked"],)),
        }
    ),
)


@dataclass(frozen=True)
class Saying:
    """Clients that introduce themselves as they like."""

    words: Mapping[ClientId, tuple[Any, bytes]]

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes]:
        return {client: self._says(client, message) for client, message in messages.items()}

    def _says(self, client: ClientId, message: bytes) -> bytes:
        pseudonym, key = self.words[client]
        own = {"pseudonym": pseudonym}
        return framed("introduction", peek(message)[1], own, blobs={"public_key": key})


def honest(*, keys: bool) -> dict[ClientId, tuple[Any, bytes]]:
    return {name: (f"p-{name}", KEYS[name] if keys else b"") for name in NAMES}


def test_the_honest_are_known_by_their_own_words_and_the_file_by_nobodys():
    roll = call_roll(Saying(honest(keys=True)), "run", NAMES, ENROLMENT)
    assert roll.pseudonyms == {"a": "p-a", "b": "p-b", "c": "p-c"}
    assert roll.identities == {name: KEYS[name] for name in NAMES}
    assert roll.enrolment_serial == 7
    bare = call_roll(Saying(honest(keys=False)), "run", NAMES)
    assert (bare.identities, bare.enrolment_serial) == ({}, 0)


LIES: dict[str, tuple[bool, bytes]] = {
    "a key where nobody signs": (False, KEYS["b"]),
    "no key where all sign": (True, b""),
    "a key that is cut": (True, KEYS["b"][:31]),
    "another's key": (True, KEYS["a"]),
    "a key that is not enrolled": (True, KEYS["stranger"]),
    "a key that was revoked": (True, KEYS["revoked"]),
}


@pytest.mark.parametrize(("active", "key"), LIES.values(), ids=LIES.keys())
def test_whose_key_does_not_belong_here_is_named_before_any_round(active: bool, key: bytes):
    words = {**honest(keys=active), "b": ("p-b", key)}
    with pytest.raises(RunStopped, match="run run: b"):
        call_roll(Saying(words), "run", NAMES, ENROLMENT if active else None)


@pytest.mark.parametrize(
    "pseudonym", ["", 7, None, "p\nq", "\x1b[2J", "\ud800", "p" * 257, "\u202egnp"]
)
def test_a_pseudonym_that_is_no_name_is_not_heard(pseudonym: Any):
    """It is written to ledgers and logs, and shown on terminals."""
    words = {**honest(keys=False), "b": (pseudonym, b"")}
    with pytest.raises(ClientsSilent, match="stage join"):
        call_roll(Saying(words), "run", NAMES)
