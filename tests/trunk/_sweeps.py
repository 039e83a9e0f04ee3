"""Sweeps that never ran: grids with made-up summaries, for tables and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platform.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.sweeping.running import Outcome

NO_EPSILON = {"server": "inf", "peers": "inf", "observer": "inf"}
Made = Callable[[Cell], dict[str, Any] | None]


def accuracy(mean: float) -> dict[str, Any]:
    return {
        "mean": mean,
        "weighted": mean,
        "std": 0.05,
        "worst": mean - 0.1,
        "per_client": [mean],
    }


def summary(
    local: float, *, protocol: dict[str, Any] | None = None, dataset: str = "shapes", **more: Any
) -> dict[str, Any]:
    """A run's summary as far as a sweep reads it; two rounds, half as good after the first."""
    final = {
        "accuracy": accuracy(local),
        "protocol": {"name": "client_mean"} | (protocol or {}),
        "epsilon": more.pop("epsilon", NO_EPSILON),
        "new_clients": more.pop("new_clients", None),
        "expert_weights": more.pop("expert_weights", None),
    }
    rounds = [
        {"round": number, "accuracy": accuracy(value), "validation": None, "epsilon": NO_EPSILON}
        for number, value in ((1, local / 2), (2, local))
    ]
    plain = {"unit": None, "mechanism": "none", "relation": None, "delta": 1e-5}
    plain |= {"accountant": None, "sampling": None}
    plain |= {"noise_distribution": None, "noise_source": None}
    return {
        **{"dataset": dataset, "rounds": rounds, "final": final, "gain_over_local": 0.25},
        "worth_of_sharing": 0.125,
        **{"local": {"accuracy": accuracy(local - 0.25)}, "best_on_validation": None},
        **plain,
        **more,
    }


def noised(epsilon: float) -> dict[str, Any]:
    """What a summary says under noise on uploads."""
    return {
        **{"unit": "client", "mechanism": "upload_noise", "relation": "replace_one"},
        **{"sampling": "none", "accountant": "rdp"},
        **{"noise_distribution": "discrete", "noise_source": "os"},
        "epsilon": {"server": epsilon, "peers": epsilon / 2, "observer": 0.0},
    }


def grid_of(*settings: str, **more: Any) -> Grid:
    return build_grid(
        SweepRequest(configs=more.pop("configs", ("comparison",)), settings=settings, **more)
    )


def outcomes_of(grid: Grid, make: Made) -> list[Outcome]:
    """An outcome a cell; None makes it a failed one."""
    found = []
    for number, cell in enumerate(grid.cells):
        made = make(cell)
        if made is None:
            found.append(Outcome(cell=cell, error="a reason"))
        else:
            found.append(Outcome(cell=cell, run_id=f"run{number}", summary=made))
    return found
