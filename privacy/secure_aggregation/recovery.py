"""The server's last step: from revealed shares to the sum.

Every secret is rebuilt from exactly t shares and compared with what its owner published, so the
sum is exact or it is not given. Against an active adversary every share is first compared with its
dealer's commitment; one that does not fit is blamed on its holder (who checked it on receipt, or
should have) and replaced by another holder's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from privacy.errors import InvalidShare
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.faults import FaultyShares
from privacy.secure_aggregation.keys import (
    PrivateKey,
    commit_to_seed,
    commit_to_share,
    self_mask_key,
)
from privacy.secure_aggregation.masking import Mask, add_masks, reduce_to_ring
from privacy.secure_aggregation.messages import COMMITMENT_BYTES, Revealed, ShareType
from privacy.secure_aggregation.states import CollectingUnmasking

Answers = Mapping[int, Mapping[int, Revealed]]


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
    secrets, faulty = _rebuild(state, answers)
    total = state.masked_sum.copy()
    add_masks(total, _masks_to_remove(state, secrets))
    reduce_to_ring(total, state.parameters.ring_bits)
    return total.astype(np.uint64), faulty


def _rebuild(
    state: CollectingUnmasking, answers: Answers
) -> tuple[dict[int, bytes], frozenset[int]]:
    secrets: dict[int, bytes] = {}
    faulty: set[int] = set()
    # Dealers with the same holders, on the complete graph all of them, share their coefficients.
    coefficients: dict[tuple[int, ...], tuple[int, ...]] = {}
    for dealer in state.dealt.roster:
        shares, bad = _sort_shares(state, dealer, answers)
        faulty |= bad
        holders = tuple(shares)[: state.parameters.threshold]
        if len(holders) < state.parameters.threshold:
            raise _too_few(state, dealer, answers, bad)
        if holders not in coefficients:
            coefficients[holders] = shamir.lagrange_at_zero(holders)
        try:
            chosen = [shares[holder] for holder in holders]
            secrets[dealer] = shamir.combine(chosen, coefficients[holders])
        except InvalidShare as error:
            raise FaultyShares(str(error), culprits=_dealer(state, dealer)) from error
    return secrets, frozenset(faulty)


def _sort_shares(
    state: CollectingUnmasking, dealer: int, answers: Answers
) -> tuple[dict[int, bytes], set[int]]:
    good: dict[int, bytes] = {}
    bad: set[int] = set()
    for holder in state.parameters.holders(dealer):
        revealed = answers.get(holder, {}).get(dealer)
        if revealed is None:
            continue
        if _is_committed(state, dealer, holder, revealed):
            good[holder] = revealed.share
        else:
            bad.add(holder)
    return good, bad


def _is_committed(state: CollectingUnmasking, dealer: int, holder: int, revealed: Revealed) -> bool:
    parameters = state.parameters
    if not parameters.is_active:
        return True
    both = state.dealt.share_commitments[dealer][holder]
    of_key = revealed.share_type is ShareType.KEY
    expected = both[:COMMITMENT_BYTES] if of_key else both[COMMITMENT_BYTES:]
    return commit_to_share(parameters, dealer, holder, revealed.share, of_key=of_key) == expected


def _too_few(
    state: CollectingUnmasking, dealer: int, answers: Answers, bad: set[int]
) -> FaultyShares:
    silent = any(dealer not in revealed for revealed in answers.values())
    culprits = bad | {dealer} if silent else bad
    return FaultyShares(f"too few good shares of client {dealer} came", culprits=culprits)


def _dealer(state: CollectingUnmasking, dealer: int) -> tuple[int, ...]:
    # Without commitments a wrong secret may as well be the fault of some holder.
    return (dealer,) if state.parameters.is_active else ()


def _masks_to_remove(state: CollectingUnmasking, secrets: Mapping[int, bytes]) -> Iterator[Mask]:
    parameters = state.parameters
    alive = frozenset(state.survivors)
    for survivor in state.survivors:
        seed = secrets[survivor]
        if commit_to_seed(parameters, survivor, seed) != state.dealt.commitments[survivor]:
            raise FaultyShares(
                f"the shares of client {survivor} do not rebuild its seed",
                culprits=_dealer(state, survivor),
            )
        yield Mask(self_mask_key(parameters, survivor, seed), negative=True)
    for dropout in state.dealt.roster:
        if dropout not in alive:
            yield from _pairwise_masks(state, dropout, secrets[dropout])


def _pairwise_masks(
    state: CollectingUnmasking, dropout: int, private_bytes: bytes
) -> Iterator[Mask]:
    parameters, roster = state.parameters, state.dealt.roster
    alive = frozenset(state.survivors)
    private = PrivateKey(dropout, private_bytes)
    if private.public != roster[dropout].mask:
        raise FaultyShares(
            f"the shares of client {dropout} do not rebuild its mask key",
            culprits=_dealer(state, dropout),
        )
    for survivor in parameters.holders(dropout):
        if survivor in alive:
            key = private.pairwise_mask_key(parameters, survivor, roster[survivor].mask)
            # The survivor subtracted this mask if the dropout's index is the lower one.
            yield Mask(key, negative=survivor < dropout)
