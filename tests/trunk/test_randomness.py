"""Seeded streams, one per purpose, and what must never repeat itself.

A generator with a constant seed passes every test on distributions within one process. Two
processes that start alike tell it from the operating system's entropy.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from platform.config import RunConfig, parse_config
from platform.config.randomness import stream
from platform.parties.profile import ClientProfile, Safeguards, noise_of
from platform.rounds.attempts import coordinator_noise, draw_cohort
from privacy import IntegerUploadNoise, UploadNoise, grid_of, protect_upload
from tests._forking import forked
from tests.privacy.training._linear import fit, make_examples, mechanism, trainer


def test_a_known_answer():
    """SHA-256 of the JSON text `[0, "cohort", 1]` seeds NumPy's default generator."""
    digest = hashlib.sha256(b'[0, "cohort", 1]').digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
    expected = np.random.default_rng(words)
    assert stream(0, "cohort", 1).integers(0, 2**60) == expected.integers(0, 2**60)
    purposes = [
        *((1, "a"), (2, "a"), (1, "b"), (1, "a", 1), (1, "a", "1")),
        *((1, "a1"), (11, "a"), (1, 1, "a"), (1, "a", "b"), (1, 'a", "b')),
    ]
    drawn = {stream(*purpose).integers(0, 2**60) for purpose in purposes}
    assert len(drawn) == len(purposes)


NAMES = tuple(f"client-{i:02d}" for i in range(40))


def secret(sampling: str = "poisson", source: str = "os") -> RunConfig:
    privacy = {"mechanism": "central_noise", "clipping_norm": 1.0, "noise_multiplier": 1.0}
    cohort = {"size": 20, "minimum": 1, "retries": 0, "sampling": sampling}
    tree = {"name": "c", "method": {"name": "promptfl"}, "training": {"local_steps": 1}}
    privacy = {**privacy, "noise_source": source}
    own = {"task": {"clients": 40}, "cohort": cohort, "privacy": privacy}
    return parse_config({**tree, **own})


def everything() -> dict[str, list[Any]]:
    """What a run draws from the operating system, each once; all seeds are constants."""
    said = SimpleNamespace(randomness=SimpleNamespace(noise_source="os"), safeguards=Safeguards())
    profile = cast(ClientProfile, said)
    zeros, noise = np.zeros(8), noise_of(profile, 1)
    on_reals = UploadNoise(1.0, 1.0, "replace_one")
    on_grid = IntegerUploadNoise(clipping_norm=1.0, noise_multiplier=1.0, scale=2.0**16)
    # Next to no noise: what moves then is who is in the batch.
    silent = mechanism(noise_multiplier=1e-9, sampling_probability=0.5)
    protected = {
        name: protect_upload(zeros, how, grid_of(how, 8, bits=20, clients=1), noise).levels
        for name, how in (("gaussian", on_reals), ("discrete gaussian", on_grid))
    }
    return {
        **{name: levels.tolist() for name, levels in protected.items()},
        "central noise": coordinator_noise(secret(), 1, 1).standard_normal(8).tolist(),
        "batch": fit(trainer(silent, noise), make_examples(np.eye(64)))["shared"].round(3).tolist(),
        "poisson cohort": list(draw_cohort(secret(), NAMES, 1)),
        "fixed-size cohort": list(draw_cohort(secret("fixed_size"), NAMES, 1)),
    }


def say_everything() -> int:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    sys.stdout.write(json.dumps(everything()))
    return 0


def test_two_processes_never_draw_alike():
    """By chance at most once in 2^34 times, for the cohort of fixed size."""
    found = [forked(say_everything) for _ in range(2)]
    assert [code for code, _ in found] == [0, 0], found
    one, other = (json.loads(printed) for _, printed in found)
    # The two laws of noise on clients, that of the centre, a batch, and both cohorts.
    assert len(one) == 6 and one.keys() == other.keys()
    assert [what for what in one if one[what] == other[what]] == []


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
def test_a_secret_cohort_is_not_the_recorded_seed_s(sampling: str) -> None:
    """Whoever has the report has the seed, so nothing of the draw may follow from it."""
    hidden = [draw_cohort(secret(sampling), NAMES, 3) for _ in range(4)]
    assert len(set(hidden)) == 4
    recorded = [draw_cohort(secret(sampling, "seeded"), NAMES, 3) for _ in range(4)]
    assert len(set(recorded)) == 1
    assert not set(hidden) & set(recorded)
