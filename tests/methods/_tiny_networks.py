"""Networks so small that a step can be worked out by hand, and a trainer that counts its steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from methods import Arrays, Examples
from methods.networks.extractors import OnFeatures
from methods.networks.method import SplitMethod
from privacy import SeededNoise
from privacy.training import DpSgd, LocalTrainer, TrainingPlan
from tests._batches import BatchTrainer

CLASSES = ("no", "yes")


def tiny(method: type[SplitMethod], module: ModuleType, given: int = 1, width: int = 1, **options):
    """The method over one layer (width, given) with ReLU, a head and two classes."""
    extractor = OnFeatures(given, width)
    config = module.Config(network="features", **options)
    return method(config, extractor, CLASSES, needs=extractor.needs)


def one_example(label: int = 0) -> Examples:
    """A single example with a single feature, which is 1."""
    return Examples({"features": np.ones((1, 1), np.float32), "labels": np.array([label])})


def some_examples(count: int, given: int) -> Examples:
    """Examples drawn at random."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, given)).astype(np.float32)
    return Examples({"features": features, "labels": rng.integers(0, 2, count)})


def arrays(**values: object) -> dict[str, np.ndarray]:
    """float32 arrays under dotted names: `fc_weight` is `extractor.fc.weight`, and so on."""
    names = {
        "fc_weight": "extractor.fc.weight",
        "fc_bias": "extractor.fc.bias",
        "weight": "head.weight",
        "bias": "head.bias",
    }
    return {names[name]: np.array(value, np.float32) for name, value in values.items()}


def private_trainer(steps: int) -> LocalTrainer:
    """Noised steps, all examples in each batch."""
    plan = TrainingPlan(local_steps=steps, batch_size=4, learning_rate=0.1)
    mechanism = DpSgd(
        noise_multiplier=1.0,
        clipping_norm=1.0,
        sampling_probability=1.0,
        steps=steps,
        expected_batch_size=4.0,
    )
    noise = SeededNoise(np.random.default_rng(0))
    return LocalTrainer(plan, dp_sgd=mechanism, noise=noise)


class CountingTrainer(BatchTrainer):
    """Trains, and keeps which names each fit trained and by how many steps."""

    def fit(self, *arguments, groups: Sequence, steps: int | None = None, **options):
        names = tuple(name for group in groups for name in group.names)
        if not hasattr(self, "fits"):
            object.__setattr__(self, "fits", [])
        trained = super().fit(*arguments, groups=groups, steps=steps, **options)
        self.fits.append((names, len(self.fitted[-1])))
        return trained


def counting(**plan: object) -> CountingTrainer:
    fields = {"batch_size": 100, "learning_rate": 0.1}
    return CountingTrainer(TrainingPlan(**{**fields, **plan}))


def moved(start: Arrays, update: Arrays) -> dict[str, np.ndarray]:
    """A state after an update."""
    return {name: value + update.get(name, 0) for name, value in start.items()}
