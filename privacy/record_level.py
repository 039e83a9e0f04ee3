"""Mechanism `dp_sgd`: what protects one record, as constants that the configuration fixes.

Differentially private SGD (Abadi et al. 2016, Algorithm 1): a step takes a Poisson sample of the
records, scales each record's gradient to L2 norm C, adds Gaussian noise of standard deviation
noise_multiplier x C to the sum and divides by a constant. The unit is one record, the noise is on
the client, and everything that is computed from the noised gradients costs nothing more.

Nothing here may follow from a client's data. A sampling probability B / n or a number of steps
ceil(n / B) would tell n, which no noise covers; so would a division by the size of the batch drawn.
The training itself is in `privacy.training`, which needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy._validate import require_member, require_not_negative, require_positive
from privacy.events import RELATIONS, Relation, Release, Status


@dataclass(frozen=True, kw_only=True)
class DpSgd:
    """Noise in every local step: the same numbers for every client, whatever it holds.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients over
            `clipping_norm`; 0 is allowed, and then epsilon is infinite.
        clipping_norm: C, the largest L2 norm of one record's gradient over all trained parameters
            together.
        sampling_probability: With which each record is in a batch, on its own coin; above 0.
        steps: Optimiser steps of one fit, each one composition.
        expected_batch_size: What the noised sum is divided by, in place of the size drawn.
        relation: What a neighbour is: one record more or less (sensitivity C), or another one in
            its place (2C).
    """

    noise_multiplier: float
    clipping_norm: float
    sampling_probability: float
    steps: int
    expected_batch_size: float
    relation: Relation = "add_or_remove_one"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        require_not_negative(noise_multiplier=self.noise_multiplier)
        require_positive(
            clipping_norm=self.clipping_norm,
            steps=self.steps,
            expected_batch_size=self.expected_batch_size,
        )
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability is {self.sampling_probability}; it must be above 0 and at "
                "most 1"
            )
        require_member(RELATIONS, relation=self.relation)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on each coordinate of the sum of clipped gradients."""
        return self.noise_multiplier * self.clipping_norm


def release_of_fits(
    mechanism: DpSgd,
    *,
    run_id: str,
    round_number: int,
    attempt: int,
    pseudonym: str,
    status: Status = "reserved",
    fits: int = 1,
) -> Release:
    """Return the ledger row for the training of one client in one round.

    Upload and pool entry are computed from what training gave, so this one row on the sum channel
    covers both, as it covers the personal state that later rounds start from.

    Args:
        mechanism: How the client trains.
        run_id: The run.
        round_number: The round.
        attempt: Which try of it.
        pseudonym: The client, as its ledger calls it.
        status: "reserved" before anything is sent.
        fits: How often the method trains on the data in a round.
    """
    is_sampled = mechanism.sampling_probability < 1.0
    return Release(
        mechanism="dp_sgd",
        standard_deviation=mechanism.standard_deviation,
        clipping_norm=mechanism.clipping_norm,
        relation=mechanism.relation,
        channel="sum",
        run_id=run_id,
        round_number=round_number,
        attempt=attempt,
        pseudonym=pseudonym,
        status=status,
        sampling="poisson" if is_sampled else "none",
        sampling_probability=mechanism.sampling_probability,
        count=mechanism.steps * fits,
    )
