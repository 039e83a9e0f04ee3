"""Every method there is, built from every preset there is, on a small random CLIP.

With the environment variable `SOTTO_CONTRACT_METHODS` the suite is run on the methods of that
folder instead: `NAME.py` and, beside it, the preset `NAME.yaml`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from methods import Arrays, Examples, Method, Registry, Task
from methods.clip.adapter import Backbone
from platform.config import PACKAGED_CONFIGS, MethodConfig
from platform.experiment.method_building import validate_options
from tests.methods._backbone import EMBED_DIM, random_backbone

FOLDER = "SOTTO_CONTRACT_METHODS"
PRESETS = PACKAGED_CONFIGS / "methods"
CLASSES = ("circle", "ring", "red square", "star")
DOMAINS = ("ink", "chalk")
POPULATION = 10
TOKENS, TOKEN_WIDTH = 5, 32
PIXELS = 16
WORDS = ("river", "market", "goal", "engine", "the", "of", "a", "Senate", "café", "2-1", "$5.")


SMALL = {"image_size": PIXELS, "channels": [2, 3], "feature_width": 8, "buckets": 50}
"""A network that a test has time for; everything else is as the presets have it."""


@dataclass(frozen=True)
class Case:
    """One method with one set of options.

    Attributes:
        name: Name of the test case.
        method: The method's name.
        registry: Where it is found.
        options: As a configuration gives them.
    """

    name: str
    method: str
    registry: Registry
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def factors(self) -> dict[str, str]:
        """What the drawing of cases pairs with other values: the case, and what it trains."""
        network = {**self.options, **self.options.get("base_options", {})}.get("network")
        return {"case": self.name, "family": network or "prompts"}

    def config(self) -> object:
        return validate_options(self.registry, MethodConfig(name=self.method, **self.options))


@cache
def shipped_cases() -> tuple[Case, ...]:
    """One case per preset, as it is shipped; of a folder that is named, those of that folder."""
    registry, folder = Registry(installed=False), os.environ.get(FOLDER)
    names = registry.available()
    if folder is not None:
        registry = Registry(folder=Path(folder), installed=False)
        names = tuple(sorted(set(registry.available()) - set(names)))
    return tuple(shipped_case(registry, name) for name in names)


def shipped_case(registry: Registry, name: str) -> Case:
    """The case of one method, as its preset has it."""
    tree = yaml.safe_load((registry.preset(name) or PRESETS / f"{name}.yaml").read_text())
    return Case(name, tree.pop("name"), registry, tree)


@cache
def all_cases() -> tuple[Case, ...]:
    """One case per preset and one per variant, small networks made smaller."""
    cases = [(case.name, case, {}) for case in shipped_cases()]
    cases += [
        (f"{case.name}-{'-'.join(map(str, changed.values()))}", case, changed)
        for case in shipped_cases()
        for changed in case.registry.variants(case.method)
    ]
    return tuple(
        Case(name, case.method, case.registry, shrunk(case.options | changed))
        for name, case, changed in cases
    )


def shrunk(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a small network, where they have one."""
    if "base_options" in options:
        return options | {"base_options": SMALL | options["base_options"]}
    return options | {name: SMALL[name] for name in SMALL if "network" in options}


@pytest.fixture(scope="session")
def small_backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return random_backbone(tmp_path_factory.mktemp("small-clip"))


@pytest.fixture(scope="session")
def task(small_backbone: Backbone) -> Task:
    return Task(CLASSES, DOMAINS, POPULATION, small_backbone)


@pytest.fixture(scope="session", params=all_cases(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="session")
def build_once(task: Task) -> Callable[[Case], Method]:
    """A method holds nothing that a test may change, so all tests share it."""
    return cache(lambda case: case.registry.build(case.method, case.config(), task))


@pytest.fixture
def method(case: Case, build_once: Callable[[Case], Method]) -> Method:
    return build_once(case)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw_raw(method: Method, seed: int, count: int = 8) -> Arrays:
    """What a data layer would hand to `Method.prepare`, drawn at random and read-only."""
    rng = np.random.default_rng([99, seed])
    features = rng.normal(size=(count, EMBED_DIM)).astype(np.float32)
    side = method.pixel_size or PIXELS
    arrays: dict[str, np.ndarray] = {
        "features": features / np.linalg.norm(features, axis=1, keepdims=True),
        "tokens": rng.normal(size=(count, TOKENS, TOKEN_WIDTH)).astype(np.float32),
        "pixels": rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8),
        "text": np.array([" ".join(rng.choice(WORDS, 6)) for _ in range(count)]),
    }
    return frozen({name: arrays[name] for name in sorted(method.needs - {"domains"})})


def draw_examples(method: Method, seed: int, count: int = 8) -> Examples:
    """Training examples as the platform would hand them to this method, read-only."""
    rng = np.random.default_rng([98, seed])
    known = {"labels": rng.integers(0, len(CLASSES), count)}
    if "domains" in method.needs:
        known["domains"] = rng.integers(0, len(DOMAINS), count)
    return Examples(frozen({**method.prepare(draw_raw(method, seed, count)), **known}))


def draw_batch(method: Method, seed: int, count: int = 5) -> Arrays:
    """What `predict` is handed: neither labels nor domains."""
    return frozen(dict(method.prepare(draw_raw(method, seed, count))))


def draw_experts(method: Method, count: int | None = None) -> tuple[Arrays, ...]:
    """Pool entries as the platform would hand them out: as many as the method asks for."""
    policy = method.pool_policy()
    if policy is None:
        return ()
    rng = np.random.default_rng(17)
    number = policy.k if count is None else count
    return tuple(
        frozen({n: rng.normal(0, 0.3, s.shape).astype(s.dtype) for n, s in policy.spec.items()})
        for _ in range(number)
    )


def handed_out(method: Method) -> tuple[Arrays, ...]:
    """The experts of a round; of a pool that is made after them a client refuses any."""
    policy = method.pool_policy()
    return () if policy is None or policy.closes else draw_experts(method)


def frozen(arrays: Arrays) -> Arrays:
    """The arrays, read-only: whoever writes to them raises."""
    for value in arrays.values():
        value.flags.writeable = False
    return arrays
