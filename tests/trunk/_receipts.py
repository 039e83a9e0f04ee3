"""A coordinator's log and its receipts, made by hand: an honest one, or one that lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import storage
from platform.parties.receipt_checks import Receipts, witness_of
from platform.wire.codec import Envelope
from platform.wire.receipt_messages import ADVERSARIES, Receipt, ReceiptLeaf, sign_receipts
from privacy.transparency import Checkpoint, NoteSigner, sign_checkpoint
from storage import ClientStore, LedgerRow
from storage.leaves import charge_data, settled_data
from storage.merkle import TILE_WIDTH, MerkleTree, fold, leaf_hash

RUN = "quickstart-1"
SIGNER = NoteSigner("sotto/log", bytes(range(32)))
ROW = LedgerRow(
    run_id=RUN,
    round_number=1,
    attempt=1,
    pseudonym="alice",
    channel="sum",
    mechanism="upload_noise",
    standard_deviation=4.0,
    clipping_norm=1.0,
    relation="replace_one",
    sampling="none",
    noise_kind="gaussian",
)


@dataclass
class Log:
    """Leaves in their order, and what is signed about them."""

    leaves: list[bytes] = field(default_factory=list)
    signer: NoteSigner = SIGNER
    changes: tuple[str, ...] = ()

    def charge(self, row: LedgerRow) -> int:
        self.leaves.append(charge_data(row))
        return len(self.leaves) - 1

    def settle(self, row: LedgerRow, status: Any = "released") -> int:
        self.leaves.append(settled_data(replace(row, status=status)))
        return len(self.leaves) - 1

    def event(self, text: str = "event") -> None:
        self.leaves.append(f"sotto-audit-v1\n[{text!r},{len(self.leaves)}]".encode())

    def tree(self, size: int | None = None) -> MerkleTree:
        hashes = [leaf_hash(leaf) for leaf in self.leaves]
        return MerkleTree(partial(_read, hashes), len(hashes) if size is None else size)

    def receipt(
        self,
        since: int,
        positions: Sequence[int],
        *,
        attempt: tuple[int, int] = (1, 1),
        epsilons: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> bytes:
        """What is signed for a client, true or not."""
        tree = self.tree()
        head = Checkpoint(self.signer.name, tree.size, tree.root())
        told: dict[str, Any] = {
            "envelope": Envelope(RUN, *attempt),
            "since": since,
            "key": self.signer.key.encode(),
            "changes": self.changes,
            "checkpoint": sign_checkpoint(head, self.signer),
            "consistency": tree.consistency_proof(min(since, tree.size)),
            "leaves": tuple(
                ReceiptLeaf(at, self.leaves[at], b"", tree.inclusion_proof(at)) for at in positions
            ),
            "epsilons": epsilons or dict.fromkeys(ADVERSARIES, 1.0),
            "delta": 1e-5,
            "accountant": "auto",
        }
        return signed(Receipt(**{**told, **changes}), self.signer)


def signed(receipt: Receipt, signer: NoteSigner = SIGNER) -> bytes:
    """A receipt, signed as it is."""
    (only,) = sign_receipts([receipt], signer.signed)
    return only


def _read(hashes: Sequence[bytes], level: int, start: int, count: int) -> list[bytes]:
    for _ in range(level):
        full = len(hashes) // TILE_WIDTH
        hashes = [fold(hashes[at * TILE_WIDTH : (at + 1) * TILE_WIDTH]) for at in range(full)]
    return list(hashes[start : start + count])


@dataclass(frozen=True)
class Holder:
    """A client's store with what it released, and what checks its receipts."""

    store: ClientStore
    receipts: Receipts
    told: list[str]

    def release(self, row: LedgerRow) -> None:
        payload = f"{row.round_number}{row.channel}".encode()
        self.store.reserve_release(row, payload=payload)

    def kept(self) -> list[storage.KeptReceipt]:
        return list(self.store.receipts.all())


def holder(folder: Path, name: str = "alice", **changes: Any) -> Holder:
    store = storage.open_client_store(folder / f"{name}.db", pseudonym=name)
    told: list[str] = []
    receipts = Receipts(
        store=store,
        run_id=RUN,
        witness=witness_of(None, store.identity),
        seconds=lambda: 1_700_000_000,
        remember=lambda attempt, reason: told.append(reason),
        **changes,
    )
    return Holder(store, receipts, told)
