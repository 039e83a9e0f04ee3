"""The cost of a whole private round on each engine besides training, wait by wait.

Clients are processes with their own stores, keys and sockets, as `python -m platform.client` starts
them. The coordinator is a process with its database. Only the method does not train. Rounds are
masked against an active adversary. A wait lasts from the first sent message of a stage to the last
received answer. The rest of a round is the coordinator's own work: its ledger, its commits and the
sum. The median is over all rounds but the first, which has one more wait.

Writes `docs/results/federation-rounds.csv` and the page. Keeps the rows of other engines, so one
call can measure one engine.

    python benchmarks/round_over_engines.py [--engine NAME] [--clients 10] [--rounds 31]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _federation_page import ROUNDS, kept_but, write_page, write_rows
from _sizes import sized
from federation import engine
from PIL import Image

from methods import Registry
from platform.config import RunConfig, parse_config
from platform.experiment.federating import new_federation, through_hub
from platform.experiment.finishing import conduct
from platform.experiment.joining import serve_holder
from platform.experiment.planning import Surroundings
from platform.holder.settings import load_holder
from platform.parties.identities import create_key
from platform.relay.hub import Told
from platform.rounds.observing import SilentObserver
from platform.wire.codec import peek
from platform.wire.messages import ROUND_STAGES
from platform.wire.transport import Transport
from privacy.secure_aggregation import Enrolment

VALUES = sized(65_536, 64)
CLASSES = ("circle", "square")
ENGINES = ("local", "nvflare", "flower")
OWN, ALL = "coordinator", "round"
"""The rest of a round without its waits, and the whole round."""
CONFIG = """
name: round
seed: 1
rounds: 6
federation: {clients: [], classes: [circle, square], joining_seconds: 300.0, phase_seconds: 300.0,
  training_seconds: 300.0}
task: {dataset: held_by_clients, clients: 0, model: null}
method: {name: vector, values: 65536}
training: {local_steps: 1, batch_size: 4, learning_rate: 0.1}
privacy: {mechanism: upload_noise, clipping_norm: 1.0, noise_multiplier: 100.0}
secure_aggregation: {enabled: true, adversary: active, corrupt: 1}
evaluation: {local_twins: false, worth_of_sharing: false}
"""


@dataclass
class Timed:
    """Carries messages and notes how long each stage waits.

    Attributes:
        inner: The transport that carries them.
        waits: By round, the seconds of each stage.
    """

    inner: Transport
    waits: dict[int, dict[str, float]] = field(default_factory=dict)

    def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: float | None) -> Any:
        """Carry one stage's messages."""
        if stage not in ROUND_STAGES:
            return self.inner.exchange(stage, messages, deadline)
        number = peek(next(iter(messages.values())))[1].round_number
        started = time.perf_counter()
        replies = self.inner.exchange(stage, messages, deadline)
        self.waits.setdefault(number, {})[stage] = time.perf_counter() - started
        return replies


class Rounds(SilentObserver):
    """Notes the time of each round, from its opening to its commit, and checks for lost clients."""

    def __init__(self) -> None:
        """Start with an empty list."""
        self.seconds: dict[int, float] = {}

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Keep a round's seconds."""
        if document["dropped"]:
            raise SystemExit(f"round {document['round']}: {document['dropped']} clients were lost")
        self.seconds[document["round"]] = document["seconds"]


def surroundings() -> Surroundings:
    """The surroundings of both sides: the method that does not train."""
    return Surroundings(registry=Registry("_overhead_methods"))


