"""`run`: from a configuration, or resumed; a federation also shows which clients are there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from platform.cli.ending import ABOVE_CLAIM, FAILED, ended_run, finding, interruptible
from platform.cli.output import answer
from platform.cli.reporting import ScreenObserver, run_words
from platform.config import RunConfig, StorageConfig, load_config, parse_config
from platform.config.sections import FederationConfig
from platform.disk.opening import open_storage
from platform.errors import ConfigError
from platform.experiment.federating import new_federation, reopened_federation, through_hub
from platform.experiment.finishing import Conducted, conduct, execute
from platform.experiment.planning import Surroundings, create_run, reopen_run, stored_config
from platform.experiment.simulation import Simulation
from platform.relay.hub import Told
from platform.results.reading import resolve_run
from platform.wire.messages import Stage
from platform.wire.transport import Transport

SHOWN = 5
"""If a stage waits for more clients, the bar names this many."""


def run_command(
    config: Path, overrides: Sequence[str], surroundings: Surroundings, *, as_json: bool
) -> None:
    """Run a configuration from its first round; one that cannot be run writes nothing."""
    loaded = load_config(config, overrides, surroundings.sources)
    if loaded.federation is not None:
        starting = partial(new_federation, loaded, surroundings=surroundings)
        _federate(loaded, surroundings, starting, as_json=as_json)
        return
    creating = partial(create_run, loaded, surroundings=surroundings)
    _execute(finding(loaded.storage.url, surroundings), creating, as_json=as_json)


def second_phase_command(
    run_id: str,
    overrides: Sequence[str],
    storage: str,
    surroundings: Surroundings,
    *,
    as_json: bool,
) -> None:
    """Run a second phase on the pool, clients and ledger of a finished run."""
    found = resolve_run(run_id, storage)
    with open_storage(storage) as database:
        tree = stored_config(database, found, surroundings).model_dump(mode="json")
    tree["storage"]["url"] = storage
    config = parse_config({**tree, "phase_two_of": found}, overrides, surroundings.sources)
    creating = partial(create_run, config, surroundings=surroundings)
    _execute(finding(storage, surroundings), creating, as_json=as_json)


def resume_command(run_id: str, storage: str, surroundings: Surroundings, *, as_json: bool) -> None:
    """Go on with a run."""
    found = resolve_run(run_id, storage)
    with open_storage(storage) as database:
        with database.unit_of_work(read_only=True) as uow:
            if uow.runs.get(found).status == "finished":
                raise ConfigError(f"--resume: run {found} has finished; see `report {found}`")
        config = stored_config(database, found, surroundings)
    if config.federation is not None:
        moved = config.model_copy(update={"storage": StorageConfig(url=storage)})
        going_on = partial(reopened_federation, found, moved, surroundings=surroundings)
        _federate(moved, surroundings, going_on, as_json=as_json)
        return
    again = partial(reopen_run, found, storage, surroundings=surroundings)
    _execute(finding(storage, surroundings), again, as_json=as_json)


def _execute(
    options: Sequence[str], set_up: Callable[[ScreenObserver], Simulation], *, as_json: bool
) -> None:
    screen = ScreenObserver(quiet=as_json)
    with interruptible(lambda number: ended_run(number, screen.run_id, options)), screen:
        simulation = set_up(screen)
        with simulation.database:
            summary = execute(simulation, screen)
    answer(summary, run_words(summary), as_json=as_json)
    if code := exit_code_of(summary.get("canaries")):
        raise typer.Exit(code)


def exit_code_of(canaries: Mapping[str, Any] | None) -> int:
    """Return the exit code of a run that finished, by the verdict of its own canaries."""
    if canaries is None:
        return 0
    if canaries["is_refuted"] or canaries["is_blind"]:
        return FAILED
    return ABOVE_CLAIM if canaries["is_above_claim"] else 0


class FederationScreen(ScreenObserver):
    """Shows rounds, the clients that can be reached, and those that a stage waits for."""

    def connected(self, client: str, there: bool) -> None:
        """Tell that a client can be reached, or no longer."""
        # An error in the hub's thread would cut the relay off.
        with suppress(OSError):
            sys.stderr.write(f"{client} can {'be reached' if there else 'no longer be reached'}\n")

    def waiting(self, stage: Stage, clients: frozenset[str]) -> None:
        """Name the missing clients on the bar."""
        named = sorted(clients)
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        text = f"{stage}: waits for {', '.join(named[:SHOWN])}{more}" if named else stage
        with suppress(OSError):
            self.describe(text)


class FederationLines(FederationScreen):
    """One JSON object a line for everything that happens."""

    def connected(self, client: str, there: bool) -> None:
        """Tell that a client can be reached, or no longer."""
        with suppress(OSError):
            _line("connected" if there else "disconnected", client=client)

    def waiting(self, stage: Stage, clients: frozenset[str]) -> None:
        """Tell the missing clients."""
        with suppress(OSError):
            _line("waiting", stage=stage, clients=sorted(clients))

    def run_created(self, run_id: str) -> None:
        """Tell the run's name."""
        super().run_created(run_id)
        _line("run", run_id=run_id)

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Tell a round."""
        super().round_finished(document)
        _line("round", **document)


def _federate(
    config: RunConfig,
    surroundings: Surroundings,
    set_up: Callable[..., AbstractContextManager[Conducted]],
    *,
    as_json: bool,
) -> None:
    kind = FederationLines if as_json else FederationScreen
    screen = kind(quiet=as_json)
    options = finding(config.storage.url, surroundings)
    told = Told(connected=screen.connected, waiting=screen.waiting)

    def reaching(section: FederationConfig) -> AbstractContextManager[Transport]:
        return through_hub(section, told)

    interrupted = interruptible(lambda number: ended_run(number, screen.run_id, options))
    with interrupted, screen, set_up(observer=screen, reaching=reaching) as conducted:
        summary = conduct(conducted, screen)
    if as_json:
        _line("summary", **summary)
    else:
        answer(summary, run_words(summary), as_json=False)


def _line(event: str, **fields: Any) -> None:
    sys.stdout.write(f"{json.dumps({'event': event, **fields})}\n")
    sys.stdout.flush()
