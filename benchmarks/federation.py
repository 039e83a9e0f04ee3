"""A federation of four data holders on one machine, over an engine, with a killed client.

Each holder is a process with its own folder of images, key and store; the coordinator is another.
An engine with TLS connects them, or a relay on this machine (`local`). The benchmark kills one
holder in the second round and starts it again afterwards. At the end the coordinator shows a table.

    python benchmarks/federation.py [--engine local | nvflare | flower] [--folder DIR]
    python benchmarks/federation.py --transport NAME --plugins DIR

With a transport of one's own, one relay sends to an address of each holder, where another listens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import yaml
from PIL import Image

from methods.plugins import Plugins
from platform.config import load_config
from platform.data.shapes import shapes_dataset
from platform.relay.transports import transport_named

CONFIG = "federation"
VICTIM = "west"
LATEST = 300.0
"""Seconds that any wait may take."""
Engine = Callable[[Path, Mapping[str, Path], Path], AbstractContextManager[None]]


def sotto(*arguments: str | Path) -> list[str]:
    """A command line of this installation."""
    return [sys.executable, "-m", *map(str, arguments)]


def write_holders(folder: Path, names: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Write each holder's images, key and settings, and the enrolment of all."""
    for number, name in enumerate(names):
        own = folder / name
        data = shapes_dataset(number + 1, 4, 4, domains=("real", "clipart"))
        for part, split in (("train", data.train), ("test", data.test)):
            for row, label in enumerate(split.labels):
                if data.classes[label] in classes:
                    place = own / "images" / part / data.classes[label]
                    place.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(split.images[row]).save(place / f"{row}.png")
        (own / "client.yaml").write_text(
            yaml.safe_dump(
                {
                    "name": name,
                    "data": {"root": "images"},
                    "storage": "store",
                    "identity": "own.key",
                    "enrolment": str(folder / "enrolment.json"),
                }
            )
        )
        key = subprocess.run(
            sotto("platform.client", "keys", "create", own / "own.key", "--json"),
            check=True,
            capture_output=True,
        )
        public = json.loads(key.stdout)["public"]
        subprocess.run(
            sotto(
                "platform.coordinator", "enrolment", "add", folder / "enrolment.json", name, public
            ),
            check=True,
            capture_output=True,
        )


@contextmanager
def local(hub: Path, sockets: Mapping[str, Path], folder: Path) -> Iterator[None]:
    """No engine: a relay on this machine."""
    named = [f"{name}={path}" for name, path in sockets.items()]
    relay = subprocess.Popen(sotto("platform.relay", hub, *named))
    try:
        yield
    finally:
        relay.terminate()
        relay.wait()


@contextmanager
def over_transport(
    hub: Path, sockets: Mapping[str, Path], folder: Path, *, name: str, plugins: Path
) -> Iterator[None]:
    """A transport of the user: two relays between the hub and each holder, on this machine."""
    given = ("--transport", name, "--plugins", plugins)
    places = transport_named(name, Plugins(plugins)).local_addresses(len(sockets))
    to = dict(zip(sockets, places, strict=True))
    lines = [sotto("platform.relay", sockets[n], "--serve", to[n], *given) for n in sockets]
    lines.append(sotto("platform.relay", hub, *(f"{n}={at}" for n, at in to.items()), *given))
    relays = [subprocess.Popen(line) for line in lines]
    try:
        yield
    finally:
        for relay in relays:
            relay.terminate()
            relay.wait()


def engine(name: str) -> Engine:
    """The engine with this name, with TLS on this machine."""
    if name == "local":
        return local
    # Each engine has its own environment, which holds no code that trains.
    python = Path(__file__).parents[1] / f".venv-{name}" / "bin" / "python"
    if name == "nvflare":
        from platform.relay.nvflare import nvflare_poc

        return partial(nvflare_poc, python=python)
    from platform.relay.flower import flower_on_localhost

    return partial(flower_on_localhost, python=python)


class Holders:
    """The holders' processes."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        """Start all processes."""
        self._folder = folder
        self.sockets = {name: folder / name / "store" / "client.sock" for name in names}
        self._running = {name: self._started(name) for name in names}

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                sotto("platform.client", self._folder / name / "client.yaml"),
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        """Kill a holder, like a power cut."""
        self._running[name].kill()
        self._running[name].wait()

    def start(self, name: str) -> None:
        """Start a holder again."""
        self._running[name] = self._started(name)

    def end(self) -> None:
        """Stop all holders, as an operator would."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait()


def follow(coordinator: subprocess.Popen[str], holders: Holders) -> dict[str, object]:
    """Kill a holder in the second round and start it again afterwards; return the run's summary."""
    rounds, killed = 0, False
    for line in coordinator.stdout or ():
        event = json.loads(line)
        if event["event"] == "round":
            rounds += 1
            print(f"round {event['round']}: {event['cohort']} invited, {event['dropped']} lost")
        if event["event"] == "waiting" and rounds == 1 and event["stage"] == "train" and not killed:
            killed = True
            holders.kill(VICTIM)
            print(f"killing {VICTIM}")
        if rounds == 2 and killed:
            killed = False
            holders.start(VICTIM)
            print(f"starting {VICTIM} again")
        if event["event"] == "summary":
            return dict(event)
    raise SystemExit(f"the coordinator ended with code {coordinator.wait()}")


def hold(folder: Path, name: str, connects: Engine) -> None:
    """Hold one federation, from empty folders to its report."""
    section = load_config(Path(CONFIG)).federation
    if section is None:
        raise SystemExit(f"{CONFIG} has no federation section")
    hub, storage = folder / "hub.sock", f"sqlite:///{folder}/coordinator/sotto.db"
    write_holders(folder, section.clients, section.classes)
    overrides = [
        f"federation.socket={hub}",
        "federation.phase_seconds=20.0",
        "federation.training_seconds=20.0",
        "secure_aggregation.adversary=active",
        f"secure_aggregation.enrolment={folder / 'enrolment.json'}",
    ]
    sets = [word for text in overrides for word in ("--set", text)]
    with ExitStack() as stack:
        holders = Holders(folder, section.clients)
        stack.callback(holders.end)
        started = time.perf_counter()
        coordinator = subprocess.Popen(
            sotto("platform.coordinator", "run", CONFIG, *sets, "--storage", storage, "--json"),
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(coordinator.wait)
        stack.callback(coordinator.terminate)
        stack.enter_context(connects(hub, holders.sockets, folder / "engine"))
        print(f"{name}: connected after {time.perf_counter() - started:.1f} s", flush=True)
        summary = follow(coordinator, holders)
    run_id = str(summary["run_id"])
    subprocess.run(
        sotto("platform.coordinator", "report", run_id, "--storage", storage), check=True
    )
    subprocess.run(sotto("platform.client", "budget", folder / VICTIM / "client.yaml"), check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("local", "nvflare", "flower"), default="local")
    parser.add_argument("--folder", type=Path, help="where to work; the default is deleted at exit")
    parser.add_argument("--transport", help="a plug-in of --plugins, in place of an engine")
    parser.add_argument("--plugins", type=Path, help="its folder")
    options = parser.parse_args()
    if (options.transport is None) is not (options.plugins is None):
        parser.error("--transport and --plugins go together")
    if options.transport is None:
        name, connects = options.engine, engine(options.engine)
    else:
        name, plugins = options.transport, options.plugins.resolve()
        connects = partial(over_transport, name=name, plugins=plugins)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sotto")))
        hold(folder.resolve(), name, connects)


if __name__ == "__main__":
    main()
