"""Federated runs: start one, go on with one, and read what came of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from methods import MethodError
from methods.plugins import InProgram
from platform.agreement import Agreed
from platform.config import RunConfig, load_config, parse_config
from platform.config.files import find_config, is_file, packaged_file, read_preset
from platform.config.loading import flat, read_whole
from platform.disk.files import write_bytes
from platform.disk.opening import open_existing
from platform.errors import PlatformError, renamed
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run, reopen_run
from platform.experiment.simulation import Simulation
from platform.results.charts import require_drawable
from platform.results.pictures import run_pictures, write_pictures
from platform.results.reading import agreed_run, numbers_of, resolve_run
from platform.rounds.observing import Observer
from privacy import PrivacyError
from sotto.data import Data, task_of
from sotto.errors import Error, invalid
from sotto.plans import Plan
from storage import StorageError

if TYPE_CHECKING:
    from pandas import DataFrame

OnRound = Callable[["Round"], None]


class Epsilon(NamedTuple):
    """Epsilon against each adversary, at the run's delta; infinite where nothing is proven.

    Attributes:
        server: Against the coordinator.
        peers: Against the other clients.
        observer: Against whoever has the final model only.
    """

    server: float
    peers: float
    observer: float


@dataclass(frozen=True)
class Round:
    """A committed round. It is a copy: nothing that is done to it changes the run.

    Attributes:
        number: From 1.
        of: Rounds of the run.
        accuracy: Mean over clients, a share in [0, 1]; None if it was not measured.
        epsilon: Spent until then.
        document: The round's part of `summary.json`.
    """

    number: int
    of: int
    accuracy: float | None
    epsilon: Epsilon
    document: Mapping[str, Any]


class Run:
    """A run in a database. Every number comes from records that were checked against each other.

    Attributes:
        id: The run's name.
        storage: URL of the database.
    """

    def __init__(self, id: str, storage: str, plugins: Sequence[InProgram] = ()) -> None:
        """Find a run by its name or `latest`; `Error` if there is none.

        `plugins` has the run's mechanism, if it is one of the program.
        """
        with refusing():
            self.id, self.storage = resolve_run(id, storage), storage
        self._sources = surroundings_of(plugins).sources

    def __repr__(self) -> str:
        """Show the run with its two numbers."""
        shown = "not measured" if self.accuracy is None else f"{self.accuracy:.3f}"
        return f"<sotto.Run {self.id}: accuracy {shown}, {self.epsilon}>"

    @cached_property
    def _agreed(self) -> Agreed:
        with refusing():
            return agreed_run(self.id, self.storage, self._sources)

    @property
    def config(self) -> dict[str, Any]:
        """The effective configuration, as plain data."""
        tree: dict[str, Any] = self._agreed.config.model_dump(mode="json")
        return tree

    @property
    def summary(self) -> dict[str, Any]:
        """All of `summary.json`; `Error` before the run has finished."""
        found = self._agreed.summary
        if found is None:
            raise Error(f"run {self.id} has not finished; `sotto.resume` goes on with it")
        return deepcopy(dict(found))

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self._agreed.summary is not None

    @property
    def accuracy(self) -> float | None:
        """The protocol's one number, a share in [0, 1]; None if it was not measured."""
        return numbers_of(self._agreed).headline()

    @property
    def epsilon(self) -> Epsilon:
        """Spent by the worst client, at `delta`."""
        documents = numbers_of(self._agreed).rounds
        if self.finished:
            return _epsilon(self.summary["final"])
        return _epsilon(documents[-1]) if documents else Epsilon(0.0, 0.0, 0.0)

    @property
    def delta(self) -> float:
        """The delta of all epsilons."""
        return self._agreed.config.privacy.target_delta

    @property
    def unit(self) -> str | None:
        """Whom epsilon is about, `client` or `record`; None where nothing is claimed."""
        return self._agreed.config.mechanism.facts.unit

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers must know."""
        return list(self.summary["warnings"])

    @property
    def rounds(self) -> DataFrame | list[dict[str, Any]]:
        """One row a round: a pandas frame where pandas is installed, else a list."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            return [dict(deepcopy(one)) for one in numbers_of(self._agreed).rounds]
        from platform.results import results

        with refusing():
            return results(self.storage, runs=self.id, per="round")

    def report(self, path: str | Path) -> Path:
        """Write the privacy budget report: `.html`, `.pdf` or `.json`; return the file.

        Raises:
            Error: The ending is another, the file exists, or a library for PDF is missing.
        """
        from platform.results.report.document import report_of
        from platform.results.report.rendering import ENCODERS, load_weasyprint

        target = Path(path)
        form = target.suffix.removeprefix(".")
        if form not in ENCODERS:
            raise invalid("path", str(target), f"a file that ends in .{', .'.join(ENCODERS)}")
        if target.exists():
            raise invalid("path", str(target), "a file that does not exist yet")
        if form == "pdf":
            try:
                load_weasyprint()
            except (ImportError, OSError):
                valid = ".html, .json, or .pdf where WeasyPrint and Pango are installed"
                raise invalid("path", str(target), valid) from None
        with refusing(), closing(open_existing(self.storage)) as database:
            report = report_of(database, [self.id], sources=self._sources)
            write_bytes(target, ENCODERS[form](report))
        return target

    def plot(self, path: str | Path, kind: str = "curves") -> Path:
        """Draw the run into a `.svg`, `.png` or `.pdf`; return the file.

        Args:
            path: The file, which is written anew.
            kind: `curves` (accuracy and epsilon over rounds), `tradeoff`, `clients` or `experts`.

        Raises:
            Error: The ending or the kind is another, or there is nothing of that kind to draw.
        """
        target = Path(path)
        with refusing():
            pictures = run_pictures(numbers_of(self._agreed))
            if kind not in pictures:
                raise invalid("kind", kind, ", ".join(pictures))
            if not pictures[kind]:
                raise invalid("kind", kind, ", ".join(k for k, found in pictures.items() if found))
            require_drawable(target)
            write_pictures([(pictures[kind][0], target)])
        return target


