"""Federations for tests: data holders with folders of their own, and a coordinator without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from platform.config import RunConfig, StorageConfig, parse_config
from platform.config.sections import FederationConfig
from platform.disk.opening import open_storage
from platform.experiment.federating import (
    Reaching,
    new_federation,
    reopened_federation,
    through_hub,
)
from platform.experiment.finishing import conduct
from platform.experiment.joining import host_of
from platform.experiment.planning import Surroundings, stored_config
from platform.holder.settings import load_holder
from platform.relay.hub import Told
from platform.rounds.observing import SilentObserver
from platform.wire.transport import InProcessTransport, Transport
from tests.trunk._hubs import relayed, served
from tests.trunk._runs import Finished, Storage

NAMES = ("east", "north", "south", "west")
SHAPES = ("circle", "square", "star")
OPEN = {
    "smallest_cohort": 2,
    "smallest_sum": 1,
    "mechanisms": ["none", "upload_noise", "distributed_noise", "dp_sgd"],
    "epsilon_total": None,
    "epsilon_per_run": None,
    "delta": 0.1,
}
"""Limits of a holder that takes part in nearly anything."""
BASE = """
name: fed
seed: 5
rounds: 2
device: cpu
federation: {clients: [east, north, south, west], classes: [circle, square, star]}
task: {dataset: held_by_clients, clients: 4}
method: {name: promptfl, context_tokens: 2}
training: {local_steps: 1, batch_size: 4, learning_rate: 0.05}
privacy: {mechanism: none}
secure_aggregation: {largest_weight: 64}
evaluation: {local_twins: false, worth_of_sharing: false}
"""


MASKED = (
    "privacy.mechanism=distributed_noise",
    "privacy.clipping_norm=0.1",
    "privacy.target_epsilon=8.0",
    "secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",
)


def write_images(folder: Path, seed: int, each: int = 2) -> None:
    """Write a holder's images, `train/CLASS/IMAGE` and `test/CLASS/IMAGE`."""
    rng = np.random.default_rng(seed)
    for part in ("train", "test"):
        for shape in SHAPES:
            place = folder / part / shape
            place.mkdir(parents=True)
            for number in range(each):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def write_holder(folder: Path, name: str, **more: Any) -> Path:
    """Write a holder's images and settings; returns the settings' path."""
    write_images(folder / name / "images", seed=len(name) + ord(name[0]))
    tree = {
        "name": name,
        "data": {"root": "images"},
        "storage": "store",
        "device": "cpu",
        "limits": OPEN,
        **more,
    }
    path = folder / name / "client.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def federation(folder: Path, *overrides: str) -> RunConfig:
    """The configuration of a small federation whose hub and database are in a folder."""
    places = (f"storage.url=sqlite:///{folder}/sotto.db", f"federation.socket={folder}/hub.sock")
    return parse_config(yaml.safe_load(BASE), [*overrides, *places])


@dataclass
class Holders:
    """The data holders of a federation, what they take from outside, and what each of them said."""

    folder: Path
    surroundings: Surroundings
    lines: dict[str, list[str]]

    @classmethod
    def written(cls, folder, names=NAMES, of=None):
        """Write all of them; `of` holds what single ones have otherwise."""
        for name in names:
            write_holder(folder, name, **(of or {}).get(name, {}))
        return cls(folder, Surroundings(), {name: [] for name in names})

    def handler(self, name: str) -> Callable[[bytes], bytes]:
        """What answers for a holder, as if its process had just been started."""
        settings = load_holder(self.folder / name / "client.yaml")
        return host_of(settings, self.surroundings, self.lines[name].append).handle

    def handlers(self) -> dict[str, Callable[[bytes], bytes]]:
        return {name: self.handler(name) for name in self.lines}


def noted(handlers, note):
    """The same handlers, behind somebody who reads every message to them."""

    def noting(name: str) -> Callable[[bytes], bytes]:
        def handle(message: bytes) -> bytes:
            note(message)
            return handlers[name](message)

        return handle

    return {name: noting(name) for name in handlers}


def within(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Reaching:
    @contextmanager
    def reaching(section: FederationConfig) -> Iterator[Transport]:
        yield InProcessTransport(handlers=handlers, losses=lambda *_: frozenset())

    return reaching


def over_sockets(handlers: Mapping[str, Callable[[bytes], bytes]], folder: Path) -> Reaching:
    """Reach holders through a hub, a relay, and a socket for each of them."""

    @contextmanager
    def reaching(section: FederationConfig) -> Iterator[Transport]:
        with ExitStack() as stack:
            sockets = stack.enter_context(served(handlers, folder))
            stack.enter_context(relayed(Path(section.socket), sockets))
            yield stack.enter_context(through_hub(section, Told()))

    return reaching


def hold(config: RunConfig, reaching: Reaching) -> dict[str, Any]:
    surroundings = Surroundings()
    with new_federation(config, SilentObserver(), surroundings, reaching=reaching) as conducted:
        return conduct(conducted, SilentObserver())


def last_state(folder: Path, run_id: str) -> dict[str, Any]:
    return Finished(Storage(folder), run_id, {}).state()


def go_on(run_id: str, url: str, reaching: Reaching) -> dict[str, Any]:
    surroundings = Surroundings()
    with open_storage(url) as database:
        config = stored_config(database, run_id, surroundings)
    # It may have moved since the run started.
    config = config.model_copy(update={"storage": StorageConfig(url=url)})
    observer = SilentObserver()
    with reopened_federation(
        run_id, config, observer, surroundings, reaching=reaching
    ) as conducted:
        return conduct(conducted, observer)
