"""Studies: methods by epsilon by seeds, with the table and the figure that papers show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform.config import StorageConfig
from platform.config.loading import flat
from platform.config.rules import OWNED
from platform.experiment.planning import Surroundings
from platform.results.numbers import HEADLINES, number
from platform.results.sweeping.grid import Cell, build_grid
from platform.results.sweeping.running import Outcome, SweepObserver
from platform.results.sweeping.study import carry_out, require_runnable, study_request
from platform.results.sweeping.submitting import cluster_of
from platform.results.sweeping.writing import Results, document
from sotto.data import Data, task_of
from sotto.errors import Error
from sotto.runs import Bar, refusing

if TYPE_CHECKING:
    from pandas import DataFrame


class Study:
    """A grid of runs: each method at each epsilon with each seed, on one configuration.

    Keys that the mechanism of an epsilon needs are filled in, and named in `filled`. So are, for
    other methods than the configuration's, the options that it sets; more experts than there are
    clients become as many as there are. The unit, the relation, delta, the adversary and the source
    of the noise are never changed. A method that sends nothing runs once, for all epsilons.

    Attributes:
        cells: The runs, each in words.
        filled: What was filled in, as `key=value`.
        output: The folder of the results.
    """

    def __init__(
        self,
        methods: str | Sequence[str],
        *,
        epsilon: float | Sequence[float | None] | None = None,
        seeds: int | Sequence[int] = 3,
        data: Data | str | Path | None = None,
        config: str | Path | None = None,
        mechanism: str | None = None,
        model: Mapping[str, Any] | None = None,
        output: str | Path | None = None,
        storage: str | None = None,
        settings: Sequence[str] = (),
        method_settings: Sequence[str] = (),
        plugins: Path | None = None,
        **overrides: Any,
    ) -> None:
        """Check the configuration of every run; all that is wrong is in one `Error`.

        `run` checks the images and the budget, which takes longer, before the first run starts.

        Args:
            methods: Names of methods.
            epsilon: Targets of whole runs; None is without noise.
            seeds: The seeds, or their number.
            data: One's own images, or their folder.
            config: A packaged configuration or a file; `own-data` with data, else `quickstart`.
            mechanism: The mechanism of the noise; None takes the configuration's, or
                `distributed_noise` if it has none.
            model: The frozen model, from `clip`.
            output: The folder of the results; None for one below `studies`.
            storage: URL of the database, `sqlite:///runs/sotto.db` by default.
            settings: `key=value`; several values between commas make a further axis.
            method_settings: `method:key=value`, for one method only.
            plugins: A folder with plug-ins.
            **overrides: Keys for all runs, as `run` takes them.

        Raises:
            Error: The configuration of a run is not valid.
        """
        # A setting goes before what a folder's layout says.
        said = {text.partition("=")[0] for text in settings} - {"task.root"}
        found = {key: value for key, value in task_of(data, None).items() if key not in said}
        given = {**found, **(model or {}), **overrides}
        changes = [f"{key}={json.dumps(value)}" for key, value in flat(given)]
        self._names = {"--method": "methods", "--seed": "seeds", "CONFIG": "config"}
        self._names["method.name"] = "methods"
        self._names |= {} if data is None else {"task.root": "data"}
        with refusing(self._names):
            self._surroundings = Surroundings.with_plugins(plugins)
            request, filled = study_request(
                str(config or ("quickstart" if data is None else "own-data")),
                {
                    "methods": (methods,) if isinstance(methods, str) else tuple(methods),
                    "seeds": seeds,
                    "settings": (*changes, *settings),
                    "method_settings": tuple(method_settings),
                    "folder": plugins,
                    "storage": storage or StorageConfig().url,
                },
                epsilon if isinstance(epsilon, Sequence) else (epsilon,),
                mechanism=mechanism,
                sources=self._surroundings.sources,
            )
            self.grid = build_grid(request, self._surroundings.sources)
        longer = (f"{text} for {cell.method}" for cell in self.grid.cells for text in cell.filled)
        if data is not None and self.grid.cells[0].run.task.dataset == OWNED:
            filled += (f"task.dataset={OWNED}, as each folder in the data is a client's",)
        self._storage, self._folder = request.storage, plugins
        self.filled = tuple(dict.fromkeys((*filled, *longer)))
        self.cells = tuple(map(str, self.grid.cells))
        self.output = Path(output or Path("studies") / self.grid.name)
        self._found: Results | None = None

    def __repr__(self) -> str:
        """Show how many runs there are."""
        return f"<sotto.Study of {len(self.cells)} runs in {str(self.output)!r}>"

    def run(
        self,
        *,
        jobs: int | None = None,
        cluster: Mapping[str, Any] | None = None,
        observer: SweepObserver | None = None,
        progress: bool = True,
    ) -> Study:
        """Run what has not finished, and write tables, tests and pictures into `output`.

        All settings are planned before the first run starts. Ctrl-C leaves a study that the same
        call goes on with.

        Args:
            jobs: Runs at a time; None for one a CPU.
            cluster: Settings of a Dask cluster, such as `scheduler` and `timeout_min`; None for
                processes of this machine.
            observer: Watches the runs; None shows a bar.
            progress: Whether the bar is shown, on a terminal.

        Raises:
            Error: A setting cannot run, or nothing can be written.
        """
        with refusing(self._names):
            settings = [f"{key}={value}" for key, value in (cluster or {}).items()]
            machines = None if cluster is None else cluster_of("dask", settings)
            if machines is None:
                require_runnable(self.grid.cells, self._storage, self._surroundings)
            with _Watcher(progress and observer is None, "runs") as bar:
                self._found = carry_out(
                    *(self.grid, self.output, observer or bar),
                    url=self._storage,
                    folder=self._folder,
                    jobs=jobs,
                    cluster=machines,
                )
        return self

    @property
    def found(self) -> Results:
        """What came of it, as the command line prints it; `Error` before `run`."""
        if self._found is None:
            raise Error("the study has not run; valid: after `run`")
        return self._found

    @property
    def results(self) -> dict[str, Any]:
        """All numbers: `cells` over seeds, paired `tests`, and what `failed`."""
        return {**document(self.found), "filled": list(self.filled)}

    @property
    def table(self) -> DataFrame | list[dict[str, Any]]:
        """One row a method and epsilon, over `n` seeds: a frame where pandas is.

        `accuracy` is the mean of the protocol's one number, `gain` is over each client alone, and
        `spent` is the largest epsilon against the server.
        """
        rows = []
        for one in self.results["cells"]:
            measured = one["selections"]["last"]
            accuracy = measured.get(HEADLINES[one["protocol"]]) or {}
            gain = measured.get("gain_over_local") or {}
            rows.append(
                {
                    **{"method": one["method"], **one["axes"], "accuracy": accuracy.get("mean")},
                    **{"deviation": accuracy.get("deviation"), "gain": gain.get("mean")},
                    **{
                        "spent": number(one["privacy"]["epsilon"]["server"]),
                        "n": len(one["seeds"]),
                    },
                }
            )
        return _framed(rows)

    @property
    def tests(self) -> DataFrame | list[dict[str, Any]]:
        """One row a paired test of two methods at one epsilon; p is corrected for all `tests`."""
        return _framed(self.results["tests"])


def _framed(rows: list[dict[str, Any]]) -> DataFrame | list[dict[str, Any]]:
    try:
        from pandas import DataFrame
    except ImportError:
        return rows
    return DataFrame(rows)


class _Watcher(Bar, SweepObserver):
    """Shows how many runs have ended."""

    def sweep_started(self, total: int, finished: int) -> None:
        """Show how many runs there are."""
        self._bar.update(self._task, total=total, completed=finished)

    def cell_started(self, cell: Cell) -> None:
        """Name the run."""
        self._bar.update(self._task, description=str(cell))

    def cell_finished(self, outcome: Outcome) -> None:
        """Move the bar."""
        self._bar.advance(self._task)
