"""Small runs for the tests of the trunk: one configuration that takes about a second.

Five clients on one domain of `shapes`, one of them lost in every round, so that four entries fill
the pool (2(K+1) with one expert) and experts are served from the second round on.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.optimize import brentq
from scipy.stats import norm
from typer.main import get_command

from methods import Registry
from platform.cli import client_app
from platform.cli.app import main
from platform.cli.ending import asks_for_json
from platform.config import RunConfig, parse_config
from platform.experiment.finishing import execute
from platform.experiment.planning import RunPlan, Surroundings, create_run, plan_run, reopen_run
from platform.experiment.simulation import Simulation
from platform.parties.identities import STORES
from platform.rounds.observing import Observer, SilentObserver
from platform.rounds.runner import RoundRunner
from platform.wire.codec import decode_arrays
from platform.wire.transport import InProcessTransport, Transport
from tests.trunk._schemas import makes_report, require_published_answer

SMALL = """
name: small
seed: 3
rounds: 3
device: cpu
task: {dataset: shapes, domains: [real], clients: 5, shots: 1, test_per_class: 6}
method: {name: pfedmoap, context_tokens: 2, experts: 1}
training: {local_steps: 1, batch_size: 4, learning_rate: 0.05}
cohort: {dropout_rate: 0.2}
privacy:
  mechanism: upload_noise
  clipping_norm: 1.0
  target_epsilon: 8.0
  noise_source: seeded
secure_aggregation: {enabled: true, threshold: 3}
evaluation: {worth_of_sharing: false, local_twins: false}
"""
LOST, ROUNDS = 1, 3
NONE = "privacy.mechanism=none"
TWINS = "evaluation.local_twins=true"
"""Half of a small run's time goes to twins, so a test that reads their numbers asks for them."""
OS = "privacy.noise_source=os"
ONCE = "cohort.retries=0"
"""Without retries the first aborted attempt stops the run."""
ADVERSARIES = ("server", "peers", "observer")
NO_POOL = ("method.name=promptfl", "method.context_tokens=2")
"""A method without a pool and without personal state."""
FIXED = ("privacy.target_epsilon=null", "privacy.noise_multiplier=4.0")
RECORDS = (
    "privacy.mechanism=dp_sgd",
    "privacy.clipping_norm=null",
    "privacy.per_sample_clipping_norm=0.5",
    "privacy.sampling_probability=0.5",
    *FIXED,
)
EVERY_RECORD = (*RECORDS, "privacy.sampling_probability=1.0")
"""The same with every record in every step, which accountants price in no time."""
GATHERING = "method={name: gathering}"
"""A method whose pool is made once, known at `Storage.gathering` only."""
ADAPTIVE = ("privacy.adaptive_clipping={quantile: 0.5, learning_rate: 0.3, flag_ratio: 0.2}",)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
"""A case of a parametrised test that runs with the slow tests only."""


@dataclass(frozen=True)
class Storage:
    """A folder with a database, in which run folders lie, and what runs take from outside."""

    folder: Path
    surroundings: Surroundings = field(default_factory=Surroundings)

    @property
    def file(self) -> Path:
        return self.folder / "sotto.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def config(self, *overrides: str) -> RunConfig:
        """The small configuration with overrides, stored here."""
        return parse_config(yaml.safe_load(SMALL), (*overrides, f"storage.url={self.url}"))

    def create(self, *overrides: str, observer: Observer | None = None) -> Simulation:
        config, watching = self.config(*overrides), observer or SilentObserver()
        return create_run(config, watching, self.surroundings)

    def plan(self, *overrides: str) -> RunPlan:
        return plan_run(self.config(*overrides), SilentObserver(), self.surroundings)

    def run(self, *overrides: str) -> Finished:
        return self.finish(self.create(*overrides))

    def reopen(self, run_id: str) -> Simulation:
        return reopen_run(run_id, self.url, SilentObserver(), self.surroundings)

    def resume(self, run_id: str) -> Finished:
        return self.finish(self.reopen(run_id))

    def finish(self, simulation: Simulation) -> Finished:
        """Executes a simulation and closes its database, however it ends."""
        with opened(simulation):
            return Finished(self, simulation.run_id, execute(simulation, SilentObserver()))

    def only_run(self) -> str:
        ((run_id,),) = self.rows("SELECT run_id FROM runs")
        return str(run_id)

    def gathering(self) -> Storage:
        """The same place for runs with the method of `GATHERING`."""
        return replace(self, surroundings=Surroundings(registry=Registry("tests.trunk.gatherers")))

    def copied(self, folder: Path) -> Storage:
        """A copy in another folder, which a test may damage."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return replace(self, folder=folder)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query gives, past our own code."""
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query, values).fetchall()


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    return [one["text"] for one in summary["warnings"]]


