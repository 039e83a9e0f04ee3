"""A second implementation of the clients, written from `docs/protocol/secure-aggregation.md` alone.

It imports nothing of ours, is slow and checks nothing: given a vector's parameters, random bytes
and the server's messages it writes down what each client must send.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import count

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

NAME = b"sotto/secure-aggregation/"
P = 2**257 - 93


def sha(data):
    return hashlib.sha256(data).digest()


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def hkdf(secret, info, size):
    key, out, block = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    for at in count(1):
        block = hmac.digest(key, block + info + bytes([at]), "sha256")
        out += block
        if len(out) >= size:
            return out[:size]


def encode_parameters(p):
    seed, run = bytes.fromhex(p["graph_seed"]), p["run_id"].encode()
    active = p["adversary"] == "active"
    return b"".join((
        bytes([4, p["ring_bits"], active]),
        u32(p["round_number"], p["attempt"], p["threshold"], p["corrupt"], p["smallest_sum"]),
        u32(p["vector_length"], p["degree"]),
        struct.pack("<Q", p["enrolment_serial"]),
        bytes([len(seed), 32 * active]),
        struct.pack("<H", len(run)),
        u32(len(p["clients"])),
        seed,
        run,
        u32(*p["clients"]),
        *map(bytes.fromhex, p["identities"]),
    ))  # fmt: skip


def holders(p, client):
    if not p["degree"]:
        return list(p["clients"])
    label = NAME + b"graph-order" + bytes.fromhex(p["graph_seed"])
    ring = sorted(p["clients"], key=lambda i: sha(label + u32(i)))
    at, reach = ring.index(client), p["degree"] // 2
    return sorted(ring[(at + step) % len(ring)] for step in range(-reach, reach + 1))


def public(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def keystream(key, words, size):
    block = Cipher(AES(key), ECB()).encryptor()  # noqa: S305
    needed = -(-words * size // 16)
    raw = b"".join(block.update(at.to_bytes(16, "big")) for at in range(2, needed + 2))
    return [int.from_bytes(raw[at * size : (at + 1) * size], "little") for at in range(words)]


def records(mapping):
    return b"".join(u32(index) + mapping[index] for index in sorted(mapping))


def read_records(body, size):
    stride = 4 + size
    return {
        int.from_bytes(body[at : at + 4], "little"): body[at + 4 : at + stride]
        for at in range(0, len(body), stride)
    }


class SecondClient:
    """One client of a vector file."""

    def __init__(self, vector, index):
        self.p, self.index = vector["parameters"], index
        self.digest = sha(NAME + b"parameters" + encode_parameters(self.p))
        self.active = self.p["adversary"] == "active"
        self.drawn = [bytes.fromhex(each) for each in vector["drawn"][str(index)]]
        self.x = vector["vectors"][str(index)]
        self.context = bytes.fromhex(vector["context"])
        if self.active:
            key = bytes.fromhex(vector["signing_keys"][str(index)])
            self.signing = Ed25519PrivateKey.from_private_bytes(key)

    def header(self, kind, sender, receiver):
        numbers = u32(self.p["round_number"], self.p["attempt"], sender, receiver)
        return b"SA" + bytes([4, kind]) + self.digest + numbers

    def message(self, kind, body, uncovered=0):
        whole = self.header(kind, self.index, 0) + body
        if not self.active:
            return whole + sha(whole[: len(whole) - uncovered])[:16]
        return whole + self.signing.sign(NAME + b"signature" + sha(whole))

    def derive(self, purpose, private, peer, peer_public, size):
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(peer_public)
        )
        ends = sorted([(self.index, public(private)), (peer, peer_public)])
        pair = b"".join(u32(i) + key for i, key in ends)
        return hkdf(shared, NAME + purpose + self.digest + pair, size)

    def advertise(self):
        self.channel, self.mask = self.drawn.pop(0), self.drawn.pop(0)
        return self.message(1, public(self.channel) + public(self.mask))

    def share(self, roster_message):
        body = roster_message[52:-16]
        self.roster = read_records(body, 128 if self.active else 64)
        self.seed = self.drawn.pop(0)
        dealt = {}
        for secret in (self.mask, self.seed):
            polynomial = [int.from_bytes(secret, "little")]
            for _ in range(self.p["threshold"] - 1):
                polynomial.append(int.from_bytes(self.drawn.pop(0), "little") % 2**257)
            for x in self.roster:
                value = sum(a * x**power for power, a in enumerate(polynomial)) % P
                dealt.setdefault(x, []).append(value.to_bytes(33, "little"))
        self.held = {self.index: dealt[self.index]}
        boxes, commitments = {}, {}
        for peer, (of_key, of_seed) in dealt.items():
            label = NAME + b"share-commitment" + self.digest + u32(self.index, peer)
            commitments[peer] = sha(label + b"\1" + of_key) + sha(label + b"\0" + of_seed)
            if peer != self.index:
                key = self.channel_keys(peer)[self.index > peer]
                nonce = self.drawn.pop(0)
                context = self.header(3, self.index, peer)
                boxes[peer] = nonce + AESGCM(key).encrypt(nonce, of_key + of_seed, context)
        own = b""
        if self.active:
            own = commitments[self.index]
            boxes = {peer: box + commitments[peer] for peer, box in boxes.items()}
        seed = sha(NAME + b"seed-commitment" + self.digest + u32(self.index) + self.seed)
        return self.message(3, seed + own + records(boxes))

    def channel_keys(self, peer):
        both = self.derive(b"channel", self.channel, peer, self.roster[peer][:32], 64)
        return both[:32], both[32:]

    def masked(self, forwarded_message):
        boxes = read_records(forwarded_message[52:-16], 158 if self.active else 94)
        bits = self.p["ring_bits"]
        size = next(word for word in (2, 4, 8) if bits <= 8 * word)
        total = list(self.x)
        info = NAME + b"self-mask" + self.digest + u32(self.index)
        masks = [(1, hkdf(self.seed, info, 32))]
        self.dealers, withheld = sorted([self.index, *boxes]), []
        for peer, box in boxes.items():
            key = self.channel_keys(peer)[peer > self.index]
            try:
                plain = AESGCM(key).decrypt(box[:12], box[12:94], self.header(3, peer, self.index))
                self.held[peer] = [plain[:33], plain[33:]]
            except InvalidTag:
                withheld.append(peer)
            pairwise = self.derive(b"pairwise-mask", self.mask, peer, self.roster[peer][32:64], 32)
            masks.append((1 if self.index < peer else -1, pairwise))
        for sign, key in masks:
            words = keystream(key, len(total), size)
            total = [(a + sign * b) % 2**bits for a, b in zip(total, words, strict=True)]
        whole = sum(value << (at * bits) for at, value in enumerate(total))
        packed = whole.to_bytes(-(-len(total) * bits // 8), "little")
        return self.message(5, u32(*sorted(withheld)) + packed, len(packed))

    def confirm(self, survivors_message):
        announced = b"".join(u32(i) + keys[:64] for i, keys in sorted(self.roster.items()))
        survivors = sorted(read_records(survivors_message[52:-16], 0))
        return self.message(7, sha(b"".join((
            NAME + b"transcript",
            self.digest,
            sha(NAME + b"roster" + self.digest + announced),
            u32(len(self.dealers), *self.dealers),
            u32(len(survivors), *survivors),
            self.context,
        ))))  # fmt: skip

    def reveal(self, survivors_message):
        alive = read_records(survivors_message[52:-16], 0)
        revealed = {
            dealer: b"\1" + of_seed if dealer in alive else b"\2" + of_key
            for dealer, (of_key, of_seed) in self.held.items()
        }
        return self.message(9, records(revealed))
