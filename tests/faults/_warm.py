"""Loaded once, in the process that all others are forked from: what each would load for seconds."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import tempfile
from pathlib import Path

import methods
import platform
import privacy
import storage
from methods.clip import adapter
from platform.config import load_config
from platform.experiment.federating import plan_federation
from platform.experiment.planning import Surroundings
from tests.faults._federation import SETUPS, write_federation

ENGINES = ("platform.relay.nvflare", "platform.relay.flower")


def load_everything() -> None:
    """Imports all of our modules, and with them theirs."""
    for package in (methods, platform, privacy, storage):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(ENGINES) and "__main__" not in found.name:
                importlib.import_module(found.name)


def plan_each_setup() -> None:
    """Plans what will be run, without training: an engine of gradients must not be forked."""
    adapter._shipped = functools.cache(adapter._shipped)
    for setup in SETUPS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_federation(folder, setup, folder / "hub")
            config = load_config(folder / "run.yaml", [f"storage.url=sqlite:///{folder}/sotto.db"])
            plan_federation(config, Surroundings())


load_everything()
plan_each_setup()
