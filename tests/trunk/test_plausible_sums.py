"""The norm of an opened sum: honest rounds pass, a vector that nobody clipped does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from platform.errors import RoundAborted
from platform.parties.client import Client
from platform.protection.extras import Extras
from platform.protection.sums import SecureTerms, SumProtection
from platform.protection.uploads import Protection
from platform.wire.layout import Totals, build_layout
from privacy import (
    AdaptiveClipping,
    CentralNoise,
    ClientMechanism,
    DistributedNoise,
    IntegerUploadNoise,
    NoProtection,
    ProtocolViolation,
    SeededNoise,
    UploadNoise,
    protect_upload,
)
from tests.trunk._secure import BITS, Numbered, cohort

LENGTH, CLIENTS = 24, 4
TERMS = SecureTerms(clients=5, active=False, threshold=3, smallest_sum=3, corrupt=1)
CLIPPED = {"clipping_norm": 1.0, "noise_multiplier": 0.5, "scale": 2.0**12}
SHARED = {**CLIPPED, "minimum_survivors": 3, "corrupt": 1}
MECHANISMS: dict[str, ClientMechanism] = {
    "upload": UploadNoise(1.0, 0.5),
    "upload, without noise": UploadNoise(1.0, 0.0),
    "integers": IntegerUploadNoise(**CLIPPED),
    "shares": DistributedNoise(**SHARED),
    "skellam": DistributedNoise(**SHARED, kind="skellam"),
    "centre": CentralNoise(**CLIPPED),
    "coarse grid": CentralNoise(**{**CLIPPED, "scale": 1000.0}),
}
FINE = CentralNoise(**{**CLIPPED, "noise_multiplier": 0.0, "scale": 2.0**20})
each_mechanism = pytest.mark.parametrize("name", MECHANISMS)


def protection(mechanism: ClientMechanism, clients: int = CLIENTS) -> Protection:
    layout = build_layout(Numbered(LENGTH).shared_spec(), weighs_examples=False)
    sums = SumProtection(
        mechanism=mechanism, layout=layout, bits=BITS, masked=True, clients=clients
    )
    return Protection(sums=sums)


def summed(how: Protection, updates: np.ndarray, noise: SeededNoise) -> Totals:
    """The sum as a masked round opens it: levels and the coordinator's noise, added in the ring."""
    grid = how.sums.grid()
    levels = [protect_upload(update, how.mechanism, grid, noise).levels for update in updates]
    bits = how.layout.ring_bits(grid, len(updates))
    total = np.sum(levels, axis=0, dtype=np.uint64) & np.uint64(2**bits - 1)
    noised = how.sums.noised(total, len(updates), noise)
    return how.layout.open_sum(noised.levels, len(updates), grid)


@each_mechanism
def test_honest_rounds_pass_and_the_bound_is_no_wider_than_it_says(name: str) -> None:
    """All clients at their norm and in one direction in half of them: the longest sums there are.

    The bound fails an honest round with probability below 2^-40.
    """
    how, rng = protection(MECHANISMS[name]), np.random.default_rng(17)
    noise = SeededNoise(rng)
    for number in range(50):
        updates = rng.standard_normal((CLIENTS, LENGTH)) * 10.0 ** rng.integers(-3, 4)
        if number % 2:
            updates = np.broadcast_to(updates[0], updates.shape)
        how.sums.require_plausible(summed(how, updates, noise))
    # Seven times the longest sum is refused, whatever the noise here.
    vector = np.zeros(LENGTH)
    vector[0] = 7.0 * CLIENTS
    with pytest.raises(ProtocolViolation, match="longer than clipped"):
        how.sums.require_plausible(Totals(vector, CLIENTS, CLIENTS))


def test_without_noise_it_is_the_number_of_survivors() -> None:
    how, vector = protection(FINE), np.zeros(LENGTH)
    for survivors in (4, 2):
        vector[3] = survivors
        how.sums.require_plausible(Totals(vector, survivors, survivors))
        vector[3] = survivors + 0.01
        with pytest.raises(ProtocolViolation):
            how.sums.require_plausible(Totals(vector, survivors, survivors))
    protection(NoProtection(8.0)).sums.require_plausible(Totals(np.full(LENGTH, 1e9), 4, 4))


def test_the_norm_of_the_round_counts_where_it_adapts() -> None:
    adaptive = AdaptiveClipping(quantile=0.5, learning_rate=0.2, flag_ratio=0.1)
    spec, extras = Numbered(LENGTH).shared_spec(), Extras(adaptive, None, 1.0)
    layout = build_layout(spec, weighs_examples=False, extras=("clip_flag",))
    sums = dataclasses.replace(protection(FINE).sums, layout=layout, extras=extras)
    how = Protection(sums=sums)
    vector = np.zeros(LENGTH + 1)
    vector[0] = 6.0
    how.at(2.0).sums.require_plausible(Totals(vector, 4, 4))
    with pytest.raises(ProtocolViolation):
        how.at(1.0).sums.require_plausible(Totals(vector, 4, 4))


class Unclipped(Client):
    """Trains as it should, and sends the largest numbers that fit."""

    def _upload(self, session, protection, prepared, assignment):
        grid = self.profile.protection.sums.grid()
        largest = np.full(LENGTH, grid.largest_level // 2 - 1, np.uint64)
        prepared = dataclasses.replace(prepared, levels=largest)
        return super()._upload(session, protection, prepared, assignment)


@pytest.mark.parametrize(("name", "active"), [("shares", False), ("centre", True)])
def test_a_client_that_clips_nothing_spoils_the_round_and_not_the_model(stores, name, active):
    terms = dataclasses.replace(TERMS, active=active, threshold=4, smallest_sum=4)
    found = cohort(stores, terms, mechanism=MECHANISMS[name], length=LENGTH)
    assert len(found.run().survivors) == 5
    again = cohort(stores / "again", terms, mechanism=MECHANISMS[name], length=LENGTH)
    cheat = again.clients["client-00002"]
    unclipped = Unclipped(cheat.profile, cheat._store, cheat._make_trainer)
    spoiled = dataclasses.replace(again, clients={**again.clients, "client-00002": unclipped})
    with pytest.raises(RoundAborted, match="longer than clipped") as caught:
        spoiled.run()
    assert caught.value.uploads_asked
