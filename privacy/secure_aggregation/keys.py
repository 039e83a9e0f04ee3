"""Key pairs, and the keys that each pair of clients derives from them.

Every client has two X25519 pairs per attempt: the *channel* pair encrypts shares between clients
and is forgotten once they are read; the *mask* pair gives the pairwise masks, and its private half
is what the others rebuild if the client drops out (Bonawitz et al. 2017, section 4). HKDF-SHA256
binds every derived key to the parameters' digest, a purpose, the pair of clients in a fixed order
and both public keys, so no key serves two rounds, two pairs or two purposes.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.errors import Authentication
from privacy.secure_aggregation.parameters import RoundParameters

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16

_PAIRWISE_MASK = b"sotto/secure-aggregation/pairwise-mask"
_CHANNEL = b"sotto/secure-aggregation/channel"
_SELF_MASK = b"sotto/secure-aggregation/self-mask"
_COMMITMENT = b"sotto/secure-aggregation/seed-commitment"
_SHARE_COMMITMENT = b"sotto/secure-aggregation/share-commitment"
# Twice the peers of a client in a round of a thousand.
_LOADED = 1 << 11
_END = struct.Struct("<I32s")
_FIELD = 2**255 - 19
# u coordinates of the points whose order divides 8, on Curve25519 and on its twist (Bernstein, "A
# state-of-the-art Diffie-Hellman function", on the validation of keys). Scalars are clamped to
# multiples of 8, so these and no others give every partner the secret 0, which is to be refused
# (RFC 7748, section 6.1).
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
        _FIELD - 1,
    }
)


@dataclass(frozen=True)
class PublicKeys:
    """The public halves of a client's two pairs, 32 bytes each.

    Attributes:
        channel: Of the channel pair.
        mask: Of the mask pair.
        signature: Against an active adversary the owner's signature on the message that announced
            them, which the server passes on; empty otherwise.
    """

    channel: bytes
    mask: bytes
    signature: bytes = b""


@dataclass(frozen=True)
class ChannelKeys:
    """AES-256-GCM keys between one client and one peer, one for each direction."""

    sending: bytes = field(repr=False)
    receiving: bytes = field(repr=False)


class PrivateKey:
    """One X25519 private key of one client, ready to agree with peers.

    Args:
        client: Share index of the owner.
        private: 32 secret bytes.
    """

    def __init__(self, client: int, private: bytes) -> None:
        """Load the key once; every agreement reuses it."""
        self._client = client
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()
        self._end = _END.pack(client, self.public)

    def pairwise_mask_key(self, parameters: RoundParameters, peer: int, public: bytes) -> bytes:
        """Derive the mask key of this pair, 32 bytes; `Authentication` for an unusable point."""
        return self._derive(parameters, peer, public, purpose=_PAIRWISE_MASK, size=KEY_BYTES)

    def channel_keys(self, parameters: RoundParameters, peer: int, public: bytes) -> ChannelKeys:
        """Derive the two channel keys of this pair; `Authentication` for an unusable point."""
        both = self._derive(parameters, peer, public, purpose=_CHANNEL, size=2 * KEY_BYTES)
        upward, downward = both[:KEY_BYTES], both[KEY_BYTES:]
        # The first half carries from the lower index to the higher one, the second half back.
        if self._client < peer:
            return ChannelKeys(sending=upward, receiving=downward)
        return ChannelKeys(sending=downward, receiving=upward)

    def _derive(
        self, parameters: RoundParameters, peer: int, public: bytes, *, purpose: bytes, size: int
    ) -> bytes:
        try:
            secret = self._key.exchange(load_public(public))
        except ValueError:
            raise Authentication("a public key is not a usable point") from None
        other = _END.pack(peer, public)
        pair = self._end + other if self._client < peer else other + self._end
        return _expand(secret, purpose + parameters.digest + pair, size)


def self_mask_key(parameters: RoundParameters, client: int, seed: bytes) -> bytes:
    """Derive the key of a client's self mask from its 32-byte seed."""
    info = _SELF_MASK + parameters.digest + struct.pack("<I", client)
    return _expand(seed, info, KEY_BYTES)


def commit_to_seed(parameters: RoundParameters, client: int, seed: bytes) -> bytes:
    """Hash a self-mask seed so that a wrongly rebuilt one is noticed.

    The seed has 256 bits of entropy, so the 32-byte hash hides it.
    """
    owner = struct.pack("<I", client)
    return hashlib.sha256(_COMMITMENT + parameters.digest + owner + seed).digest()


def commit_to_share(
    parameters: RoundParameters, dealer: int, holder: int, share: bytes, *, of_key: bool
) -> bytes:
    """Hash one share of 33 bytes, so that its holder cannot pass on a different one.

    A share has 257 bits of entropy as long as fewer than t of them are known, so the 32-byte hash
    hides it. `of_key` says whether it is a share of the mask key or one of the seed.
    """
    place = struct.pack("<II?", dealer, holder, of_key)
    return hashlib.sha256(_SHARE_COMMITMENT + parameters.digest + place + share).digest()


@lru_cache(maxsize=_LOADED)
def load_public(public: bytes) -> X25519PublicKey:
    """Return a public key ready to agree with, or `ValueError` if it does not have 32 bytes.

    Clients in one process share what they loaded.
    """
    return X25519PublicKey.from_public_bytes(public)


def is_usable(public: bytes) -> bool:
    """Tell whether a public key gives a shared secret; points of small order do not."""
    # The top bit is ignored and the rest taken modulo the field, as X25519 does (RFC 7748, 5).
    u = int.from_bytes(public, "little") & ((1 << 255) - 1)
    return len(public) == KEY_BYTES and u % _FIELD not in _SMALL_ORDER


def seal(key: bytes, plaintext: bytes, *, nonce: bytes, associated: bytes) -> bytes:
    """Encrypt for one receiver with AES-256-GCM.

    The nonce is random although a key seals one message only: a client that is restarted from a
    stored state would otherwise encrypt other shares under the same key and nonce.

    Returns:
        Nonce, ciphertext and tag: 28 bytes more than the plaintext.
    """
    return nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, box: bytes, *, associated: bytes) -> bytes:
    """Decrypt what `seal` made; `Authentication` if box, associated data or key is another."""
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], associated)
    except InvalidTag:
        raise Authentication("an encrypted share does not verify") from None


def _expand(secret: bytes, info: bytes, size: int) -> bytes:
    """Return HKDF-SHA256 without a salt (RFC 5869)."""
    return HKDF(algorithm=SHA256(), length=size, salt=None, info=info).derive(secret)
