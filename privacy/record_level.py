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
from privacy.events import RELATIONS, Protected, Relation
from privacy.facts import MechanismFacts
from privacy.noise_laws import gaussian_of

DP_SGD = MechanismFacts(
    name="dp_sgd",
    unit="record",
    is_in_steps=True,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)
"""What `dp_sgd` means in a ledger: all that leaves is computed from noised steps."""


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
        facts: What a release means in the ledger.
    """

    noise_multiplier: float
    clipping_norm: float
    sampling_probability: float
    steps: int
    expected_batch_size: float
    relation: Relation = "add_or_remove_one"
    facts: MechanismFacts = DP_SGD

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

    def protected(self) -> Protected:
        """Return one fit, in the numbers of its ledger row.

        Upload and pool entry are computed from what training gave, so one row covers both, as it
        covers the personal state that later rounds start from.
        """
        return Protected(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.clipping_norm,
            relation=self.relation,
            law=gaussian_of(self.standard_deviation),
            sampling_probability=self.sampling_probability,
            count=self.steps,
        )
