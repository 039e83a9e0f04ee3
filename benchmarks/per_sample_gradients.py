"""Milliseconds per batch for per-example gradients of pFedMoAP's objective on the tiny CLIP.

Measures, for 20 classes and two batch sizes, in turns in one run:

- floor: one forward pass of the text encoder and one backward pass to the prompt per example,
  which any exact method behind a shared encoder needs, without the head;
- ours: `per_sample_gradients` of prompt and gate, for several chunks;
- functorch: Opacus' `GradSampleModule` with `force_functorch=True` around the same objective,
  forward and backward, in two ways: the frozen encoder is a part of the module, as usual; or the
  encoder is hidden, and the module has only the parameters of prompt and gate. The benchmark first
  compares the gradients with ours;
- loop: a whole forward and backward pass per example;
- mean: one ordinary backward pass of the mean loss, which has no per-example gradients.

Prints the tables; `--write` also writes them to `docs/results/per-sample-gradients.md`.

    python benchmarks/per_sample_gradients.py [--threads 1] [--write]
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version

import numpy as np
import torch
from _scores import provenance
from _sizes import RESULTS, SMALLEST, sized
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional

from methods.clip.adapter import load_backbone
from methods.interface.method import Task
from methods.pfedmoap import AttentionGate, MixtureObjective
from methods.prompts.prompt import CONTEXT, PromptConfig, build_encoder
from privacy.training.per_sample import CHUNK, per_sample_gradients

COLOURS = ("red", "green", "blue", "white", "black")
SHAPES = ("circle", "square", "star", "cross")
CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
EXPERTS = 3
SIZES = sized((16, 32), (4,))
REPEATS = sized(11, 1)
OURS = f"ours, chunk {CHUNK} (default)"
FUNCTORCH = {True: "Opacus functorch", False: "Opacus functorch, encoder hidden"}
"""By whether the frozen encoder is a part of the module."""


def make_objective() -> tuple[MixtureObjective, dict[str, Tensor]]:
    """The objective with random experts, and starting values of prompt and gate."""
    task = Task(classes=CLASSES, domains=(), population=10, backbone=load_backbone("sotto-tiny"))
    encoder = build_encoder(PromptConfig(context_tokens=4), task)
    rng = np.random.default_rng(0)
    gate = AttentionGate(128, "mean", "cosine", heads=8, scale="sqrt")
    arrays = {CONTEXT: encoder.init_context(rng, None), **gate.init(rng)}
    contexts = [torch.tensor(encoder.init_context(rng, None)) for _ in range(EXPERTS)]
    with torch.no_grad():
        experts = torch.stack([gate.pool(encoder.text_features(c, CLASSES)) for c in contexts])
    parameters = {name: torch.tensor(array) for name, array in arrays.items()}
    return MixtureObjective(encoder, CLASSES, gate, 0.5, experts), parameters


def make_batch(size: int, width: int) -> dict[str, Tensor]:
    """Random unit features and labels."""
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, width, generator=generator)
    labels = torch.randint(len(CLASSES), (size,), generator=generator)
    return {"features": functional.normalize(features, dim=-1), "labels": labels}


class Predictor(nn.Module):
    """The objective in the form that Opacus needs: a module from features to logits.

    Opacus' functorch mode computes per-example gradients of *all* parameters of the wrapped module,
    including frozen ones. An encoder that is not registered is a constant.
    """

    def __init__(
        self, objective: MixtureObjective, parameters: Mapping[str, Tensor], *, whole: bool
    ) -> None:
        super().__init__()
        self.objective = objective
        if whole:
            tower = objective.encoder.backbone._text
            self.frozen = nn.ModuleList([*tower.blocks, tower.final_norm])
        self.names = {name.replace(".", "__"): name for name in parameters}
        for attribute, name in self.names.items():
            self.register_parameter(attribute, nn.Parameter(parameters[name].clone()))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, C)."""
        parameters = {name: getattr(self, attribute) for attribute, name in self.names.items()}
        return self.objective.logits(parameters, self.objective.encode(parameters), features)


