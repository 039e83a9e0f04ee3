"""Which machine's word counts as whose: the enrolment's node keys, and what FLARE's sites sign."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from platform.errors import ConfigError, ProtocolError
from platform.relay.flower.connection import create_key, read_enrolled
from platform.relay.links import read_nodes
from platform.relay.nvflare.__main__ import main
from platform.relay.nvflare.site import node_of, signed, verified
from privacy.secure_aggregation import Enrolment, Identity
from tests.trunk._federations import NAMES

ASKED, SAID = b"request 7 for north", b"outcome"


def a_site(folder: Path, name: str) -> Path:
    """A site's folder `startup`, with its own key and a certificate under a name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    startup = folder / "startup"
    startup.mkdir(parents=True)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, SHA256())
    )
    (startup / "client.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (startup / "client.key").write_bytes(private)
    return startup


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sites")
    # The second is another machine whose certificate has the same name.
    return {name: a_site(folder / name, "north") for name in ("north", "impostor")}


@pytest.mark.parametrize(("signing", "enrolled"), [("impostor", "north"), ("north", "impostor")])
def test_a_site_under_anothers_name_or_key_answers_nothing(sites, signing, enrolled):
    answer = signed(sites[signing], ASKED, SAID)
    with pytest.raises(ProtocolError, match="did not sign with the node key that is enrolled"):
        verified(node_of(sites[enrolled]), ASKED, answer)


def test_of_what_the_enrolled_site_signed_no_bit_and_no_other_request_counts(sites):
    node, answer = node_of(sites["north"]), signed(sites["north"], ASKED, SAID)
    assert verified(node, ASKED, answer) == SAID
    with pytest.raises(ProtocolError):
        verified(node, b"request 8 for north", answer)
    for at in (0, 1, 2, 100, len(answer) - 1):
        changed = bytearray(answer)
        changed[at] ^= 1
        with pytest.raises(ProtocolError):
            verified(node, ASKED, bytes(changed))


@pytest.mark.parametrize("answer", [None, b"", b"\0", SAID, bytes(2) + SAID, b"\xff" * 9, 3, "x"])
def test_what_is_not_signed_at_all_counts_for_nothing(sites, answer):
    with pytest.raises(ProtocolError):
        verified(node_of(sites["north"]), ASKED, answer)


def test_a_sites_key_is_printed_as_the_enrolment_takes_it(sites, capsys):
    assert main(["node", str(sites["north"].parent)]) == 0
    node = capsys.readouterr().out.strip()
    known = Enrolment().enrol("north", Identity(b"\1" * 32).public).bind("north", node)
    assert known.members["north"].node == node == node_of(sites["north"])


@pytest.fixture
def known(tmp_path) -> tuple[Path, Enrolment]:
    enrolment = Enrolment()
    for number, name in enumerate(NAMES):
        public = Identity(bytes([number + 1]) * 32).public
        node = create_key(tmp_path / f"{name}.node")
        enrolment = enrolment.enrol(name, public).bind(name, node)
    return tmp_path / "enrolment.json", enrolment


def test_relays_read_the_file_that_everybody_compares(known):
    path, enrolment = known
    path.write_bytes(enrolment.encode())
    assert read_nodes(path) == {name: enrolment.members[name].node for name in NAMES}
    assert read_enrolled(path).keys() == set(NAMES)


def test_who_is_revoked_or_has_no_node_is_let_in_by_nobody(known):
    path, enrolment = known
    path.write_bytes(enrolment.revoke("east").bind("west", None).encode())
    assert read_nodes(path).keys() == {"north", "south"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.pop("serial"), "is not an enrolment"),
        (lambda tree: tree.update(members=[]), "is not an enrolment"),
        (lambda tree: tree["members"]["east"].pop("node"), "not a valid member"),
        (lambda tree: tree["members"].clear(), "binds no client"),
        (
            lambda tree: tree["members"]["east"].update(node=tree["members"]["west"]["node"]),
            "the same node",
        ),
    ],
    ids=["no serial", "a list", "no node", "nobody", "one node of two"],
)
def test_a_file_that_is_none_lets_nobody_in(known, change, words):
    path, enrolment = known
    tree = json.loads(enrolment.encode())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=words):
        read_nodes(path)


def test_keys_that_flower_does_not_know_are_refused_by_name(known, sites):
    path, enrolment = known
    path.write_bytes(enrolment.bind("east", node_of(sites["north"])).encode())
    with pytest.raises(ConfigError, match="'east': valid: a key of a NIST curve"):
        read_enrolled(path)