def run(
    config: str | Path | Mapping[str, Any] | InProgram,
    *,
    data: Data | str | Path | None = None,
    model: Mapping[str, Any] | None = None,
    privacy: Plan | Mapping[str, Any] | None = None,
    storage: str | None = None,
    plugins: Sequence[InProgram] = (),
    on_round: OnRound | None = None,
    progress: bool = True,
    **overrides: Any,
) -> Run:
    """Run a configuration to its end, with all clients in this process.

    Ctrl-C leaves a run that `resume` goes on with.

    Args:
        config: The name of a packaged configuration or of a method, a YAML file, or all keys as a
            dictionary. A method's name stands for the configuration `quickstart`, or `own-data`
            where data are given, with that method; so does a method of the program, such as
            `averaged` makes.
        data: One's own images, or their folder.
        model: The frozen model, from `clip`.
        privacy: A plan, whose rounds, mechanism and noise the run has; or the section `privacy`.
            None leaves the configuration's own.
        storage: URL of the database, `sqlite:///runs/sotto.db` by default.
        plugins: Data sets, models, mechanisms and methods of the program, from `plugin`.
        on_round: Is called with each round after it was committed. What it does changes nothing of
            the run; an error in it interrupts the run.
        progress: Whether to show a bar on a terminal.
        **overrides: Keys that replace those of the configuration; a section as a dictionary
            replaces the keys that it has, and `**{"privacy.noise_multiplier": 2.0}` is one key.

    Raises:
        Error: The configuration is not valid, or the run cannot go on.
        KeyboardInterrupt: After Ctrl-C.
    """
    with refusing({} if data is None else {"task.root": "data"}):
        parts = task_of(data, model)
        if isinstance(privacy, Plan):
            parts |= (planned := privacy.overrides())
            for key, value in flat(overrides):
                # Noise is relative to the norm, so another norm costs the same.
                if planned.get(key, value) != value and not key.endswith("clipping_norm"):
                    raise invalid(key, value, f"{planned[key]!r}, as the plan has")
        elif privacy is not None:
            parts["privacy"] = privacy
        base = "quickstart" if data is None else "own-data"
        if isinstance(config, InProgram):
            plugins = (*plugins, config)
            if model is None:
                parts = {"task.model": None, **parts}
            config = config.name
        surroundings = surroundings_of(plugins)
        changes = {**parts, **overrides}
        loaded = configured(config, base, changes, storage=storage, surroundings=surroundings)
        if loaded.federation is not None:
            raise invalid(
                "federation", "given", "a configuration without it; `sotto run` waits for clients"
            )
        return _executed(
            lambda observer: create_run(loaded, observer, surroundings), on_round, progress, plugins
        )


