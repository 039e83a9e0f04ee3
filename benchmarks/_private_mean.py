"""The number of clients at which a private mean has more signal than noise.

Each of K groups has n / K clients, and each client's update is clipped to C. In the noised sum, the
block of one group is a signal of norm (n / K) kappa C, where kappa in (0, 1] is the norm of the
mean of the clipped updates over C. The noise has standard deviation z C on each of d coordinates,
and so norm z C sqrt(d). Dividing both by a count keeps their ratio. An expert's step has the ratio

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
    """The budget of means of groups, and their size.

    Attributes:
        epsilon: Epsilon of the whole run.
        delta: Delta of the whole run.
        rounds: T; every client takes part in each round.
        dimension: d, coordinates of one group's update.
        groups: K.
        relation: The neighbouring relation.
        count_ratio: r, a client's count over C, which matters under add_or_remove_one only; 0 means
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
        """Return the signal to noise of one expert's step in one round.

        Args:
            clients: n, in groups of equal size.
            coherence: kappa, the norm of the mean of a group's clipped updates over C.
        """
        noise = self.noise_multiplier * math.sqrt(self.dimension)
        return clients / self.groups * coherence / noise

    def clients_needed(self, coherence: float = 1.0, wanted: float = 1.0) -> int:
        """Return the fewest clients with which an expert's step has this signal to noise.

        Args:
            coherence: As in `signal_to_noise`.
            wanted: The required signal to noise.

        Raises:
            CalibrationError: If no noise reaches this epsilon.
        """
        return math.ceil(wanted / self.signal_to_noise(1.0, coherence) * (1.0 - 1e-12))