@dataclass(frozen=True)
class Finished:
    """A run that is over, as it lies on the disk."""

    storage: Storage
    run_id: str
    summary: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.storage.folder / self.run_id

    @property
    def head(self) -> str:
        head = self.summary["audit_head"]
        return f"{head['count']}:{head['hash']}"

    @property
    def noise_multiplier(self) -> float:
        effective = yaml.safe_load((self.folder / "effective.yaml").read_text())
        return float(effective["noise_multiplier"])

    def identities(self) -> dict[str, tuple[str, bytes]]:
        """Each client's pseudonym and handle secret, read from its own store."""
        found = of_clients(self.folder, "SELECT client, pseudonym, handle_secret FROM identity")
        return {client: row for client, (row,) in found.items()}

    def state(self) -> dict[str, Any]:
        query = "SELECT blob FROM states WHERE run_id = ? ORDER BY round_number DESC LIMIT 1"
        ((blob,),) = self.storage.rows(query, self.run_id)
        return decode_arrays(blob)

    def personal_parts(self) -> dict[str, tuple[bytes, bytes]]:
        """Each client's last committed personal arrays and experts, as bytes."""
        query = "SELECT client, personal, experts FROM personal WHERE slot = 'committed'"
        return {client: row for client, (row,) in of_clients(self.folder, query).items()}

    def survivors(self) -> dict[int, list[str]]:
        """Names of the survivors of every committed round."""
        documents = self.storage.rows(
            "SELECT round_number, document FROM rounds WHERE run_id = ?", self.run_id
        )
        return {number: json.loads(text)["survivors"] for number, text in documents}


def stores_of(folder: Path) -> Path:
    """The file of the clients' stores, in a run's folder."""
    return folder / "clients" / STORES


def of_clients(folder: Path, query: str, *values: Any) -> dict[str, list[Any]]:
    """What a query gives, past our own code, by the client that it names first in each row."""
    found: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(stores_of(folder))) as connection:
        for client, *row in connection.execute(f"{query} ORDER BY client", values):
            found.setdefault(client, []).append(tuple(row))
    return found


@contextmanager
def opened(simulation: Simulation) -> Iterator[Simulation]:
    try:
        yield simulation
    finally:
        simulation.database.close()


def over(simulation: Simulation, transport: Transport) -> Simulation:
    """The same run, its messages carried by another transport."""
    return replace(simulation, run=replace(simulation.run, transport=transport))


def runner_of(simulation: Simulation) -> RoundRunner:
    return RoundRunner(simulation.run.transport)


class Crash(BaseException):
    """Ends a run at a chosen call, as a crash of the process would."""


def crash_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int, *, after: bool = False
) -> None:
    """Lets the nth call of a function end the run, before it works or after."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1, 1_000_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == nth
        if last and not after:
            raise Crash
        result = original(*args, **kwargs)
        if last:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, wrapped)


def crashed(
    monkeypatch: pytest.MonkeyPatch,
    simulation: Simulation,
    owner: Any,
    name: str,
    nth: int,
    *,
    after: bool = False,
) -> str:
    """Executes a run until a chosen call ends it; the run's id."""
    with monkeypatch.context() as patch, opened(simulation), pytest.raises(Crash):
        crash_at(patch, owner, name, nth, after=after)
        execute(simulation, SilentObserver())
    return simulation.run_id


Losses = Callable[[int, int, Collection[str]], frozenset[str]]


def losing(simulation: Simulation, losses: Losses, lost_at: str | None = None) -> Simulation:
    """The same run, other clients lost in it: by round, attempt and cohort."""
    transport = simulation.run.transport
    assert isinstance(transport, InProcessTransport)
    stage = transport.lost_at if lost_at is None else lost_at
    return over(simulation, replace(transport, losses=losses, lost_at=stage))


def comparable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without what differs between two runs of one configuration."""
    kept = {k: v for k, v in summary.items() if k not in ("run_id", "audit_head")}
    kept["rounds"] = [{k: v for k, v in r.items() if k != "seconds"} for r in kept["rounds"]]
    kept["final"] = {k: v for k, v in kept["final"].items() if k != "seconds"}
    return kept


def gaussian_epsilon(noise_multiplier: float, releases: int, delta: float = 1e-5) -> float:
    """Epsilon of Gaussian releases under replace-one, by the exact formula (privacy.md, 5)."""
    mu = math.sqrt(releases) * 2.0 / noise_multiplier

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return float(norm.cdf(-epsilon / mu + mu / 2) - second - delta)

    return float(brentq(excess, 0.0, 400.0, xtol=1e-12))


def interrupted_run(run_id: str, storage: Storage) -> str:
    """What is said of a run that a signal ended."""
    return (
        f"run {run_id} is interrupted; go on with: python -m platform.coordinator run "
        f"--resume {run_id} --storage {storage.url}"
    )


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]

built = functools.cache(get_command)
"""A program's commands, built once: that takes as long as most commands themselves."""


def command_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[], None] = main,
) -> Command:
    """The command line in this process: the same `main` that `python -m` calls."""
    monkeypatch.setattr(sys.modules[main.__module__], "get_command", built)

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["sotto", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        answer = Answer(
            code if isinstance(code, int) else int(code is not None), *capsys.readouterr()
        )
        prints_json = asks_for_json(arguments) or makes_report(arguments)
        if prints_json and "--help" not in arguments:
            program = "client" if main.__module__ == client_app.__name__ else "coordinator"
            require_published_answer(program, arguments, **dataclasses.asdict(answer))
        return answer

    return call
