"""`clipping`: choose the clipping norm by a dry run on public images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from methods.interface.subspace import subspace_of
from platform.bootstrap import Surroundings, create_run
from platform.cli.interrupting import Ended, interruptible
from platform.cli.output import console, fraction, print_json, table
from platform.cli.watching import ScreenObserver
from platform.config import RunConfig, load_config
from platform.data.public import RENDERED
from platform.data.shapes import Stream
from platform.experiment.finishing import execute
from platform.experiment.rehearsal import (
    QUANTILES,
    Listening,
    RoundOfNorms,
    on_public_images,
    recommended,
    rehearsal_config,
    rounds_of,
)
from platform.experiment.simulation import Simulation
from platform.rounds.observing import Observer
from platform.wire.layout import vector_length


@dataclass(frozen=True, kw_only=True)
class ClippingQuestion:
    """What `clipping` is asked.

    Attributes:
        config: The configuration.
        overrides: Overrides of it.
        dataset: Public data set in place of what the configuration names, if any.
        root: Its folder, likewise.
        rounds: How many rounds are tried; None for all.
    """

    config: Path
    overrides: tuple[str, ...] = ()
    dataset: str | None = None
    root: str | None = None
    rounds: int | None = None


def clipping_command(
    question: ClippingQuestion, surroundings: Surroundings, *, as_json: bool
) -> None:
    """Run a configuration dry, and say how long its uploads would be.

    Raises:
        ConfigError: If it cannot be run, or on no image that is public.
    """
    loaded = load_config(question.config, question.overrides, surroundings.sources)
    screen = ScreenObserver(loaded.privacy.target_delta, quiet=True)
    with interruptible(lambda number: Ended(number, "interrupted; nothing is kept")), screen:
        found = rehearse(loaded, question, surroundings, screen)
    if as_json:
        print_json(found)
    else:
        _show(found)


def rehearse(
    config: RunConfig, question: ClippingQuestion, surroundings: Surroundings, observer: Observer
) -> dict[str, Any]:
    """Return what a dry run of a configuration gives, as plain data.

    Raises:
        ConfigError: If it cannot be run, or on no image that is public.
    """
    public = on_public_images(config, question.dataset, question.root)
    norms: dict[int, list[float]] = {}
    apart = replace(
        surroundings,
        images=Stream.REHEARSAL,
        carry=lambda within: Listening(surroundings.carry(within), norms),
    )
    # Run folder, database, clients' stores and features: all of it goes at the end.
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/sotto.db"
        dry = rehearsal_config(public, question.rounds, url, surroundings.sources)
        simulation = create_run(dry, observer, apart)
        try:
            execute(simulation, observer)
        finally:
            simulation.database.close()
    return _document(config, simulation, rounds_of(norms))


def _document(
    config: RunConfig, simulation: Simulation, rounds: Sequence[RoundOfNorms]
) -> dict[str, Any]:
    method, task = simulation.learning.method, simulation.run.terms.config.task
    configured, found = config.privacy.clipping_norm, recommended(rounds)
    inside = subspace_of(method)
    return {
        "clipping_norm": found,
        "configured": configured,
        "public": {
            "dataset": task.dataset,
            "root": None if task.dataset in RENDERED else task.root,
            "examples": sum(held.num_examples for held in simulation.learning.train.values()),
        },
        "values": vector_length(method.shared_spec()),
        "subspace": None if inside is None else inside.kind,
        "rounds": [
            {
                "round": one.number,
                "uploads": len(one.norms),
                "norms": dict(zip(map(str, QUANTILES), one.quantiles(), strict=True)),
                "clipped": one.clipped(found),
                "clipped_as_configured": None if configured is None else one.clipped(configured),
            }
            for one in rounds
        ],
    }


def _show(found: Mapping[str, Any]) -> None:
    norm, configured, public = found["clipping_norm"], found["configured"], found["public"]
    columns = ["round", "uploads", *(f"{100 * q:.0f}% of norms below" for q in QUANTILES)]
    columns.append(f"longer than {norm:.3g}")
    columns += [] if configured is None else [f"than {configured:g} as configured"]
    rows = []
    for one in found["rounds"]:
        norms = [f"{value:.3g}" for value in one["norms"].values()]
        given = [one["clipped"], one["clipped_as_configured"]]
        shares = [fraction(share) for share in given if share is not None]
        rows.append((one["round"], one["uploads"], *norms, *shares))
    out = console()
    where = "" if found["subspace"] is None else f" of a subspace ({found['subspace']})"
    out.print(table(f"norms of uploads, {found['values']} values{where}", columns, rows))
    out.print(
        f"recommended privacy.clipping_norm: {norm:.3g} or less, the median of the first round's "
        "norms: a larger C adds noise for nothing, a smaller one shortens steps",
    )
    if configured is not None:
        out.print(f"the configured one is {configured / norm:.2g} times that")
    source = "rendered for this" if public["root"] is None else f"below {public['root']!r}"
    out.print(
        f"on public examples only, {public['examples']} of {public['dataset']}, {source}: no "
        "client's data were looked at, nothing was charged, and nothing is kept",
    )
