"""Where the cells of a sweep run beyond one machine, and what is asked for each of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from platform.errors import ConfigError

_WORD: Final = re.compile(r"[A-Za-z0-9_.,:|&@-]{1,200}")
_ADDRESS: Final = re.compile(r"(tcp|tls|ucx|ws|wss)://[A-Za-z0-9_.:\[\]-]{1,200}")


class Job(Protocol):
    """A command line that was handed over."""

    @property
    def name(self) -> str:
        """What people know it by there."""

    @property
    def errors(self) -> Path:
        """The file of what it says on its standard error."""

    def done(self) -> bool:
        """Return whether it has ended, however."""

    def cancel(self) -> None:
        """Ask for its end."""


class Jobs(Protocol):
    """An engine that takes command lines."""

    def submit(self, command: Sequence[str]) -> Job:
        """Hand one over."""


@dataclass(frozen=True)
class Cluster:
    """Where jobs go.

    Attributes:
        engine: `slurm` or `dask`; `local` starts processes here as the first would.
        settings: What each job asks for, or where the engine is.
    """

    engine: Literal["local", "slurm", "dask"]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _number(kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            found = kind(text)
            if 0 < found < math.inf:
                return found
        raise ValueError("a number above 0")

    return read


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("a word without spaces")
    return text


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("such as tcp://HOST:PORT or tls://HOST:PORT")
    return text


def _file(text: str) -> Path:
    if not (path := Path(text)).is_file():
        raise ValueError("a file that is there")
    return path.absolute()


_LIMIT: Final = {"timeout_min": _number(int)}
SETTINGS: Final[Mapping[str, Mapping[str, Callable[[str], Any]]]] = {
    "slurm": {
        **_LIMIT,
        **dict.fromkeys(("cpus_per_task", "gpus_per_node"), _number(int)),
        "mem_gb": _number(float),
        **dict.fromkeys(
            ("slurm_partition", "slurm_account", "slurm_qos", "slurm_constraint"), _word
        ),
    },
    "dask": {**_LIMIT, "scheduler": _address, "scheduler_file": _file},
}


def cluster_of(engine: str, settings: Sequence[str]) -> Cluster:
    """Return where jobs go, by the command line's texts.

    Raises:
        ConfigError: If one of them is not valid.
    """
    if engine not in SETTINGS:
        raise ConfigError(f"--on: {engine!r} is not valid; it must be {' or '.join(SETTINGS)}")
    found = dict(_setting(text, SETTINGS[engine]) for text in settings)
    if "timeout_min" not in found:
        # Whatever stood here instead would end jobs in their midst, or never start them.
        raise ConfigError(
            "--cluster: timeout_min is missing; valid is --cluster timeout_min=MINUTES, the most "
            "that one cell may take"
        )
    if engine == "dask" and len({"scheduler", "scheduler_file"} & set(found)) != 1:
        raise ConfigError(
            "--cluster: one of scheduler and scheduler_file must be given with --on dask, such as "
            "--cluster scheduler=tcp://HOST:8786"
        )
    return Cluster("dask" if engine == "dask" else "slurm", found)


def _setting(text: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if key not in known or not equals:
        raise ConfigError(
            f"--cluster: {text!r} is not valid; it must be KEY=VALUE, KEY one of {', '.join(known)}"
        )
    try:
        return key, known[key](value)
    except ValueError as error:
        raise ConfigError(f"--cluster: {text!r} is not valid; it must be {error}") from error
