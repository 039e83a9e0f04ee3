"""How much faster 20 experts run on all rows at once than one by one for each example.

The loop works as PM-MoE's published code: for each example, it runs the experts with the largest
weights, one module on one row at a time. Our code runs every expert on all rows and adds up. Both
get the same inputs and weights. The benchmark first checks that both give the same sums, and leaves
out the work before and after the experts, which is the same. The second table is the second phase:
our code computes the frozen experts' outputs once and then trains the gate on them, but the
published code runs the experts again in each step.

Prints the tables; `--write` also writes them to `docs/results/experts.md`.

    python benchmarks/experts.py [--write]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from _scores import provenance
from _sizes import RESULTS, SMALLEST, sized
from torch import Tensor

from methods import ClientView, Task, pm_moe
from methods.clip.adapter import load_backbone
from methods.networks.method import FED
from methods.networks.mixture import Gate, Mixture, mixed
from methods.pm_moe import OWN

EXPERTS = sized(20, 5)
CHOSEN = sized((20, 4), (5, 2))
ROWS, BATCH, EPOCHS = sized(128, 10), 10, 50
REPEATS = sized(5, 1)
AIM = 10.0
CLASSES = tuple(f"class {number}" for number in range(10))
NETWORKS: Mapping[str, Mapping[str, object]] = {
    "CNN at 28": {"network": "cnn", "image_size": 28},
    "CLIP features": {"network": "features"},
}
BASES = {"head": "fedper", "extractor": "lg_fedavg"}


@dataclass(frozen=True)
class Subject:
    """One client with 20 experts, and examples.

    Attributes:
        mixture: Its experts and its gate.
        parameters: Its network and its gate.
        batch: Examples as the data layer gives them.
    """

    mixture: Mixture
    parameters: Mapping[str, Tensor]
    batch: Mapping[str, np.ndarray]

    def fed(self, rows: int) -> Tensor:
        """The experts' input for the first rows of the examples."""
        base = self.mixture.base
        some = base.tensors({name: value[:rows] for name, value in self.batch.items()})
        return base.parts(self.mixture.model, some)[FED]

    def seen(self) -> dict[str, Tensor]:
        """The inputs of the gate's training for the examples, including the experts' outputs."""
        return self.mixture.base.tensors(self.mixture.seen(self.batch))


@dataclass(frozen=True)
class Mixing:
    """A row of the first table.

    Attributes:
        kind: The kind of module that is an expert.
        network: The network.
        top_k: Number of chosen experts.
        ours: Milliseconds of all experts on all rows.
        loop: Milliseconds of one expert after another.
    """

    kind: str
    network: str
    top_k: int
    ours: float
    loop: float

    @property
    def ratio(self) -> float:
        """How many times as long the loop takes."""
        return self.loop / self.ours

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        times = (f"{value:.1f}" for value in (self.ours, self.loop, self.ratio))
        return (self.kind, self.network, str(self.top_k), *times)


def make_subject(kind: str, network: str, top_k: int) -> Subject:
    """Random experts, a random gate and random examples."""
    task = Task(CLASSES, (), EXPERTS, load_backbone("sotto-tiny"))
    config = pm_moe.Config(
        base=BASES[kind], base_options=dict(NETWORKS[network]), top_k=top_k, gamma=0.0
    )
    method = pm_moe.build(config, task)
    rng = np.random.default_rng(0)
    clients = [method.init_client(np.random.default_rng(i), rng) for i in range(EXPERTS)]
    gate = Gate(method.base.gated_width, EXPERTS, config).start(rng)
    view = ClientView(
        method.broadcast(method.init_server(rng)),
        clients,
        {**clients[0], **gate, OWN: np.array(0, np.int64)},
    )
    drawn = {
        "pixels": rng.integers(0, 256, (ROWS, 28, 28, 3), dtype=np.uint8),
        "features": rng.normal(0, 0.1, (ROWS, task.backbone.embed_dim)).astype(np.float32),
    }
    batch = method.prepare({name: drawn[name] for name in method.needs})
    parameters = method.base.tensors(method._parameters(view))
    return Subject(method._mixture(view), parameters, batch)


def on_all_rows(subject: Subject, fed: Tensor, weights: Tensor) -> Tensor:
    """The sum (B, H), with every expert on all rows."""
    return mixed(weights, subject.mixture.outputs(fed))


def one_by_one(subject: Subject, fed: Tensor, weights: Tensor) -> Tensor:
    """The sum (B, H), with one chosen expert on one row at a time."""
    stacked, run = subject.mixture.modules, subject.mixture.base.module_output
    modules = [{name: value[k] for name, value in stacked.items()} for k in range(EXPERTS)]
    rows = []
    for row, share in zip(fed, weights, strict=True):
        chosen = torch.nonzero(share).flatten().tolist()
        rows.append(torch.stack([share[k] * run(modules[k], row[None])[0] for k in chosen]).sum(0))
    return torch.stack(rows)


