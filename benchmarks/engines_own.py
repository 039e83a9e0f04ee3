"""What a round of Flower's own aggregation costs beside ours: FedAvg and SecAgg+, no training.

SuperLink and SuperNodes as Flower ships them, in the environment that `make flower` makes, on this
machine without TLS; each client gives back a vector as it got it. Writes
`docs/results/federation-own.csv` and the page.

    python benchmarks/engines_own.py [--what fedavg | secagg+] [--clients 10] [--rounds 4]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _federation_page import OWN, kept_but, write_page, write_rows

PROGRAMS = Path(__file__).resolve().parents[1] / ".venv-flower" / "bin"
VALUES = 65_536
LONGEST = 1800.0
"""Seconds in which all rounds must be over."""
APP = """
[project]
name = "own"
version = "1.0.0"
description = "No training"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sotto"

[tool.flwr.app.components]
serverapp = "own:server"
clientapp = "own:client"

[tool.flwr.app.config]
what = "{what}"
clients = {clients}
rounds = {rounds}
out = "{out}"
"""
CODE = """
import time
from pathlib import Path

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

SECURE = "{what}" == "secagg+"


class Same(NumPyClient):
    def fit(self, parameters, config):
        return parameters, 1, {{}}


class Timed(FedAvg):
    def configure_fit(self, server_round, parameters, client_manager):
        self.started = time.perf_counter()
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        found = super().aggregate_fit(server_round, results, failures)
        took = time.perf_counter() - self.started
        with Path("{out}").open("a") as file:
            file.write(f"{{server_round}} {{took}} {{len(results)}}\\n")
        return found


client = ClientApp(
    client_fn=lambda context: Same().to_client(), mods=[secaggplus_mod] if SECURE else []
)
server = ServerApp()


@server.main()
def main(grid, context):
    many = {clients}
    strategy = Timed(
        fraction_evaluate=0.0,
        min_fit_clients=many,
        min_available_clients=many,
        initial_parameters=ndarrays_to_parameters([np.zeros({values}, np.float32)]),
    )
    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds={rounds}), strategy=strategy
    )
    secure = SecAggPlusWorkflow(num_shares=many, reconstruction_threshold=2 * many // 3 + 1)
    DefaultWorkflow(fit_workflow=secure if SECURE else None)(grid, legacy)
"""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def started(folder: Path, name: str, *words: str) -> Iterator[None]:
    """One of Flower's programs, as long as the context lasts, and all that it starts."""
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / f"home-{name}")}
    # They start programs of theirs by name.
    own["PATH"] = f"{PROGRAMS}:{os.environ['PATH']}"
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(PROGRAMS / words[0]), *words[1:]],
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def hold(folder: Path, what: str, clients: int, rounds: int) -> list[float]:
    """Each round's seconds."""
    out, port = folder / "rounds", free_port()
    values = {"what": what, "clients": clients, "rounds": rounds, "out": out, "values": VALUES}
    app = folder / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(APP.format(**values))
    (app / "own.py").write_text(CODE.format(**values))
    home = folder / "home-run"
    home.mkdir()
    there = f'[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "own"\n\n{there}')
    with contextlib.ExitStack() as stack:
        place = ("--insecure", "--host", "127.0.0.1", "--port", str(port))
        apart = "--disable-runtime-dependency-installation"
        stack.enter_context(started(folder, "superlink", "flower-superlink", *place, apart))
        time.sleep(10.0)
        for number in range(clients):
            words = ("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}")
            words += ("--port", str(free_port()))
            stack.enter_context(started(folder, f"node-{number}", *words))
        stack.enter_context(started(folder, "run", "flwr", "run", str(app), "own"))
        end = time.monotonic() + LONGEST
        while len(found := _read(out)) < rounds:
            if time.monotonic() > end:
                raise SystemExit(f"{len(found)} of {rounds} rounds in {LONGEST:g} s: {folder}")
            time.sleep(1.0)
    if any(clients != answered for _, answered in found):
        raise SystemExit("a client was lost")
    return [seconds for seconds, _ in found]


def _read(out: Path) -> list[tuple[float, int]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return [(float(took), int(answered)) for _, took, answered in map(str.split, lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=("fedavg", "secagg+"), default="secagg+")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4, help="the first of them is not counted")
    parser.add_argument("--folder", type=Path, help="where to work; default is one that is deleted")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        seconds = hold(Path(folder), options.what, options.clients, options.rounds)[1:]
    name = f"flower's {options.what}"
    row = {"engine": name, "clients": str(options.clients), "values": str(VALUES)}
    row |= {"median": f"{statistics.median(seconds):.4f}", "slowest": f"{max(seconds):.4f}"}
    row["rounds"] = str(len(seconds))
    print(row, flush=True)
    write_rows(OWN, [*kept_but(OWN, name), row])
    write_page()


if __name__ == "__main__":
    main()
