"""NVIDIA FLARE for tests: its interpreter, and a project that is started once for many tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from platform.config import RunConfig
from platform.config.sections import FederationConfig
from platform.experiment.federating import Reaching, through_hub
from platform.relay.hub import Hub, Told
from platform.relay.nvflare.development import nvflare_poc, processes_of
from platform.wire.transport import Transport
from tests.repository._source import ROOT
from tests.trunk._hubs import served

PYTHON = ROOT / ".venv-nvflare" / "bin" / "python"
MISSING = None if PYTHON.exists() else "NVIDIA FLARE is not installed: `make nvflare`"


@dataclass
class Flare:
    """A project that runs on this machine."""

    folder: Path
    names: tuple[str, ...]
    kits: Path = field(default=Path())

    @property
    def hub(self) -> Path:
        return self.folder / "hub.sock"

    @property
    def sockets(self) -> dict[str, Path]:
        return {name: self.folder / f"{name}.sock" for name in self.names}

    def kill(self, site: str, word: str) -> int:
        """Kill a site's processes whose command has this word; how many they were."""
        found = list(processes_of(self.kits / site, word))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    @contextmanager
    def reached(self, handlers: Mapping[str, Callable[[bytes], bytes]]) -> Iterator[Hub]:
        """A hub, and clients who answer at their sockets."""
        with served(handlers, self.folder):
            with Hub(path=self.hub, clients=self.names, told=Told()) as hub:
                yield hub

    def reaching(self, handlers: Mapping[str, Callable[[bytes], bytes]]) -> Reaching:
        """Reach data holders through FLARE."""

        @contextmanager
        def reach(section: FederationConfig) -> Iterator[Transport]:
            with served(handlers, self.folder), through_hub(section, Told()) as transport:
                yield transport

        return reach

    def at_its_hub(self, config: RunConfig) -> RunConfig:
        """A federation's configuration with the hub that FLARE connects to."""
        section = config.federation.model_copy(update={"socket": str(self.hub)})
        return config.model_copy(update={"federation": section})


@contextmanager
def running_flare(folder: Path, names: tuple[str, ...]) -> Iterator[Flare]:
    """Start a project; afterwards nothing of it is left."""
    flare = Flare(folder, names)
    place = folder / "flare"
    with nvflare_poc(flare.hub, flare.sockets, place, python=PYTHON) as flare.kits:
        yield flare
    assert list(processes_of(place)) == []


def in_flares_environment(program: str, *arguments: str, cwd: Path) -> str:
    """What a program prints there."""
    done = subprocess.run(
        [str(PYTHON), "-c", program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout
