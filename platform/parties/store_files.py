"""Clients' names, and where the stores of a simulation's clients lie."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from platform.config import RunConfig
from platform.config.rules import KINDS_WITH
from platform.wire.transport import ClientId

STORES: Final = "stores.db"
SHARED: Final = "clients"
"""Beside the database: the folder of stores that several runs share."""


def client_names(count: int, kind: str = "client") -> tuple[ClientId, ...]:
    """Return names of all clients, in an order that sorting keeps."""
    return tuple(f"{kind}-{i:05d}" for i in range(count))


def stores_folder(config: RunConfig, run_folder: Path) -> Path:
    """Return where the clients' stores lie.

    In the run's folder, or shared by all runs on the same data.

    A client that limits what it spends in its lifetime is the same client, with one pseudonym and
    one ledger, in every run on its data. Who the same client is in a simulation follows from what
    deals out the data.
    """
    if config.privacy.lifetime_budget is None:
        return run_folder / "clients"
    seeds = [config.seed_of(purpose) for purpose in ("class_map", "shots", "split")]
    if seeds[1] == seeds[2]:
        # As it was before the split had a seed of its own: the same clients keep their stores.
        del seeds[2]
    text = json.dumps([_dealing(config), seeds], sort_keys=True)
    return run_folder.parent / SHARED / hashlib.sha256(text.encode()).hexdigest()[:16]


def shared_stores(folder: Path) -> tuple[Path, ...]:
    """Return the files of stores that several runs share, of the database in this folder."""
    return tuple(sorted((folder / SHARED).glob(f"*/{STORES}")))


def stores_file(config: RunConfig, run_folder: Path) -> Path:
    """Return the file with the stores of all clients; see `stores_folder`."""
    return stores_folder(config, run_folder) / STORES


DEALS: Final = (
    *("shared_classes", "shared_ratio", "images_per_client", "classes_per_client"),
    *("fewest_classes", "minimum_test", "slices"),
)
"""Keys of a partition that are named where they say something."""


def _dealing(config: RunConfig) -> dict[str, Any]:
    """Return what deals out the data.

    Keys that say nothing are left out, as if they were not known.
    """
    section, held_out = config.task.partition, config.task.held_out_domain
    named = {"model", "held_out_domain", "partition", "root", "new_clients", "validation_share"}
    # How a folder is read, and what its classes are called, make nobody another client.
    data = config.task.model_dump(mode="json", exclude={*named, "layout", "class_names"})
    data["partition"] = {"kind": section.kind}
    if section.kind in KINDS_WITH["alpha"]:
        data["partition"] |= {"alpha": section.concentration, "minimum": section.fewest}
    for name in DEALS:
        if getattr(section, name) is not None:
            data["partition"][name] = getattr(section, name)
    # Validation images stay with the client who holds them, so they make it no other client.
    if config.task.senses is None:
        del data["senses"]
    if config.task.new_clients:
        data["new_clients"] = config.task.new_clients
    if held_out is not None:
        data["held_out_domain"] = held_out
    if config.evaluation.protocol == "base_to_novel":
        # It holds classes back, so clients of the same number hold other images.
        data["protocol"] = config.evaluation.protocol
    return data
