"""What PM-MoE says about each of its tables, written down by hand beside the files.

Feng et al. 2025, sections "Experimental Results", "Experimental Details" and "Dataset and Data
Partitioning"; what it leaves open as in its published code.
"""

from __future__ import annotations

from typing import Any

CLASSES = {
    "mnist": 10,
    "fashion_mnist": 10,
    "cifar10": 10,
    "cifar100": 100,
    "tiny_imagenet": 200,
    "ag_news": 4,
}
NETWORKS: dict[str, dict[str, Any]] = {
    "mnist": {"network": "cnn", "image_size": 28},
    "fashion_mnist": {"network": "cnn", "image_size": 28},
    "cifar10": {"network": "cnn", "image_size": 32},
    "cifar100": {"network": "cnn", "image_size": 32},
    "tiny_imagenet": {"network": "cnn", "image_size": 64},
    "ag_news": {"network": "fasttext"},
}
INPUTS = {
    "mnist": (512, 1024),
    "fashion_mnist": (512, 1024),
    "cifar10": (512, 1600),
    "cifar100": (512, 1600),
    "tiny_imagenet": (512, 10_816),
    "ag_news": (32, 32),
}
"""Shape of the last layer below the head: in the published code the CNN's has 512 outputs."""
BASES = ("fedper", "lg_fedavg", "fedrep", "fedrod", "fedgh", "fedbabu", "gpfl", "fedcp", "dbe")
FEDERATED = ("fedavg", "fedprox", "scaffold", "fedgen", "moon")
TEXT_OPTIONS = {"gpfl": {"guidance_weight": 1e-4, "decay": 0.0}, "dbe": {"mean_weight": 0.05}}
"""Options of the published scripts for AG News where they have others than for images."""
BEST = {"ag_news": "lg_fedavg", "fashion_mnist": "fedcp", "cifar100": "fedcp"}
"""The methods whose numbers the first row of Table 3 has."""

SHAPE = {"gate_layers": 4, "activation": "leaky_relu", "initialisation": "orthogonal"}
MIXTURE = {"top_k": 10, "gamma": 0.2, "temperature": 1.0, "gate_rate": 0.5, "gate_rounds": 50}


def mixture(base: str, data: str) -> dict[str, Any]:
    """PM-MoE over a method, with half of the 20 clients as k."""
    return {"base": base, "base_options": NETWORKS[data], **SHAPE, **MIXTURE}


def _all() -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for data, network in NETWORKS.items():
        found[f"pm-moe/table-1-{data}"] = ("fedavg", network)
        found[f"pm-moe/table-2-{data}"] = ("pm_moe", mixture("fedper", data))
        found[f"pm-moe/table-4-{data}"] = ("fed_syn_moe", {**network, **SHAPE})
    for data, base in BEST.items():
        found[f"pm-moe/table-3-{data}"] = ("pm_moe", mixture(base, data))
    return found


TABLES = _all()
"""Method and options, by the name of a file below `configs/papers`."""


def data_of(name: str) -> str:
    """The data set of a file."""
    return name.split("-", 3)[3]
