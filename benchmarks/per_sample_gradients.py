"""Milliseconds per batch for per-example gradients of pFedMoAP's objective on the tiny CLIP.

Run from the repository root: `python benchmarks/per_sample_gradients.py [threads]`. Prints, for 20
classes and two batch sizes,

- floor: one forward pass of the text encoder and one backward pass to the prompt per example,
  which any exact method behind a shared encoder needs; the head is left out;
- ours: `per_sample_gradients` of prompt and gate, for several chunks;
- loop: a whole forward and backward pass per example;
- mean: one ordinary backward pass of the mean loss, which has no per-example gradients.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from methods._clip import load_backbone
from methods._interface import Task
from methods._prompt import CONTEXT, build_encoder
from methods.pfedmoap import Config, Gate, MixtureObjective
from privacy.training.per_sample import CHUNK, per_sample_gradients

COLOURS = ("red", "green", "blue", "white", "black")
SHAPES = ("circle", "square", "star", "cross")
CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
EXPERTS = 3
REPEATS = 11


def make_objective() -> tuple[MixtureObjective, dict[str, Tensor]]:
    """The objective with random experts, and starting values of prompt and gate."""
    task = Task(classes=CLASSES, domains=(), population=10, backbone=load_backbone("sotto-tiny"))
    config = Config(context_tokens=4, experts=EXPERTS)
    encoder = build_encoder(config, task)
    rng = np.random.default_rng(0)
    gate = Gate(config, encoder.backbone.embed_dim)
    arrays = {CONTEXT: encoder.init_context(rng, None), **gate.init(rng)}
    contexts = [torch.tensor(encoder.init_context(rng, None)) for _ in range(EXPERTS)]
    with torch.no_grad():
        experts = torch.stack([gate.pool(encoder.text_features(c, CLASSES)) for c in contexts])
    parameters = {name: torch.tensor(array) for name, array in arrays.items()}
    return MixtureObjective(encoder, CLASSES, gate, experts), parameters


def make_batch(size: int, width: int) -> dict[str, Tensor]:
    """Random unit features and labels."""
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, width, generator=generator)
    labels = torch.randint(len(CLASSES), (size,), generator=generator)
    return {"features": torch.nn.functional.normalize(features, dim=-1), "labels": labels}


def run_floor(objective: MixtureObjective, parameters: Mapping[str, Tensor], size: int) -> None:
    """One encoder forward, `size` backward passes to its input, nothing else."""
    context = parameters[CONTEXT].clone().requires_grad_()
    text = objective.encode({CONTEXT: context})["text"]
    for _ in range(size):
        torch.autograd.grad(text, context, torch.ones_like(text), retain_graph=True)


def run_whole(
    objective: MixtureObjective,
    parameters: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
) -> None:
    """A whole forward and backward pass for each of the batches."""
    for batch in batches:
        leaves = {n: value.clone().requires_grad_() for n, value in parameters.items()}
        losses = objective.losses(leaves, objective.encode(leaves), batch)
        torch.autograd.grad(losses.mean(), list(leaves.values()))


def time_all(rows: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Least milliseconds of each call, taken in turns so that other load meets all alike."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(REPEATS):
        for name, run in rows.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def compare(objective: MixtureObjective, parameters: dict[str, Tensor], size: int) -> None:
    """Prints one table."""
    batch = make_batch(size, objective.encoder.backbone.embed_dim)
    single = [{n: v[i : i + 1] for n, v in batch.items()} for i in range(size)]
    rows: dict[str, Callable[[], object]] = {
        "floor": lambda: run_floor(objective, parameters, size)
    }
    for chunk in sorted({1, 2, 4, 8, 16, CHUNK}):
        mark = " (default)" if chunk == CHUNK else ""
        rows[f"ours, chunk {chunk}{mark}"] = lambda chunk=chunk: per_sample_gradients(  # type: ignore[misc]
            objective, parameters, batch, trained=parameters.keys(), chunk=chunk
        )
    rows["loop"] = lambda: run_whole(objective, parameters, single)
    rows["mean"] = lambda: run_whole(objective, parameters, [batch])
    for name, milliseconds in (best := time_all(rows)).items():
        ratio = milliseconds / best["floor"]
        print(f"B={size:<3d} {name:24s} {milliseconds:8.1f} ms  {ratio:5.2f} x floor")


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), C={len(CLASSES)}")
    objective, parameters = make_objective()
    for size in (16, 32):
        compare(objective, parameters, size)


if __name__ == "__main__":
    main()
