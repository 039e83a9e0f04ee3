"""The cost of an exchange on each engine: messages to all clients, and all answers back.

Clients are processes that return what they receive, behind hub, engine and sockets as in a
federation. Writes `docs/results/federation.csv` and `.md`; keeps the rows of other engines.

    python benchmarks/relay_speed.py [--engine local | nvflare | flower] [--clients 2 5 10]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from _federation_page import EXCHANGES, kept_but, write_page, write_rows
from _sizes import sized
from federation import engine

from platform.holder.serving import Serving
from platform.relay.hub import Hub

SIZES = (100, 65_536, 262_144)
REPEATS = sized(15, 1)
LONGEST = 120.0


def echo(name: str, path: Path) -> None:
    """A client that returns what it receives."""
    Serving(name=name, path=path, handler=lambda message: message).until(threading.Event())


def measure(name: str, clients: int) -> list[dict[str, str]]:
    """Seconds of exchanges with this number of clients, by size of a message."""
    spawn = multiprocessing.get_context("spawn")
    names = [f"site-{number}" for number in range(1, clients + 1)]
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sotto")))
        sockets = {each: folder / f"{each}.sock" for each in names}
        for each, path in sockets.items():
            process = spawn.Process(target=echo, args=(each, path), daemon=True)
            process.start()
            stack.callback(process.kill)
        hub = stack.enter_context(Hub(path=folder / "hub.sock", clients=names))
        stack.enter_context(engine(name)(folder / "hub.sock", sockets, folder / "engine"))
        hub.exchange("join", dict.fromkeys(names, b"hello"), LONGEST)
        for size in SIZES:
            took = [exchanged(hub, names, os.urandom(size)) for _ in range(REPEATS)]
            numbers = (statistics.median(took), max(took))
            values = (name, str(clients), str(size), *(f"{number:.4f}" for number in numbers))
            rows.append(dict(zip(EXCHANGES.fields, values, strict=True)))
            print(rows[-1], flush=True)
    return rows


def exchanged(hub: Hub, names: list[str], body: bytes) -> float:
    """Seconds of one exchange; checks that the answers equal the messages."""
    started = time.perf_counter()
    found = hub.exchange("train", dict.fromkeys(names, body), LONGEST)
    took = time.perf_counter() - started
    if any(found[name] != body for name in names):
        raise SystemExit("a client returned another message than it received")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("local", "nvflare", "flower"), default="local")
    parser.add_argument("--clients", type=int, nargs="+", default=sized([2, 5, 10], [2]))
    options = parser.parse_args()
    rows = kept_but(EXCHANGES, options.engine)
    for clients in options.clients:
        rows += measure(options.engine, clients)
    write_rows(EXCHANGES, rows)
    write_page()


if __name__ == "__main__":
    main()
