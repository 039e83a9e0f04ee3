"""The server's last step: from revealed shares to the sum, which is exact or is not given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation.keys import PrivateKey, self_mask_key
from privacy.secure_aggregation.masking import Mask, add_masks, reduce_to_ring
from privacy.secure_aggregation.rebuilding import Answers, rebuild
from privacy.secure_aggregation.states import CollectingUnmasking


def open_sum(
    state: CollectingUnmasking, answers: Answers
) -> tuple[NDArray[np.uint64], frozenset[int]]:
    """Rebuild the secrets and take the masks off the sum.

    Args:
        state: The state that collected the answers.
        answers: By holder and dealer the share revealed, of the right kind.

    Returns:
        The sum, uint64 of shape (vector_length,), and the holders whose shares were replaced.

    Raises:
        FaultyShares: If some secret cannot be rebuilt or is not the one published.
    """
    secrets, faulty = rebuild(state, answers)
    total = state.masked_sum.copy()
    add_masks(total, _masks_to_remove(state, secrets))
    reduce_to_ring(total, state.parameters.ring_bits)
    return total.astype(np.uint64), faulty


def _masks_to_remove(state: CollectingUnmasking, secrets: Mapping[int, bytes]) -> Iterator[Mask]:
    alive = frozenset(state.survivors)
    for survivor in state.survivors:
        key = self_mask_key(state.parameters, survivor, secrets[survivor])
        yield Mask(key, negative=True)
    for dropout in state.dealt.roster:
        if dropout not in alive:
            yield from _pairwise_masks(state, dropout, secrets[dropout])


def _pairwise_masks(
    state: CollectingUnmasking, dropout: int, private_bytes: bytes
) -> Iterator[Mask]:
    parameters, roster = state.parameters, state.dealt.roster
    alive = frozenset(state.survivors)
    private = PrivateKey(dropout, private_bytes)
    for survivor in parameters.holders(dropout):
        if survivor in alive:
            key = private.pairwise_mask_key(parameters, survivor, roster[survivor].mask)
            # The survivor subtracted this mask if the dropout's index is the lower one.
            yield Mask(key, negative=survivor < dropout)
