"""The environment of a run, for its records: device, versions and commit."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from platform.config import RunConfig
from platform.data.catalogue import dataset_info, user_path
from platform.errors import ConfigError

OWN = "sotto-fl"
"""This distribution, as pip knows it."""

RECORDED = (OWN, "torch", "open_clip_torch", "opacus", "numpy", "scipy", "dp-accounting")


def resolve_device(name: str) -> str:
    """Return the torch device of `auto`, `cpu` or `cuda`."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device: 'cuda' is not available on this machine; valid: auto, cpu")
    return "cuda" if name != "cpu" and available else "cpu"


def use_threads(count: int) -> None:
    """Give torch this many CPU threads.

    Prompts of small models are too little work for many threads, which mostly wait for each other.
    The order of a sum, and with it a result's last bits, depends on their number.
    """
    import torch

    torch.set_num_threads(count)


def environment(device: str) -> dict[str, str | None]:
    """Return device, versions and commit."""
    facts: dict[str, str | None] = {"device": device, "python": sys.version.split()[0]}
    facts.update({name: _version(name) for name in RECORDED})
    facts["commit"] = checkout_commit(Path(__file__).resolve().parents[2])
    return facts


def sotto_version() -> str:
    """Return the version of this program; empty in a checkout that nobody installed."""
    return _version(OWN) or ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def checkout_commit(root: Path) -> str | None:
    """Return the commit of a checkout; None for another folder."""
    if not (root / ".git").exists():
        return None
    command = ("git", "-C", str(root), "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return a configuration with absolute paths, which holds in any working folder."""
    task, public, secure = config.task, config.public_data, config.secure_aggregation
    if dataset_info(task.dataset, config.plugins).layout:
        paths: dict[str, str | None] = {"root": str(user_path(task.root).resolve())}
        if task.class_names is not None:
            names = user_path(task.class_names, "task.class_names")
            paths["class_names"] = str(names.resolve())
        task = task.model_copy(update=paths)
    if public is not None and public.root is not None:
        root = str(user_path(public.root, "public_data.root").resolve())
        public = public.model_copy(update={"root": root})
    if secure.enrolment is not None:
        enrolment = str(Path(secure.enrolment).resolve())
        secure = secure.model_copy(update={"enrolment": enrolment})
    changed = {"task": task, "public_data": public, "secure_aggregation": secure}
    return config.model_copy(update=changed)
