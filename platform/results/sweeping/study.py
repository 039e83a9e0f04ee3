"""Studies: methods by epsilon by seeds on one configuration, as the usual figure of a paper.

A study is a grid whose axis `epsilon` sets the mechanism and its target. It fills in keys that the
mechanism needs and the configuration leaves out, and says which. It never changes the unit, the
relation, delta, the adversary or the source of the noise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from methods import MethodError
from platform.config import RunConfig, Sources, load_config
from platform.config.files import read_preset
from platform.config.loading import needs_noise
from platform.errors import ConfigError, Faults, PlatformError
from platform.experiment.environment import resolve_device
from platform.experiment.planning import Surroundings, plan_run
from platform.results.numbers import EPSILON, NO_NOISE
from platform.results.sweeping.grid import (
    Axis,
    Cell,
    Grid,
    SweepRequest,
    absolute_storage,
    keep,
    require_distinct,
    require_none,
    split_values,
)
from platform.results.sweeping.running import SweepObserver, known_runs, only_sweep_in, run_cells
from platform.results.sweeping.submitting import database_name, submit_cells
from platform.results.sweeping.writing import Results, announce, publish
from platform.rounds.observing import SilentObserver
from privacy import PrivacyError

MECHANISM: Final = "distributed_noise"
"""The mechanism of a study whose configuration has none."""
NEEDED: Final = {"clipping_norm": 0.3, "per_sample_clipping_norm": 1.0, "sampling_probability": 0.1}
"""What is filled in of `privacy`; the first is that of the packaged configurations for prompts."""
CELLS: Final = "cells"
"""The folder in the results for the databases of cells that are jobs of a cluster."""
MOST_JOBS: Final = 100
"""Most jobs of a cluster at a time, unless the caller says otherwise."""


def study_request(
    config: str,
    request: Mapping[str, Any],
    epsilons: Sequence[float | None],
    *,
    mechanism: str | None,
    sources: Sources,
) -> tuple[SweepRequest, tuple[str, ...]]:
    """Return the request for a study's grid, and what is filled in, as `key=value`.

    Epsilons are targets of whole runs, None without noise. No mechanism is the configuration's, or
    `distributed_noise` if that has none. `request` has other fields of the request, of which
    `seeds` may be how many. All that is wrong is refused at once.
    """
    fixed = [text for text in request["settings"] if len(split_values(text)) == 1]
    faults, values = Faults(), dict[str, tuple[str, ...]]()
    seeds = range(s) if isinstance(s := request["seeds"], int) else tuple(s)
    if not seeds or isinstance(s, str):
        faults.append(f"seeds: {s!r} is not valid; valid: a number above 0, or a list of seeds")
    for option, several in (("--method", request["methods"]), ("--seed", seeds)):
        with faults:
            require_distinct(option, several)
    for method in request["methods"]:
        if method not in sources.registry.available():
            with faults:
                read_preset(method, sources)
    valid = [one.name for one in sources.mechanisms if one.facts.claims]
    if mechanism not in (None, *valid):
        faults.append(f"mechanism: {mechanism!r} is not valid; valid: {', '.join(valid)}")
    for epsilon in epsilons:
        if not (epsilon is None or (isinstance(epsilon, int | float) and 0 < epsilon < inf)):
            faults.append(f"epsilon: {epsilon!r} is not valid; valid: a number above 0, or None")
    shown = [f"{e:g}" if isinstance(e, int | float) else repr(e) for e in epsilons]
    if len(set(shown)) < len(shown):
        faults.append("epsilon: a value is given twice; valid is once")
    with faults:
        base = load_config(Path(config), fixed, sources)
    faults.require_none(ConfigError)
    name = mechanism or (base.privacy.mechanism if base.mechanism.facts.claims else MECHANISM)
    filled = filled_in(base, name, sources)
    texts = [f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in filled.items()]
    # These would be refused in runs without noise.
    noise = [text for text in fixed if needs_noise(text.partition("=")[0])]
    for epsilon in epsilons:
        if epsilon is None:
            values[NO_NOISE] = (f"privacy.mechanism={NO_NOISE}",)
            continue
        target = (f"privacy.target_epsilon={epsilon!r}", "privacy.noise_multiplier=null")
        values[f"{epsilon:g}"] = (f"privacy.mechanism={name}", *texts, *noise, *target)
    # Alone, a client is its own local twin.
    once = (f"privacy.mechanism={NO_NOISE}", "evaluation.local_twins=false")
    axis = Axis(EPSILON, values, once)
    rest = tuple(text for text in request["settings"] if text not in noise)
    request = {**request, "seeds": tuple(seeds), "settings": rest}
    wanted = SweepRequest(configs=(config,), axes=(axis,), fills=True, **request)
    return wanted, tuple(texts) if any(one is not None for one in epsilons) else ()


def filled_in(base: RunConfig, name: str, sources: Sources) -> dict[str, Any]:
    """Return keys that a configuration lacks under a mechanism, and their values."""
    section, found = base.privacy, dict[str, Any]()
    mechanism = sources.mechanisms.named(name)
    if section.mechanism != name:
        found["privacy.mechanism"] = name
    wanted = {"clipping_norm"} if mechanism.clips_uploads else set()
    if mechanism.facts.is_in_steps:
        wanted = {"per_sample_clipping_norm", "sampling_probability"}
        if section.clipping_norm is not None:
            found["privacy.clipping_norm"] = None
    for key in sorted(wanted):
        if getattr(section, key) is None:
            found[f"privacy.{key}"] = NEEDED[key]
    if mechanism.needs_masks and not base.secure_aggregation.enabled:
        found["secure_aggregation.enabled"] = True
    return found


def require_runnable(cells: Sequence[Cell], url: str, surroundings: Surroundings) -> None:
    """Plan the first seed of all new settings; refuse all that cannot run, at once."""
    known, problems, seen = known_runs(url), dict[str, list[str]](), set[Any]()
    for cell in cells:
        setting = (cell.config, cell.method, cell.axes)
        if setting in seen or cell.identity in known:
            continue
        seen.add(setting)
        try:
            plan_run(cell.run, SilentObserver(), surroundings)
        except (PlatformError, MethodError, PrivacyError) as error:
            keep(error, str(cell), problems)
    require_none(problems)


def carry_out(
    grid: Grid,
    results: Path,
    observer: SweepObserver,
    *,
    url: str,
    folder: Path | None = None,
    jobs: int | None = None,
    cluster: Mapping[str, Any] | None = None,
) -> Results:
    """Run the cells that have not finished, and write tables and pictures into a folder.

    One sweep at a time works in `results`. The database `url` is that of all cells, unless they are
    jobs of a Dask `cluster`. `jobs` run at a time; None: one a CPU, or one if cells share a GPU.
    """
    with only_sweep_in(results):
        own = [None if cluster is None else f"{CELLS}/{database_name(c)}" for c in grid.cells]
        announce(grid, results, own)
        if cluster is None:
            url, jobs = absolute_storage(url), jobs or _jobs(grid)
            outcomes = run_cells(grid.cells, observer, folder, jobs=jobs, url=url)
        else:
            place, jobs = results / CELLS, jobs or MOST_JOBS
            outcomes = submit_cells(
                grid.cells, observer, cluster, folder=folder, jobs=jobs, place=place
            )
        return publish(grid, outcomes, results)


def _jobs(grid: Grid) -> int:
    """Return one process for each CPU that this process may use; 1 if cells share a GPU."""
    devices = {cell.run.device for cell in grid.cells}
    if "cuda" in devices or ("auto" in devices and resolve_device("auto") == "cuda"):
        return 1
    return len(os.sched_getaffinity(0))
