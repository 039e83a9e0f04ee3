"""TRIP's routing and training step, one image at a time, against the method's batched versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from _sizes import sized
from _speed_subjects import BATCH, backbone, build, one_batch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from methods.networks.routing import ROUTING, ROUTING_INFERENCE, Rules, StaticRouter, draw_keys
from methods.trip import EXPERTS
from platform.data.shapes import CLASSES

TripTimes = Sequence[tuple[str, float, float, str]]
IMAGES, LOOPED = sized((256, 16), (4, 2))
EXPERT_COUNT, STEP, ROUNDS = 4, 1e-4, 100
SIZES = ((65, 128), (197, 768))


def trip_times(rng: np.random.Generator, repeats: int) -> TripTimes:
    """For each part: its name, milliseconds batched, milliseconds looped, and the aim."""
    rows = [_routing(tokens, width, rng, repeats) for tokens, width in SIZES]
    return [*rows, *_steps(repeats)]


def _routing(
    tokens: int, width: int, rng: np.random.Generator, repeats: int
) -> tuple[str, float, float, str]:
    centres = rng.normal(size=(IMAGES, 6, width))
    which = rng.integers(0, 6, (IMAGES, tokens))
    noise = rng.normal(size=(IMAGES, tokens, width))
    drawn = (0.5 * centres[np.arange(IMAGES)[:, None], which] + noise).astype(np.float32)
    keys = draw_keys("orthogonal", (EXPERT_COUNT, width), 0)
    router = StaticRouter(keys, Rules(1.0, STEP), Rules(2.0, STEP), "random", 0)
    arrays = {"features": np.zeros((IMAGES, 2), np.float32), "tokens": drawn}
    batched = _least(lambda: router.prepare(arrays), repeats)
    seats = np.random.default_rng([0, 1]).permutation(tokens)[:EXPERT_COUNT]

    def looped() -> list[NDArray[Any]]:
        return [
            np.stack([_route(torch.tensor(x), seats, factor, keys) for factor in (1.0, 2.0)])
            for x in drawn[:LOOPED]
        ]

    kept = router.prepare(arrays)
    for i, shares in enumerate(looped()):
        expected = np.stack([kept[ROUTING][i], kept[ROUTING_INFERENCE][i]])
        if not np.allclose(shares, expected, atol=1e-6):
            raise ValueError("the loop and the method route differently")
    name = f"routing of {IMAGES} images, {tokens} x {width} tokens, both capacities"
    return name, batched, _least(looped, 2) * IMAGES / LOOPED, ">= 20"


def _route(
    tokens: Tensor, seats: NDArray[Any], factor: float, keys: NDArray[np.float32]
) -> NDArray[Any]:
    """One image's shares; like the published code, assigns one token after another."""
    capacity = max(int(factor * len(tokens) / EXPERT_COUNT + 1e-9), 1)
    centroids, multipliers = tokens[seats].clone(), torch.zeros(EXPERT_COUNT)
    before: Tensor | None = None
    for _ in range(ROUNDS):
        distances = torch.cdist(tokens, centroids) ** 2
        least, wanted = (distances + multipliers).min(1)
        room = [capacity] * EXPERT_COUNT
        labels = torch.full((len(tokens),), -1)
        for token in torch.argsort(least, stable=True).tolist():
            cluster = int(wanted[token])
            if room[cluster]:
                labels[token] = cluster
                room[cluster] -= 1
        demand = torch.bincount(wanted, minlength=EXPERT_COUNT)
        multipliers = (multipliers + STEP * (demand - capacity)).clamp(min=0)
        centroids = _centroids(tokens, labels, distances)
        if before is not None and bool((labels == before).all()):
            break
        before = labels
    return _matched(labels, centroids, torch.tensor(keys))


def _centroids(tokens: Tensor, labels: Tensor, distances: Tensor) -> Tensor:
    found = []
    for cluster in range(EXPERT_COUNT):
        own = tokens[labels == cluster]
        far = tokens[distances.min(1).values.argmax()]
        found.append(own.mean(0) if len(own) else far)
    return torch.stack(found)


def _matched(labels: Tensor, centroids: Tensor, keys: Tensor) -> NDArray[Any]:
    sizes = torch.bincount(labels[labels >= 0], minlength=EXPERT_COUNT)
    cosines = functional.normalize(centroids, dim=1) @ functional.normalize(keys, dim=1).T
    row, column = linear_sum_assignment(1 - cosines.numpy())
    shares = np.zeros(EXPERT_COUNT)
    shares[column] = sizes[row].numpy()
    return shares / shares.sum()


def _steps(repeats: int) -> TripTimes:
    """The loss's gradient for a batch, against a loop that encodes each image's texts alone."""
    method: Any = build("trip")
    data, state = one_batch(method), method.init_server(np.random.default_rng(1))
    batch = {name: torch.tensor(value) for name, value in data.arrays.items()}
    objective = method.training_objective()
    experts = torch.tensor(state[EXPERTS], requires_grad=True)
    teacher = method.captions.features(method.classes)

    def batched() -> object:
        losses = objective.losses({EXPERTS: experts}, {}, batch)
        return torch.autograd.grad(losses.mean(), experts)

    def looped(text_of: Callable[[Tensor], Tensor]) -> object:
        losses = []
        for i in range(BATCH):
            prompt = torch.einsum("m,mlw->lw", batch[ROUTING][i], experts)
            image = backbone().logit_scale * batch["features"][i : i + 1]
            logits = image @ text_of(prompt).T
            target = image @ teacher.T
            loss = functional.cross_entropy(logits, batch["labels"][i : i + 1])
            kl = functional.kl_div(logits.log_softmax(-1), target.softmax(-1), reduction="sum")
            losses.append(loss + method.config.beta * kl)
        return torch.autograd.grad(torch.stack(losses).mean(), experts)

    placeholders = "X " * method.encoder.context_tokens
    tokens = backbone().embed_tokens([f"{placeholders}{name}." for name in CLASSES])

    def whole(prompt: Tensor) -> Tensor:
        start, rest = tokens.embeddings[:, :1], tokens.embeddings[:, 1 + len(prompt) :]
        texts = torch.cat((start, prompt.expand(len(CLASSES), -1, -1), rest), dim=1)
        return backbone().encode_embeddings(texts, tokens.end_of_text)

    def prefixed(prompt: Tensor) -> Tensor:
        return method.encoder.text_features(prompt, CLASSES)

    for text_of in (whole, prefixed):
        (ours,), (theirs,) = batched(), looped(text_of)  # type: ignore[misc,attr-defined]
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    at_once, name = _least(batched, repeats), f"step of {BATCH} images, {len(CLASSES)} classes"
    return [
        (f"{name}, against whole texts", at_once, _least(lambda: looped(whole), repeats), ">= 3"),
        (
            f"{name}, against a loop that shares prefixes too",
            at_once,
            _least(lambda: looped(prefixed), repeats),
            "-",
        ),
    ]


def _least(run: Callable[[], object], repeats: int) -> float:
    """Least milliseconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, 1e3 * (time.perf_counter() - start))
    return best