def serve(settings: Path) -> None:
    """One client's process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    holder = load_holder(settings)
    # The holder's settings allow only methods of the package.
    limits = holder.limits.model_copy(update={"methods": ("vector",)})
    holder = holder.model_copy(update={"limits": limits})
    serve_holder(holder, surroundings(), print, threading.Event())


def write_clients(folder: Path, names: list[str]) -> Path:
    """Write each client's images, key and settings; return the path of the enrolment of all."""
    enrolment, place = Enrolment(), folder / "enrolment.json"
    for name in names:
        places = product(("train", "test"), CLASSES)
        for shade, (part, label) in enumerate(places):
            images = folder / name / "images" / part / label
            images.mkdir(parents=True)
            for number in range(2):
                picture = Image.fromarray(np.full((16, 16, 3), 40 * shade + number, np.uint8))
                picture.save(images / f"{number}.png")
        enrolment = enrolment.enrol(name, create_key(folder / name / "own.key").public)
        tree = {
            "name": name,
            "data": {"root": "images"},
            "storage": "store",
            "identity": "own.key",
            "enrolment": str(place),
            "device": "cpu",
            "limits": {"epsilon_total": None, "epsilon_per_run": None},
        }
        (folder / name / "client.yaml").write_text(yaml.safe_dump(tree))
    place.write_bytes(enrolment.encode())
    return place


def config_of(folder: Path, names: list[str], rounds: int) -> RunConfig:
    """The run's configuration."""
    tree = yaml.safe_load(CONFIG)
    tree["federation"]["clients"] = names
    tree["federation"]["socket"] = str(folder / "hub.sock")
    tree["task"]["clients"] = len(names)
    tree["rounds"] = rounds
    tree["method"]["values"] = VALUES
    tree["storage"] = {"url": f"sqlite:///{folder}/coordinator/sotto.db"}
    tree["secure_aggregation"]["enrolment"] = str(folder / "enrolment.json")
    return parse_config(tree, [])


def hold(name: str, clients: int, rounds: int) -> tuple[Timed, Rounds]:
    """Hold one federation from the start; return the waits and times of its rounds."""
    # Fork each client from one process that has loaded everything and runs no thread.
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["platform.experiment.joining", "torch", "open_clip"])
    names = [f"site-{number}" for number in range(1, clients + 1)]
    observer, found = Rounds(), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sotto"))).resolve()
        write_clients(folder, names)
        config, sockets = config_of(folder, names, rounds), {}
        for each in names:
            process = forks.Process(
                target=serve, args=(folder / each / "client.yaml",), daemon=True
            )
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            sockets[each] = folder / each / "store" / "client.sock"

        @contextmanager
        def reaching(section: Any) -> Iterator[Transport]:
            with through_hub(section, Told()) as transport:
                found.append(Timed(transport))
                with engine(name)(folder / "hub.sock", sockets, folder / "engine"):
                    yield found[0]

        setting = new_federation(config, observer, surroundings(), reaching=reaching)
        conduct(stack.enter_context(setting), observer)
    return found[0], observer


def measured(name: str, clients: int, rounds: int) -> list[dict[str, str]]:
    """Rows of one engine: each wait, the coordinator's own work, and the whole round."""
    timed, observer = hold(name, clients, rounds)
    later = range(2, rounds + 1)
    took = {
        stage: [timed.waits[number][stage] for number in later if stage in timed.waits[number]]
        for stage in ROUND_STAGES
    }
    took[OWN] = [observer.seconds[n] - sum(timed.waits[n].values()) for n in later]
    took[ALL] = [observer.seconds[n] for n in later]
    rows = [row(name, clients, part, seconds) for part, seconds in took.items() if seconds]
    first = [timed.waits[1]["advertise"]]
    return [row(name, clients, "advertise (first round)", first), *rows]


def row(name: str, clients: int, part: str, seconds: list[float]) -> dict[str, str]:
    """One row of the table."""
    middle, slowest = statistics.median(seconds), max(seconds)
    return {
        "engine": name,
        "clients": str(clients),
        "part": part,
        "median": f"{middle:.4f}",
        "slowest": f"{slowest:.4f}",
        "rounds": str(len(seconds)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="local")
    parser.add_argument("--clients", type=int, default=sized(10, 5))
    parser.add_argument(
        "--rounds", type=int, default=sized(31, 2), help="rounds; the first does not count"
    )
    options = parser.parse_args()
    if options.rounds < 2:
        raise SystemExit("--rounds: valid are 2 or more")
    os.environ["OMP_NUM_THREADS"] = "1"
    found = measured(options.engine, options.clients, options.rounds)
    for each in found:
        print(each, flush=True)
    write_rows(ROUNDS, [*kept_but(ROUNDS, options.engine), *found])
    write_page()


if __name__ == "__main__":
    main()