def resume(
    id: str = "latest",
    *,
    storage: str = "sqlite:///runs/sotto.db",
    plugins: Sequence[InProgram] = (),
    on_round: OnRound | None = None,
    progress: bool = True,
) -> Run:
    """Go on with an interrupted run; a run that has finished is returned as it is.

    Args:
        id: The run's name, or `latest`.
        storage: URL of its database.
        plugins: What of the program the run was started with, its method too.
        on_round: See `run`.
        progress: See `run`.

    Raises:
        Error: There is no such run, or it cannot go on.
    """
    found = Run(id, storage, plugins)
    if found.finished:
        return found
    with refusing():
        return _executed(
            lambda observer: reopen_run(found.id, storage, observer, surroundings_of(plugins)),
            on_round,
            progress,
            plugins,
        )


def surroundings_of(plugins: Sequence[InProgram]) -> Surroundings:
    """Return the surroundings of a run with plug-ins of the program."""
    return Surroundings.with_plugins(None, objects=tuple(plugins))


def configured(
    config: str | Path | Mapping[str, Any],
    base: str,
    overrides: Mapping[str, Any],
    *,
    storage: str | None,
    surroundings: Surroundings,
) -> RunConfig:
    """Return a checked configuration, of a method's name that of `base` with the method.

    Raises:
        ConfigError: If it is not valid.
    """
    changes = [*flat(overrides)]
    if storage is not None:
        changes.append(("storage.url", storage))
    texts = [f"{key}={json.dumps(value)}" for key, value in changes]
    if isinstance(config, Mapping):
        return parse_config(dict(config), texts, surroundings.sources)
    path, sources = Path(config), surroundings.sources
    if is_file(path) or packaged_file(path, sources) is not None:
        return load_config(path, texts, sources)
    if str(config) not in (methods := surroundings.registry.available()):
        # Names all packaged configurations.
        find_config(path, sources, methods)
    tree, _ = read_whole(find_config(Path(base), sources), sources)
    return parse_config({**tree, "method": read_preset(config, sources)}, texts, sources)


def _executed(
    set_up: Callable[[Observer], Simulation],
    on_round: OnRound | None,
    progress: bool,
    plugins: Sequence[InProgram],
) -> Run:
    with _Watcher(on_round, progress) as observer:
        simulation = set_up(observer)
        with simulation.database:
            execute(simulation, observer)
            return Run(simulation.run.run_id, simulation.run.terms.config.storage.url, plugins)


class Bar:
    """A bar on stderr with the time that is left; it shows nothing but on a terminal."""

    def __init__(self, shown: bool, what: str) -> None:
        """Name what it counts."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> Self:
        """Show it."""
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Remove it."""
        self._bar.stop()


class _Watcher(Bar, Observer):
    """Shows a bar, warns as Python warns, and tells a caller's function about each round."""

    def __init__(self, on_round: OnRound | None, progress: bool) -> None:
        super().__init__(progress, "setting up")
        self._on_round, self._rounds = on_round, 0

    def warned(self, sentences: Sequence[str]) -> None:
        """Warn about each."""
        for sentence in sentences:
            warnings.warn(sentence, UserWarning, stacklevel=2)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, description=what, completed=done, total=total)

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Show the rounds."""
        self._rounds = rounds
        self._bar.update(self._task, description=run_id, completed=resumed_after, total=rounds)

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Move the bar, and tell the caller's function."""
        told = deepcopy(dict(document))
        found = Round(
            int(told["round"]), self._rounds, told["accuracy"]["mean"], _epsilon(told), told
        )
        shown = "" if found.accuracy is None else f", accuracy {100 * found.accuracy:.1f}%"
        self._bar.update(
            self._task,
            description=f"round {found.number} of {self._rounds}{shown}",
            completed=found.number,
        )
        if self._on_round is not None:
            self._on_round(found)


def _epsilon(document: Mapping[str, Any]) -> Epsilon:
    found = document["epsilon"]
    # JSON has no infinity, so documents say "inf".
    return Epsilon(*(float(found[name]) for name in Epsilon._fields))


@contextmanager
def refusing(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn refusals of the packages into `Error`; `names` has the caller's names of fields."""
    try:
        yield
    except (PlatformError, PrivacyError, StorageError, MethodError) as error:
        # The packages' own trace tells a caller nothing that the sentence does not.
        raise Error(renamed(str(error), names or {})) from None