def gate_step(subject: Subject, seen: Mapping[str, Tensor], fed: Tensor | None) -> None:
    """One gradient of the gate: looks up the experts' outputs, or runs them one by one on `fed`."""
    mixture = subject.mixture
    gate = {n: subject.parameters[n].clone().requires_grad_() for n in mixture.gate.layers}
    parameters = {**subject.parameters, **gate}
    if fed is not None:
        output = one_by_one(subject, fed, mixture.weights(parameters, seen))
        logits = mixture.base.combine(parameters, seen, output)
    else:
        logits = mixture.logits(parameters, seen)
    torch.autograd.grad(logits.logsumexp(1).mean(), list(gate.values()))


def medians(rows: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of this process' own time; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(REPEATS):
        for name, run in rows.items():
            start = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def mixing_row(kind: str, network: str, top_k: int) -> Mixing:
    """A row of the first table."""
    subject = make_subject(kind, network, top_k)
    with torch.no_grad():
        seen = subject.seen()
        fed, weights = subject.fed(ROWS), subject.mixture.weights(subject.parameters, seen)
        ours, loop = on_all_rows(subject, fed, weights), one_by_one(subject, fed, weights)
        torch.testing.assert_close(ours, loop, rtol=1e-3, atol=1e-5)
        times = medians(
            {
                "ours": lambda: on_all_rows(subject, fed, weights),
                "loop": lambda: one_by_one(subject, fed, weights),
            }
        )
    row = Mixing(kind, network, top_k, times["ours"], times["loop"])
    as_row(*row.cells)
    return row


def phase_row(kind: str, network: str, top_k: int) -> str:
    """A row of the second table, from the times of one step."""
    subject = make_subject(kind, network, top_k)
    seen = {name: value[:BATCH] for name, value in subject.seen().items()}
    fed = subject.fed(BATCH)
    times = medians(
        {
            "once": subject.seen,
            "ours": lambda: gate_step(subject, seen, None),
            "loop": lambda: gate_step(subject, seen, fed),
        }
    )
    steps = EPOCHS * math.ceil(ROWS / BATCH)
    ratio = steps * times["loop"] / (times["once"] + steps * times["ours"])
    cells = (kind, network, str(top_k), *(f"{value:.1f}" for value in times.values()))
    return as_row(*cells, f"{ratio:.1f}")


def as_row(*cells: str) -> str:
    """Print a row of a table and return it."""
    line = f"| {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def misses(mixing: Sequence[Mixing]) -> list[str]:
    """The rows below the aim with all experts chosen, and the rows in which the loop is faster."""
    below = [row for row in mixing if row.top_k == EXPERTS and row.ratio < AIM]
    slower = [row for row in mixing if row.ratio < 1.0]
    return [
        f"- {claim}: {_listed(rows)}."
        for claim, rows in (("Below the aim", below), ("Slower than the loop", slower))
    ]


def _listed(rows: Sequence[Mixing]) -> str:
    named = (f"{r.kind}, {r.network}, {r.top_k} chosen ({r.ratio:.1f})" for r in rows)
    return "; ".join(named) or "none"


def report(mixing: Sequence[Mixing], phases: Sequence[str]) -> list[str]:
    """The page."""
    return [
        "# Mixtures of experts: on all rows against one by one",
        "",
        f"{EXPERTS} experts, {ROWS} examples, 10 classes, one thread, the process' own time,",
        f"median of {REPEATS} in turns. For each example the loop runs one chosen expert after",
        "another, as PM-MoE's published code does; both give the same sums. The loop runs only the",
        "chosen experts, ours always runs all. Aim: a ratio of at least",
        f"{AIM:.0f} with all {EXPERTS} chosen.",
        "",
        *misses(mixing),
        "",
        "One image already keeps a processor core busy in a CNN (10 million multiplications and",
        "additions), so a batch saves calls but no arithmetic. The second phase of such extractors",
        "is fast because it runs them once (second table).",
        "",
        "| expert | network | chosen | ours, ms | one by one, ms | ratio |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row.cells)} |" for row in mixing),
        "",
        f"The second phase: {EPOCHS} epochs over {ROWS} examples in batches of {BATCH}, from the",
        "times of one step. Ours computes the frozen experts' outputs once, and each step looks",
        "them up; the published code runs the experts in each step.",
        "",
        "| expert | network | chosen | outputs once, ms | step, ms | step one by one, ms | ratio |",
        "|---|---|---|---|---|---|---|",
        *phases,
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [(kind, network, k) for network in NETWORKS for kind in BASES for k in CHOSEN]
    mixing = [mixing_row(*row) for row in rows]
    phases = [phase_row(*row) for row in rows]
    if options.write or SMALLEST:
        text = "\n".join([*report(mixing, phases), *provenance()])
        (RESULTS / "experts.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
