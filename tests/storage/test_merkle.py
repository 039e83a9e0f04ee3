"""Merkle trees against the definition in RFC 9162, and against published test vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.merkle import (
    EMPTY_ROOT,
    MerkleTree,
    completed,
    inclusion_proofs,
    is_consistent,
    leaf_hash,
    path_length,
    root_from_inclusion,
)

INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
# Roots of the first 1, 2, ... of these leaves, as implementations of Certificate Transparency
# have them in their tests.
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def mth(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, 2.1.1, word by word."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


class Store:
    """Leaves and tiles as they are stored, filled in batches."""

    def __init__(self, leaves: Sequence[bytes], cuts: Sequence[int] = ()) -> None:
        self.levels: dict[tuple[int, int], bytes] = {}
        at = 0
        for end in (*sorted(cuts), len(leaves)):
            added = [leaf_hash(leaf) for leaf in leaves[at:end]]
            for level, position, found in list(completed(self.read, at, added)):
                assert (level, position) not in self.levels
                self.levels[level, position] = found
            self.levels |= {(0, at + i): found for i, found in enumerate(added)}
            at = end

    def read(self, level: int, start: int, count: int) -> list[bytes]:
        return [self.levels[level, start + at] for at in range(count)]


def made(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_published_roots() -> None:
    store = Store(INPUTS)
    assert MerkleTree(store.read, 0).root() == EMPTY_ROOT
    for size, root in enumerate(ROOTS, 1):
        assert MerkleTree(store.read, size).root().hex() == root


def test_published_proofs() -> None:
    """The paths of leaf 0 among 8 and of leaf 2 among 3, and from 1 to 8 and 6 to 8 leaves."""
    tree = MerkleTree(Store(INPUTS).read, 8)
    assert [step.hex() for step in tree.inclusion_proof(0)] == [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]
    three = MerkleTree(tree.read, 3).inclusion_proof(2)
    assert [step.hex() for step in three] == [ROOTS[1]]
    assert [step.hex() for step in tree.consistency_proof(6)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert tree.consistency_proof(1) == tree.inclusion_proof(0)


@pytest.mark.slow
def test_a_tree_of_three_levels() -> None:
    """More than 256 tiles, so that a tile of the second level is full."""
    leaves = made(65_536 + 700)
    store = Store(leaves, cuts=[65_000, 65_536])
    assert (2, 0) in store.levels
    for size in (65_535, 65_536, 65_537, 66_236):
        tree = MerkleTree(store.read, size)
        assert tree.root() == mth(leaves[:size])
        for position in (0, 65_000, size - 1):
            found = root_from_inclusion(
                leaf_hash(leaves[position]), position, size, tree.inclusion_proof(position)
            )
            assert found == tree.root()


@given(st.data())
def test_what_is_stored_does_not_depend_on_batches(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 1200))
    cuts = data.draw(st.lists(st.integers(0, size), max_size=5))
    leaves = made(size)
    assert Store(leaves, cuts).levels == Store(leaves).levels


@given(st.data())
def test_proofs_show_what_they_should_and_nothing_else(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 600))
    position = data.draw(st.integers(0, size - 1))
    earlier = data.draw(st.integers(0, size))
    leaves = made(size)
    tree = MerkleTree(Store(leaves).read, size)
    found, root = leaf_hash(leaves[position]), mth(leaves)
    proof = tree.inclusion_proof(position)
    assert root_from_inclusion(found, position, size, proof) == root
    assert root_from_inclusion(leaf_hash(b"else"), position, size, proof) != root
    other = data.draw(st.integers(-1, size).filter(lambda at: at != position))
    assert root_from_inclusion(found, other, size, proof) != root
    for spoilt in mutations(proof, data):
        assert root_from_inclusion(found, position, size, spoilt) != root

    old = (earlier, mth(leaves[:earlier]))
    steps = tree.consistency_proof(earlier)
    assert is_consistent(old, (size, root), steps)
    assert not is_consistent((earlier, leaf_hash(b"else")), (size, root), steps)
    if earlier:
        assert not is_consistent(old, (size, leaf_hash(b"else")), steps)
    for spoilt in mutations(steps, data):
        assert not is_consistent(old, (size, root), spoilt)


def mutations(proof: Sequence[bytes], data: st.DataObject) -> list[list[bytes]]:
    """The proof with one more step, one less, a short one, and a flipped bit."""
    found = [[*proof, bytes(32)], [*proof, b""]]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        flipped = bytes([proof[at][0] ^ 1]) + proof[at][1:]
        found += [
            [*proof[:at], *proof[at + 1 :]],
            [*proof[:at], flipped, *proof[at + 1 :]],
            [*proof[:at], proof[at][:31], *proof[at + 1 :]],
        ]
    return found


def test_there_is_no_proof_of_what_is_not_there() -> None:
    tree = MerkleTree(Store(made(5)).read, 5)
    for position in (-1, 5):
        with pytest.raises(IndexError):
            tree.inclusion_proof(position)
    for earlier in (-1, 6):
        with pytest.raises(IndexError):
            tree.consistency_proof(earlier)
    assert tree.consistency_proof(0) == tree.consistency_proof(5) == ()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 9, 63, 64, 65, 257])
def test_proofs_of_all_leaves_at_once_lead_to_the_defined_root(size: int) -> None:
    leaves = [bytes([at % 256, at // 256]) for at in range(size)]
    hashes = [leaf_hash(leaf) for leaf in leaves]
    root, proofs = inclusion_proofs(hashes)
    assert root == mth(leaves)
    assert len(proofs) == size
    for at, proof in enumerate(proofs):
        assert len(proof) == path_length(at, size)
        assert root_from_inclusion(hashes[at], at, size, proof) == root
