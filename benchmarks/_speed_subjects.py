"""The subjects of `method_speed.py`: each method ready to train, and its floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from methods import Arrays, ClientView, Examples, Method, Registry, Task
from methods.clip.adapter import Backbone, load_backbone
from methods.prompts.prompt import PromptEncoder
from platform.config import PACKAGED_CONFIGS, MethodConfig
from platform.config.loading import validate_options
from platform.data.shapes import CLASSES, DOMAINS, shapes_dataset
from privacy.training import LocalTrainer, TrainingPlan

BATCH = 16
POPULATION = 10
LEARNING_RATE = 0.01
LEARN = (
    *("coop", "promptfl", "promptfl_ft", "prompt_fedprox", "prompt_fedper", "prompt_fedamp"),
    *("pfedprompt", "pfedmoap", "fedpgp", "fedotp", "fedclip", "fedapt", "fedcocoop"),
    *("fedmaple", "trip", "trip_lite"),
)


@dataclass(frozen=True)
class Subject:
    """One method with one client's data.

    Attributes:
        name: The method's name.
        sequences: The number of sequences that a step must differentiate, in words.
        train: Runs `client_update` with the given number of steps.
        floor: One forward and backward pass over these sequences; None without sequences.
    """

    name: str
    sequences: str
    train: Callable[[int], object]
    floor: Callable[[], object] | None


def floor_of(subject: Subject) -> object:
    """Run the floor, if the subject has one."""
    return None if subject.floor is None else subject.floor()


def subjects() -> Iterator[Subject]:
    """All methods that learn, in the order of the tables."""
    for name in LEARN:
        method = build(name)
        data = one_batch(method)
        prompts, tokens = _prompts_of(name, method, data)
        floor = None if not prompts else _text_floor(prompts, tokens)
        sequences = f"{prompts} x {len(CLASSES)}"
        if name == "fedmaple":
            floor, sequences = _both_towers(tokens, data), f"{sequences}, {BATCH} images"
        yield Subject(name, sequences, _training(method, data), floor)


@cache
def backbone() -> Backbone:
    """The shipped model."""
    return load_backbone("sotto-tiny")


def build(name: str, **changes: Any) -> Method:
    """A method from its preset."""
    preset = yaml.safe_load((PACKAGED_CONFIGS / "methods" / f"{name}.yaml").read_text())
    config = MethodConfig(**{**preset, **changes})
    registry = Registry()
    task = Task(CLASSES, DOMAINS, POPULATION, backbone())
    return registry.build(name, validate_options(registry, config), task)


def one_batch(method: Method, count: int = BATCH) -> Examples:
    """Examples of the embedded data in the form in which the platform gives them to the method."""
    split = shapes_dataset(0, 1, 1, domains=DOMAINS[:2]).train
    rows = np.random.default_rng(0).permutation(len(split.labels))[:count]
    images = split.images[rows]
    make: Mapping[str, Callable[[], NDArray[Any]]] = {
        "features": lambda: backbone().encode_images(images),
        "tokens": lambda: backbone().encode_tokens(images),
        "pixels": lambda: images,
    }
    wanted = {need: make[need]() for need in sorted(method.needs - {"domains"})}
    known = {"labels": split.labels[rows]}
    if "domains" in method.needs:
        known["domains"] = split.domains[rows]
    return Examples({**method.prepare(wanted), **known})


def _training(method: Method, data: Examples) -> Callable[[int], object]:
    state = method.init_server(np.random.default_rng(1))
    personal = method.init_client(np.random.default_rng(1), np.random.default_rng(2))
    view = ClientView(method.broadcast(state, "one"), _experts(method), personal)

    def train(steps: int) -> object:
        plan = TrainingPlan(local_steps=steps, batch_size=BATCH, learning_rate=LEARNING_RATE)
        return method.client_update(view, data, LocalTrainer(plan), np.random.default_rng(4))

    return train


def _experts(method: Method) -> list[Arrays]:
    policy, draws = method.pool_policy(), np.random.default_rng(3)
    if policy is None:
        return []
    return [
        {n: draws.normal(0, 0.02, s.shape).astype(s.dtype) for n, s in policy.spec.items()}
        for _ in range(policy.k)
    ]


def _prompts_of(name: str, method: Any, data: Examples) -> tuple[int, int]:
    """The number of prompts that a step differentiates, and of tokens in each."""
    if name == "fedclip":
        return 0, 0
    if name == "fedmaple":
        return 1, method.text.context_tokens
    count = {"fedpgp": 2, "fedcocoop": BATCH, "fedapt": len(DOMAINS)}.get(name, 1)
    if name == "fedotp":
        count = method.config.prompts
    if name.startswith("trip"):
        count = len(np.unique(data.arrays["routing"], axis=0))
    return count, method.config.context_tokens


def _text_floor(prompts: int, tokens: int) -> Callable[[], object]:
    """The bare text encoder over all classes behind this number of prompts."""
    encoder = PromptEncoder(backbone(), tokens)
    drawn = np.random.default_rng(5).normal(0, 0.02, (prompts, *encoder.spec.shape))
    contexts = torch.tensor(drawn, dtype=torch.float32, requires_grad=True)
    direction = torch.randn(prompts, len(CLASSES), backbone().embed_dim)

    def run() -> object:
        text = encoder.text_features_each(contexts, CLASSES)
        return torch.autograd.grad(text, contexts, direction)

    return run


def _both_towers(tokens: int, data: Examples) -> Callable[[], object]:
    """The bare text encoder, and the bare image tower over a batch's patches."""
    text, visual = _text_floor(1, tokens), backbone()._model.visual
    patches = torch.tensor(data.arrays["patches"], requires_grad=True)
    direction = torch.randn(len(patches), backbone().embed_dim)

    def run() -> object:
        features = backbone().image_tower.pool(visual.transformer(patches))
        return text(), torch.autograd.grad(features, patches, direction)

    return run
