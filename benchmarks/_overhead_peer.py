"""Times rounds of pfl-research that do not train; runs in the peer's own environment.

    PEER_PYTHON benchmarks/_overhead_peer.py VARIANT CLIENTS ROUNDS

The peer uses its simulated backend with its own cohort sampling and aggregation. Each user's
statistics are a prepared vector of 512 values. Under `central_noise` the peer's Gaussian mechanism
clips each vector and adds noise to the sum. Prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import AlgorithmHyperParams, FederatedAlgorithm
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import ModelHyperParams
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

VALUES, EARLY = 512, 10


@dataclass(frozen=True)
class Rounds(AlgorithmHyperParams):
    """The number of rounds, and of users in each."""

    rounds: int
    cohort: int


class Vector(Model):
    """One array."""

    def __init__(self):
        self.values = np.zeros(VALUES, np.float32)

    def apply_model_update(self, statistics):
        """Add the mean."""
        statistics.average()
        self.values = self.values + statistics["values"]
        return self, Metrics()


class Averaging(FederatedAlgorithm):
    """Asks all users alike for training only."""

    def get_next_central_contexts(
        self, model, iteration, algorithm_params, model_train_params, model_eval_params=None
    ):
        """One cohort per round."""
        if iteration == algorithm_params.rounds:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=algorithm_params.cohort,
            population=Population.TRAIN,
            algorithm_params=algorithm_params,
            model_train_params=model_train_params,
            seed=self._get_seed(),
        )
        return (context,), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        """A prepared vector."""
        update = np.full(VALUES, 0.01 * user_dataset.raw_data[0].mean(), np.float32)
        return MappedVectorStatistics({"values": update}, weight=1), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        """The model's own step."""
        return model.apply_model_update(statistics)


class Watch(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self):
        self.ends = [time.perf_counter()]
        self.cpu = [time.process_time()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Note the end of a round."""
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())
        return False, Metrics()


def main() -> None:
    variant, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    users = list(range(clients))
    data = FederatedDataset(
        lambda user: Dataset([np.full((1, 1), user)], user_id=str(user)),
        MinimizeReuseUserSampler(users),
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 100.0))
    processors = [mechanism] if variant == "central_noise" else []
    watch = Watch()
    Averaging().run(
        Rounds(rounds, clients),
        SimulatedBackend(data, data, processors),
        Vector(),
        ModelHyperParams(),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    seconds, cpu = np.diff(watch.ends), np.diff(watch.cpu)
    result = {
        "version": version("pfl"),
        "first": statistics.median(seconds[:EARLY]),
        "late": statistics.median(seconds[-EARLY:]),
        "cpu late": statistics.median(cpu[-EARLY:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
