"""Identities, signatures and the enrolment file."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from privacy.errors import Authentication
from privacy.secure_aggregation import (
    Credentials,
    Enrolment,
    Identity,
    Member,
    client,
    decode_enrolment,
    fingerprint,
    new_identity,
)
from privacy.secure_aggregation.identities import verify_signature
from tests.privacy.secure_aggregation._drive import (
    enrolment_of,
    identity_of,
    make_active,
    make_parameters,
)

A, B, C = (identity_of(i).public for i in (1, 2, 3))


def test_a_signature_is_ed25519_over_a_label_and_the_digest():
    signature = identity_of(1).sign(b"d" * 32)
    message = b"sotto/secure-aggregation/signature" + b"d" * 32
    Ed25519PublicKey.from_public_bytes(A).verify(signature, message)
    verify_signature(A, b"d" * 32, signature)
    for public, signed in ((A, bytes(64)), (b"x", signature)):
        with pytest.raises(Authentication, match="not verify"):
            verify_signature(public, b"d" * 32, signed)


def test_a_signature_that_verified_once_vouches_for_itself_only():
    # Those that verified are remembered, by key, digest and signature together.
    digest, signature = bytes(32), identity_of(1).sign(bytes(32))
    for _ in range(2):
        verify_signature(A, digest, signature)
        for forged in (
            (B, digest, signature),
            (A, b"\1" + digest[1:], signature),
            (A, digest, identity_of(2).sign(digest)),
            (A, digest, signature + b"\0"),
        ):
            with pytest.raises(Authentication):
                verify_signature(*forged)


def test_a_private_key_is_not_shown():
    private = new_identity()
    identity = Identity(private)
    shown = repr(identity) + repr(Credentials(identity, Enrolment()))
    assert private.hex() not in shown
    assert repr(private)[2:-1] not in shown
    assert len(private) == 32
    assert private != new_identity()


def test_enrolment_rotation_and_revocation():
    enrolment = Enrolment().enrol("a", A).enrol("b", B)
    assert enrolment.serial == 2
    assert enrolment.names == {A: "a", B: "b"}
    rotated = enrolment.rotate("a", C)
    assert rotated.names == {C: "a", B: "b"}
    assert rotated.members["a"] == Member(C, (A,))
    revoked = rotated.revoke("a")
    assert revoked.names == {B: "b"}
    assert revoked.members["a"] == Member(None, (A, C))
    assert revoked.serial == 4
    assert len({e.fingerprint for e in (enrolment, rotated, revoked)}) == 3
    assert [len(group) for group in fingerprint(A).split("-")] == [4] * 8
    assert fingerprint(A) != fingerprint(B)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.enrol("a", identity_of(9).public),
        lambda e: e.enrol("c", A),
        lambda e: e.revoke("a").enrol("a", identity_of(9).public),
        lambda e: e.revoke("a").enrol("c", A),
        lambda e: e.revoke("a").rotate("a", identity_of(9).public),
        lambda e: e.rotate("a", C).rotate("a", A),
        lambda e: e.rotate("c", C),
        lambda e: e.revoke("c"),
        lambda e: e.enrol("", C),
        lambda e: e.enrol("x y", C),
        lambda e: e.enrol("c", C[:-1]),
    ],
)
def test_a_key_or_name_is_never_used_twice(change):
    enrolment = Enrolment().enrol("a", A).enrol("b", B)
    with pytest.raises(ValueError):
        change(enrolment)


def test_serials_have_63_bits():
    """The last one is valid, and there is none after it."""
    last = Enrolment(2**63 - 1)
    assert decode_enrolment(last.encode(), newest_serial=2**63 - 1) == last
    for serial in (2**63, -1, True, 1.0, "1"):
        with pytest.raises(ValueError, match=r"valid are 0 to 2\^63 - 1"):
            Enrolment(serial)
    with pytest.raises(ValueError, match="serial is 9223372036854775808"):
        last.enrol("a", A)


def test_the_file_reads_back_and_is_canonical():
    enrolment = Enrolment().enrol("b", B).enrol("a", A).rotate("a", C).revoke("b")
    data = enrolment.encode()
    assert decode_enrolment(data) == enrolment
    assert list(json.loads(data)["members"]) == ["a", "b"]
    same = Enrolment(4, MappingProxyType(dict(sorted(enrolment.members.items()))))
    assert same.encode() == data


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b'"version": 1', b'"version": 2'),
        lambda data: data.replace(b'"serial": 2', b'"serial": 2.0'),
        lambda data: data.replace(A.hex().encode(), A.hex().upper().encode()),
        lambda data: data.replace(A.hex().encode(), B.hex().encode()),
        lambda data: data.replace(b'"retired": []', b'"retired": [1]'),
        lambda data: data.replace(b"{", b'{"more": 1, ', 1),
        lambda data: json.dumps(json.loads(data)).encode(),
        lambda data: b"\xff",
        lambda data: b"[" * 100_000,
    ],
)
def test_any_other_file_is_refused(spoil):
    data = Enrolment().enrol("a", A).enrol("b", B).encode()
    with pytest.raises(Authentication, match="enrolment file"):
        decode_enrolment(spoil(data))


def test_an_older_file_is_refused():
    old = Enrolment().enrol("a", A)
    new = old.enrol("b", B).revoke("a")
    assert decode_enrolment(new.encode(), newest_serial=old.serial) == new
    assert decode_enrolment(new.encode(), newest_serial=new.serial) == new
    with pytest.raises(Authentication, match="serial 1"):
        decode_enrolment(old.encode(), newest_serial=new.serial)


class TestWhoMayInvite:
    """A client compares an invitation with what it knows before it says anything."""

    parameters = make_active(4, corrupt=1)

    def credentials(self, enrolment=None, index=1, **rest):
        full = enrolment_of(self.parameters.clients)
        return Credentials(identity_of(index), enrolment or full, **rest)

    def under(self, enrolment):
        """The same invitation under another enrolment file."""
        return dataclasses.replace(self.parameters, enrolment_serial=enrolment.serial)

    def test_a_phantom_or_a_revoked_or_rotated_identity_is_refused(self):
        full = enrolment_of(self.parameters.clients)
        for changed in (
            enrolment_of((1, 2, 3)),
            full.revoke("client-3"),
            full.rotate("client-3", identity_of(33).public),
        ):
            with pytest.raises(Authentication, match="not enrolled"):
                client.advertise(self.under(changed), 1, credentials=self.credentials(changed))

    def test_another_file_is_refused_and_it_is_said_which_is_newer(self):
        # The same people in both: what differs is only which file the server goes by.
        full = enrolment_of(self.parameters.clients)
        newer = full.enrol("client-9", identity_of(9).public)
        with pytest.raises(Authentication, match=r"older.* serial 5"):
            client.advertise(self.parameters, 1, credentials=self.credentials(newer))
        with pytest.raises(Authentication, match=r"newer.* serial 4"):
            client.advertise(self.under(newer), 1, credentials=self.credentials(full))
        client.advertise(self.under(newer), 1, credentials=self.credentials(newer))

    @pytest.mark.parametrize(
        ("rate", "clients", "corrupt"), [(0.3, 10, 3), (0.31, 10, 4), (0.07, 100, 7), (0.0, 10, 0)]
    )
    def test_the_share_it_insists_on_is_rounded_up(self, rate, clients, corrupt):
        def invited(withstood):
            # As high a threshold as there is, so that only the bound itself is too low.
            offered = make_active(clients, corrupt=withstood, threshold=clients)
            credentials = Credentials(identity_of(1), enrolment_of(offered.clients), rate)
            return client.advertise(offered, 1, credentials=credentials)

        invited(corrupt)
        if corrupt:
            with pytest.raises(Authentication, match="too few corrupted"):
                invited(corrupt - 1)

    def test_a_seat_under_another_identity_or_without_one_is_refused(self):
        with pytest.raises(Authentication, match="seat"):
            client.advertise(self.parameters, 2, credentials=self.credentials())
        with pytest.raises(ValueError, match="enrolment"):
            client.advertise(self.parameters, 1)

    def test_an_enrolled_client_is_not_talked_into_a_semi_honest_round(self):
        with pytest.raises(Authentication, match="semi-honest"):
            client.advertise(make_parameters(4), 1, credentials=self.credentials())

    @pytest.mark.parametrize(
        "change",
        [
            {"threshold": 2},
            {"corrupt": 2},
            {"identities": ()},
            {"identities": (A, A, B, C)},
            {"identities": (A, B, C, b"short")},
            {"degree": 2, "graph_seed": bytes(32)},
        ],
    )
    def test_parameters_below_the_active_rule_do_not_exist(self, change):
        with pytest.raises(ValueError, match=r"threshold|identities|degree"):
            make_active(4, **({"corrupt": 1} | change))
