"""The server's last step: from revealed shares to the sum, or to the reason why there is none.

An abort says at which phase the round stopped and which clients caused it.

**Quorum.** A client can help to rebuild the secret of another one, its dealer, if it holds a share
of it, is still there, and has not reported that it could not read the dealer's box. The server
passes boxes on as they are, so a complaint is the fault of one of the two. If at most c clients are
faulty, a dealer with more than c complaints is to blame, and so is a client that complains of more
than c dealers. With fewer complaints nobody is named.

**Rebuilding.** Every secret is rebuilt from t shares and compared: a seed with its commitment, a
mask key with the public key on the roster. Against an active adversary each share is first compared
with its dealer's commitment, and one that does not fit is its holder's fault (who checked it on
receipt, or should have). Among semi-honest parties there are no commitments to shares; if the first
t do not rebuild the secret, decoding finds the wrong ones as long as they are few, see `decode`.
The sum is exact, or the server gives none.

**Plausibility.** The protocol bounds no vector, so a malicious client may add anything. If honest
updates are clipped to norm C, a sum of n of them has norm at most n C, and noise and rounding add a
known amount but for a negligible probability. A longer sum proves that somebody cheated (or that
the ring wrapped around); a shorter one proves nothing.

Only a sum that has all its noise may be checked. Whether a bare sum passes is a bit of the data,
and a malicious client chooses which: with C in the direction of another client it learns that
client's sign. The refusal states no number for the same reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from privacy.errors import InvalidShare, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.keys import (
    PrivateKey,
    commit_to_seed,
    commit_to_share,
    self_mask_key,
)
from privacy.secure_aggregation.masking import Mask, add_masks, reduce_to_ring
from privacy.secure_aggregation.messages import COMMITMENT_BYTES, Revealed, ShareType
from privacy.secure_aggregation.parameters import Phase, RoundParameters
from privacy.secure_aggregation.shamir import decode
from privacy.secure_aggregation.states import CollectingUnmasking, Complaints, Refusal


class TooFewAnswers(ThresholdNotMet):
    """Fewer clients are left than the threshold needs, so the sum stays masked.

    Attributes:
        phase: Where too few answered.
        culprits: The clients whose messages were refused so far; those who said nothing are
            missing here.
    """

    def __init__(self, message: str, *, phase: Phase, culprits: Iterable[int] = ()) -> None:
        """Keep phase and culprits beside the sentence."""
        self.culprits = tuple(sorted(set(culprits)))
        super().__init__(message + _blame(self.culprits), phase=phase)


class FaultyShares(InvalidShare):
    """Shares do not rebuild what their dealer published, so the sum stays masked.

    Attributes:
        phase: Always unmasking.
        culprits: Against an active adversary, the dealers and holders that lied; between a dealer
            and the holders that say they got nothing usable from it, the server cannot tell.
    """

    def __init__(self, message: str, *, culprits: Iterable[int] = ()) -> None:
        """Keep phase and culprits beside the sentence."""
        self.phase = Phase.UNMASKING
        self.culprits = tuple(sorted(set(culprits)))
        super().__init__(f"{message}, at phase {self.phase.value!r}{_blame(self.culprits)}")


def _blame(culprits: tuple[int, ...]) -> str:
    return f" (refused or faulty: {', '.join(map(str, culprits))})" if culprits else ""


@dataclass(frozen=True)
class Standing:
    """The complaints about clients so far.

    Attributes:
        phase: Whose answers were collected last.
        refused: Messages not taken so far.
        complaints: By client that complained, the dealers whose shares it does not have.
    """

    phase: Phase
    refused: tuple[Refusal, ...]
    complaints: Complaints = field(default_factory=lambda: MappingProxyType({}))


def require_enough(
    parameters: RoundParameters,
    alive: Collection[int],
    standing: Standing,
    *,
    dealers: Collection[int],
) -> None:
    """Stop the round if too few clients are left for a large enough sum, or to open it.

    `dealers` are the clients whose secrets may be needed. `TooFewAnswers` has the phase and the
    clients to blame.
    """
    require_threshold(alive, standing, least=parameters.least_survivors)
    require_holders(parameters, alive, standing, dealers=dealers)


def require_threshold(alive: Collection[int], standing: Standing, *, least: int) -> None:
    """Stop the round if fewer than `least` clients answered: `TooFewAnswers` says whom to blame."""
    if len(alive) < least:
        raise TooFewAnswers(
            f"{len(alive)} valid answers came at phase {standing.phase.value!r}; "
            f"the threshold is {least}",
            phase=standing.phase,
            culprits=(each.client for each in standing.refused),
        )


def require_holders(
    parameters: RoundParameters,
    alive: Collection[int],
    standing: Standing,
    *,
    dealers: Collection[int],
) -> None:
    """Stop the round if the clients that are left cannot rebuild some dealer's secrets.

    `TooFewAnswers` has the phase and the clients to blame.
    """
    # On the complete graph everybody holds shares of everybody, so only complaints matter.
    if not parameters.degree and not standing.complaints:
        return
    present, without = frozenset(alive), defaultdict[int, set[int]](set)
    for client, withheld in standing.complaints.items():
        for dealer in withheld:
            without[dealer].add(client)
    for dealer in dealers:
        left = len(present.intersection(parameters.holders(dealer)) - without[dealer])
        if left < parameters.threshold:
            blamed = blame(parameters, standing.complaints)
            raise TooFewAnswers(
                f"{left} holders of shares of client {dealer} are left at phase "
                f"{standing.phase.value!r}; the threshold is {parameters.threshold}",
                phase=standing.phase,
                culprits=(*(each.client for each in standing.refused), *blamed),
            )


def blame(parameters: RoundParameters, complaints: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return who must be at fault for these complaints, if at most `corrupt` clients are.

    Among semi-honest parties nobody lies and `corrupt` counts something else, but a client that can
    read hardly any box is more likely broken than all its dealers: complaints of most dealers count
    against their author there too. In an active round with at most c liars no honest client is
    named.
    """
    most = {client: len(parameters.holders(client)) // 2 for client in complaints}
    authors = {c for c, each in complaints.items() if len(each) > max(parameters.corrupt, most[c])}
    of_dealer = Counter(d for c, each in complaints.items() if c not in authors for d in each)
    return authors | {d for d, count in of_dealer.items() if count > parameters.corrupt}


Answers = Mapping[int, Mapping[int, Revealed]]
_Shares = Mapping[int, bytes]


class _Combiner:
    """Rebuilds secrets one by one; dealers with the same holders share their coefficients."""

    def __init__(self, state: CollectingUnmasking) -> None:
        self._state = state
        self._threshold = state.parameters.threshold
        self._alive = frozenset(state.survivors)
        self._coefficients: dict[tuple[int, ...], tuple[int, ...]] = {}

    def combine(
        self, dealer: int, shares: _Shares, *, suspects: Collection[int]
    ) -> tuple[bytes, frozenset[int]] | None:
        """Return the secret that the dealer published and whose shares were wrong, or None."""
        if self._state.parameters.is_active:
            # All of these are what the dealer committed to, so there is nothing to correct.
            return self._from_first(dealer, shares)
        trusted = {holder: share for holder, share in shares.items() if holder not in suspects}
        found = self._from_first(dealer, trusted)
        for some in (trusted, shares):
            if found is None and len(some) > self._threshold:
                found = decode(some, self._threshold)
                if found is not None and not self._is_published(dealer, found[0]):
                    found = None
        return found

    def _from_first(self, dealer: int, shares: _Shares) -> tuple[bytes, frozenset[int]] | None:
        holders = tuple(shares)[: self._threshold]
        if len(holders) < self._threshold:
            return None
        if holders not in self._coefficients:
            self._coefficients[holders] = shamir.lagrange_at_zero(holders)
        try:
            chosen = [shares[holder] for holder in holders]
            secret = shamir.combine(chosen, self._coefficients[holders])
        except InvalidShare:
            return None
        return (secret, frozenset()) if self._is_published(dealer, secret) else None

    def _is_published(self, dealer: int, secret: bytes) -> bool:
        dealt = self._state.dealt
        if dealer in self._alive:
            commitment = commit_to_seed(self._state.parameters, dealer, secret)
            return commitment == dealt.commitments[dealer]
        return PrivateKey(dealer, secret).public == dealt.roster[dealer].mask


def _sort_all(
    state: CollectingUnmasking, answers: Answers
) -> tuple[dict[int, dict[int, bytes]], set[int]]:
    shares: dict[int, dict[int, bytes]] = {}
    faulty: set[int] = set()
    for dealer in state.dealt.roster:
        shares[dealer], bad = _sort_shares(state, dealer, answers)
        faulty |= bad
    for dealer, good in shares.items():
        if len(good) < state.parameters.threshold:
            raise FaultyShares(f"too few good shares of client {dealer} came", culprits=faulty)
    return shares, faulty


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


def _irreparable(state: CollectingUnmasking, missing: list[int], faulty: set[int]) -> FaultyShares:
    dealer = missing[0]
    what = "seed" if dealer in state.survivors else "mask key"
    # A dealer that committed to these very shares lied; without commitments it may be a holder.
    dealers = missing if state.parameters.is_active else []
    return FaultyShares(
        f"the shares of client {dealer} do not rebuild its {what}", culprits=(*dealers, *faulty)
    )


def open_sum(
    state: CollectingUnmasking, answers: Answers
) -> tuple[NDArray[np.uint64], frozenset[int]]:
    """Rebuild the secrets and take the masks off the sum.

    `answers[holder][dealer]` is the share that the holder revealed. Its kind is checked already,
    and each dealer has at least t shares. The sum is uint64 of shape (vector_length,); beside it
    are the holders whose shares were wrong and were not used. `FaultyShares` if the seed of a
    survivor or the mask key of a dropout cannot be rebuilt, or is not the one that its dealer
    published.
    """
    shares, faulty = _sort_all(state, answers)
    combiner = _Combiner(state)
    secrets: dict[int, bytes] = {}
    missing = list(shares)
    while missing:
        known = frozenset(faulty)
        for dealer in missing:
            found = combiner.combine(dealer, shares[dealer], suspects=faulty)
            if found is not None:
                secrets[dealer], wrong = found
                faulty |= wrong
        missing = [dealer for dealer in missing if dealer not in secrets]
        # Without the holders found wrong on the way, few enough wrong shares may be left.
        if missing and faulty == known:
            raise _irreparable(state, missing, faulty)
    total = state.masked_sum.copy()
    add_masks(total, _masks_to_remove(state, secrets))
    reduce_to_ring(total, state.parameters.ring_bits)
    return total.astype(np.uint64), frozenset(faulty)


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


_FAILURE_BITS = 40


def largest_norm(
    *,
    length: int,
    cohort_size: int,
    clipping_norm: float,
    noise_in_sum: float = 0.0,
    step: float = 0.0,
) -> float:
    """Return the L2 norm that an honest sum exceeds with probability below 2^-40.

    The noise's squared norm is that of a chi-square with `length` degrees of freedom, bounded by
    d + 2 sqrt(d x) + 2 x but for e^-x (Laurent and Massart 2000, lemma 1).

    Args:
        length: Number of coordinates d.
        cohort_size: Number n of vectors in the sum.
        clipping_norm: Norm C that every honest vector keeps to, in the units of the update.
        noise_in_sum: Standard deviation of all noise on each coordinate of the sum.
        step: Distance between the quantiser's levels; rounding moves a coordinate by half of it,
            in each vector and in the noise that is added to the sum.

    Returns:
        The norm, in the units of the update.
    """
    slack = _FAILURE_BITS * math.log(2)
    chi = math.sqrt(length + 2 * math.sqrt(length * slack) + 2 * slack)
    rounding = 0.5 * step * (cohort_size + 1) * math.sqrt(length)
    return cohort_size * clipping_norm + noise_in_sum * chi + rounding


def require_plausible_norm(total: NDArray[np.float64], bound: float) -> None:
    """Refuse a sum that honest clients cannot have made.

    Args:
        total: The sum with all its noise, in the units of the update, shape (length,).
        bound: From `largest_norm`.

    Raises:
        ProtocolViolation: If the sum is longer or not finite.
    """
    # Written so that NaN is refused as well.
    if not float(np.linalg.norm(total)) <= bound:
        raise ProtocolViolation("the sum is longer than clipped updates and their noise can be")