def run_functorch(module: GradSampleModule, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One forward and backward pass with Opacus' hooks; returns the per-example gradients."""
    for parameter in module.parameters():
        parameter.grad_sample = parameter.grad = None
    with warnings.catch_warnings():
        # Torch warns that no input needs a gradient; features need none.
        warnings.simplefilter("ignore")
        functional.cross_entropy(module(batch["features"]), batch["labels"]).backward()
    names = module._module.names
    return {names[n]: p.grad_sample for n, p in module._module.named_parameters() if n in names}


def run_floor(objective: MixtureObjective, parameters: Mapping[str, Tensor], size: int) -> None:
    """One encoder forward pass and `size` backward passes to its input."""
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
    """Least milliseconds of each call; the calls take turns, so that other load affects all."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(REPEATS):
        for name, run in rows.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def require_equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Check that both ways compute the same numbers, so that comparing their speed makes sense."""
    # Over all keys together: the bias of a key changes no softmax, so its gradient is rounding.
    first, second = (torch.cat([g[name].flatten(1) for name in ours], 1) for g in (ours, theirs))
    error = float((second - first).norm() / first.norm())
    if not error < 1e-5:
        raise ValueError(f"the gradients differ by {error:g} of their norm")


def measure(objective: MixtureObjective, parameters: dict[str, Tensor], size: int) -> list[str]:
    """One table with a row for each way."""
    batch = make_batch(size, objective.encoder.backbone.embed_dim)
    single = [{n: v[i : i + 1] for n, v in batch.items()} for i in range(size)]
    modules = {
        whole: GradSampleModule(
            Predictor(copy.deepcopy(objective), parameters, whole=whole), force_functorch=True
        )
        for whole in (True, False)
    }
    rows: dict[str, Callable[[], object]] = {
        "floor": lambda: run_floor(objective, parameters, size)
    }
    for chunk in sorted({1, 2, 4, 16, CHUNK}):
        name = OURS if chunk == CHUNK else f"ours, chunk {chunk}"
        rows[name] = lambda chunk=chunk: per_sample_gradients(  # type: ignore[misc]
            objective, parameters, batch, trained=parameters.keys(), chunk=chunk
        )
    ours = per_sample_gradients(objective, parameters, batch, trained=parameters.keys())
    for whole, name in FUNCTORCH.items():
        require_equal(ours.gradients, run_functorch(modules[whole], batch))
        rows[name] = partial(run_functorch, modules[whole], batch)
    rows["a whole pass per example"] = lambda: run_whole(objective, parameters, single)
    rows["mean loss only"] = lambda: run_whole(objective, parameters, [batch])
    return table(size, time_all(rows))


def table(size: int, best: Mapping[str, float]) -> list[str]:
    """Milliseconds, and their ratios to the floor and to ours."""
    lines = [
        f"| B = {size} | milliseconds | of floor | of ours |",
        "|---|---|---|---|",
    ]
    for name, milliseconds in best.items():
        ratios = f"{milliseconds / best['floor']:.2f} | {milliseconds / best[OURS]:.2f}"
        lines.append(f"| {name} | {milliseconds:.1f} | {ratios} |")
    usual, hidden = (best[FUNCTORCH[whole]] / best[OURS] for whole in (True, False))
    lines += [
        "",
        f"B = {size}: ours takes {best[OURS] / best['floor']:.2f} of the floor (aim: at most 1.3). "
        "Opacus' functorch mode takes",
        f"{usual:.2f} times ours (aim: at least 1.6), and {hidden:.2f} times if the frozen "
        "encoder is hidden from it.",
        "",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    objective, parameters = make_objective()
    tables = [line for size in SIZES for line in measure(objective, parameters, size)]
    print("\n".join(tables))
    if options.write or SMALLEST:
        text = [
            "# Per-example gradients: time by the way of computing them",
            "",
            "pFedMoAP's objective (prompt of 4 tokens and gate trained, 3 experts, 20 classes) on",
            f"the tiny CLIP, {options.threads} thread(s) of a shared machine, least of {REPEATS} "
            "runs, which took turns. The floor is one",
            "encoder forward and B backward passes to the prompt, without head or gate.",
            "",
            *tables,
            *provenance()[:-1],
            f"- Opacus {version('opacus')}",
            "",
        ]
        (RESULTS / "per-sample-gradients.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
