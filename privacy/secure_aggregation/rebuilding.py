"""Clients' secrets from revealed shares, each the one that its owner published.

Every secret is rebuilt from t shares and compared: a seed with its commitment, a mask key with the
public key on the roster. Against an active adversary each share is first compared with its dealer's
commitment, and one that does not fit is its holder's fault (who checked it on receipt, or should
have). Among semi-honest parties there are no commitments to shares; if the first t do not rebuild
the secret, decoding finds the wrong ones as long as they are few, see `decoding`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from privacy.errors import InvalidShare
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.decoding import decode
from privacy.secure_aggregation.faults import FaultyShares
from privacy.secure_aggregation.keys import PrivateKey, commit_to_seed, commit_to_share
from privacy.secure_aggregation.messages import COMMITMENT_BYTES, Revealed, ShareType
from privacy.secure_aggregation.states import CollectingUnmasking

Answers = Mapping[int, Mapping[int, Revealed]]
_Shares = Mapping[int, bytes]


def rebuild(
    state: CollectingUnmasking, answers: Answers
) -> tuple[dict[int, bytes], frozenset[int]]:
    """Rebuild the seed of every survivor and the mask key of every dropout.

    Args:
        state: The state that collected the answers.
        answers: By holder and dealer the share revealed, of the right kind; of every dealer at
            least t.

    Returns:
        The secrets by dealer, and the holders whose shares were wrong and done without.

    Raises:
        FaultyShares: If some secret cannot be rebuilt or is not the one published.
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
    return secrets, frozenset(faulty)


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
            found = found or self._corrected(dealer, some)
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

    def _corrected(self, dealer: int, shares: _Shares) -> tuple[bytes, frozenset[int]] | None:
        found = decode(shares, self._threshold) if len(shares) > self._threshold else None
        return found if found is not None and self._is_published(dealer, found[0]) else None

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
