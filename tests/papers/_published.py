"""What the papers say about each of their tables, written down by hand beside the files.

Sources: pFedMoAP (Luo et al. 2025), section 5.1 and appendices A.1 to A.4; FedPGP (Cui et al.
2024), section 4.1 and appendices A.1, A.2 and B; TRIP (Gong et al. 2025), sections V-A to V-I.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from platform.config import PACKAGED_CONFIGS

PAPERS = PACKAGED_CONFIGS / "papers"
CLIP_SETS = ("flowers102", "oxford_pets", "food101", "caltech101", "dtd")
RESNET, VIT = "RN50-quickgelu", "ViT-B-16-quickgelu"
CLASSES = {
    "flowers102": 102,
    "oxford_pets": 37,
    "food101": 101,
    "caltech101": 100,
    "dtd": 47,
    "cifar10": 10,
    "cifar100": 100,
    "office_caltech10": 10,
    "domainnet10": 10,
    "pacs": 7,
    "office_home": 65,
    "vlcs": 5,
    "domainnet": 345,
}


@dataclass(frozen=True)
class Table:
    """One table's setting on one data set."""

    model: str
    rounds: int
    clients: int
    cohort: int
    epochs: int
    batch: int
    rate: float
    shots: int | None
    kind: str
    alpha: float | None = None
    protocol: str = "client_mean"
    optimizer: str = "sgd"
    momentum: float = 0.9
    options: dict[str, object] = field(default_factory=dict)


GATE = {"context_tokens": 16, "local_weight": 0.5, "gate_dim": 128, "gate_heads": 8}
GATE |= {"gate_learning_rate": 0.01}
LOW_RANK = {"context_tokens": 16, "bottleneck": 8, "mu": 1.0}
MIXTURE = {"context_tokens": 32, "experts": 4, "beta": 0.8}
MIXTURE |= {"capacity_factor": 1.0, "inference_capacity_factor": 2.0}


def pfedmoap_few_shots() -> Table:
    """Tables 1, 6, 7 and 9: all ten clients in each of ten rounds."""
    options = {**GATE, "experts": 9}
    return Table(RESNET, 10, 10, 10, 5, 16, 0.002, 16, "pathological", options=options)


def pfedmoap_cifar() -> Table:
    """Table 2: a tenth of 100 clients in each of 120 rounds."""
    options = {**GATE, "experts": 9}
    return Table(RESNET, 120, 100, 10, 5, 32, 0.002, None, "dirichlet", 0.5, options=options)


def pfedmoap_domains(clients: int, cohort: int, experts: int) -> Table:
    """Tables 3, 4 and 8: five clients on each domain."""
    options = {**GATE, "experts": experts}
    kind = "domain_dirichlet"
    return Table(VIT, 25, clients, cohort, 5, 32, 0.002, None, kind, 0.3, options=options)


def fedpgp_classes(model: str, protocol: str, clients: int = 10) -> Table:
    """Tables 1, 3, 6, 7, 10 and 11: everybody in each of 25 rounds of two epochs."""
    kind = "pathological"
    return Table(
        *(model, 25, clients, clients, 2, 16, 0.001, 16, kind, None, protocol), options=LOW_RANK
    )


def fedpgp_domains(clients: int) -> Table:
    """Tables 2, 4 and 9: a client for each domain but one."""
    protocol = "leave_one_domain_out"
    return Table(
        *(VIT, 25, clients, clients, 2, 32, 0.001, None, "domain", None, protocol), options=LOW_RANK
    )


def fedpgp_cifar() -> Table:
    """Table 5: a tenth of 100 clients in each of 150 rounds of one epoch."""
    return Table(VIT, 150, 100, 10, 1, 32, 0.001, None, "dirichlet", 0.3, options=LOW_RANK)


def trip(clients: int, shots: int | None = None) -> Table:
    """All tables: a client for each domain but one, 15 rounds of one epoch."""
    return Table(
        *(VIT, 15, clients, clients, 1, 16, 4e-4, shots, "domain", None, "leave_one_domain_out"),
        optimizer="adamw",
        momentum=0.0,
        options=MIXTURE,
    )


def _all() -> dict[str, Table]:
    found = {}
    for data in CLIP_SETS:
        for number in (1, 6, 7, 9):
            found[f"pfedmoap/table-{number}-{data}"] = pfedmoap_few_shots()
        for number in (1, 6, 10):
            found[f"fedpgp/table-{number}-{data}"] = fedpgp_classes(VIT, "base_to_novel")
        for number in (3, 7):
            found[f"fedpgp/table-{number}-{data}"] = fedpgp_classes(RESNET, "client_mean")
        if data != "food101":
            found[f"fedpgp/table-11-{data}"] = fedpgp_classes(VIT, "client_mean")
    for data in ("cifar10", "cifar100"):
        found[f"pfedmoap/table-2-{data}"] = pfedmoap_cifar()
        found[f"fedpgp/table-5-{data}"] = fedpgp_cifar()
    for number in (3, 8):
        found[f"pfedmoap/table-{number}-domainnet10"] = pfedmoap_domains(30, 7, 19)
    found["pfedmoap/table-4-office_caltech10"] = pfedmoap_domains(20, 10, 9)
    for number, data, clients in (
        *((2, "office_caltech10", 3), (4, "office_caltech10", 3)),
        *((2, "domainnet10", 5), (9, "domainnet10", 5)),
    ):
        found[f"fedpgp/table-{number}-{data}"] = fedpgp_domains(clients)
    for number, data in ((1, "pacs"), (2, "office_home"), (3, "vlcs"), (7, "office_home")):
        found[f"trip/table-{number}-{data}"] = trip(3)
    found["trip/table-4-domainnet"] = trip(5, shots=16)
    for data in ("pacs", "office_home", "vlcs"):
        found[f"trip/table-5-{data}"] = found[f"trip/table-6-{data}"] = trip(3)
    return found


TABLES = _all()
"""By the name of their file below `configs/papers`."""


def name_of(path: Path) -> str:
    """A file's name below `configs/papers`."""
    return path.relative_to(PAPERS).with_suffix("").as_posix()
