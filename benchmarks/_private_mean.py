"""How many clients a private mean needs before it is more signal than noise.

In K groups of n / K clients, each with its update clipped to C, the noised sum of one group's block
is a signal of norm (n / K) kappa C, kappa in (0, 1] being the norm of the mean of the clipped
updates over C, and noise of standard deviation z C on each of d coordinates: of norm z C sqrt(d).
Dividing both by a count changes nothing, so the signal to noise of an expert's step is

    n kappa / (K z sqrt(d)).

T rounds at (epsilon, delta) fix z: with mu(epsilon, delta) the Gaussian mechanism's, z = s sqrt(T)
/ mu, where s is the sensitivity over C: 2 under replace_one, where counts are free, and sqrt(1 +
r^2) under add_or_remove_one with a count of r C. So an expert needs

    n = K s sqrt(T d) / (kappa mu(epsilon, delta))

clients for a signal to noise of 1. K = 1 without a count is one mean for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privacy import Relation, calibrate_noise_multiplier


@dataclass(frozen=True, kw_only=True)
class PrivateMean:
    """What is spent on means of groups, and on how many numbers.

    Attributes:
        epsilon: Of the whole run.
        delta: Of it.
        rounds: T, in each of which every client takes part.
        dimension: d, coordinates of one group's update.
        groups: K.
        relation: What a neighbour is.
        count_ratio: r, a client's count over C; it matters under add_or_remove_one only, and 0 is
            no count.
    """

    epsilon: float
    delta: float
    rounds: int
    dimension: int
    groups: int = 1
    relation: Relation = "replace_one"
    count_ratio: float = 0.0

    @property
    def noise_multiplier(self) -> float:
        """z, the standard deviation of a sum's noise over C."""
        found = calibrate_noise_multiplier(
            self.epsilon,
            self.delta,
            releases_per_round=1,
            rounds=self.rounds,
            relation=self.relation,
        )
        if self.relation == "replace_one":
            return found
        return found * math.hypot(1.0, self.count_ratio)

    def signal_to_noise(self, clients: float, coherence: float = 1.0) -> float:
        """Return that of one expert's step in one round.

        Args:
            clients: n, in groups of one size.
            coherence: kappa, the norm of the mean of a group's clipped updates over C.
        """
        noise = self.noise_multiplier * math.sqrt(self.dimension)
        return clients / self.groups * coherence / noise

    def clients_needed(self, coherence: float = 1.0, wanted: float = 1.0) -> int:
        """Return the fewest clients with which an expert's step has this signal to noise.

        Args:
            coherence: As in `signal_to_noise`.
            wanted: Signal to noise.

        Raises:
            CalibrationError: No noise reaches that epsilon.
        """
        return math.ceil(wanted / self.signal_to_noise(1.0, coherence) * (1.0 - 1e-12))
