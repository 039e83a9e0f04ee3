"""`run`: from a configuration, or resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from platform.bootstrap import Surroundings, create_run, reopen_run, stored_config
from platform.cli import exit_codes
from platform.cli.access import resolve_run
from platform.cli.conducting import federate, federate_again
from platform.cli.interrupting import ended_run, finding, interruptible
from platform.cli.output import print_json
from platform.cli.reporting import print_summary
from platform.cli.watching import ScreenObserver
from platform.config import RunConfig, StorageConfig, load_config, parse_config
from platform.disk.opening import open_storage
from platform.errors import ConfigError
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation


def run_command(
    config: Path, overrides: Sequence[str], surroundings: Surroundings, *, as_json: bool
) -> None:
    """Run a configuration from its first round.

    Raises:
        ConfigError: If it cannot be run; nothing is written then.
    """
    loaded = load_config(config, overrides, surroundings.sources)
    if loaded.federation is not None:
        federate(loaded, surroundings, as_json=as_json)
        return
    options = finding(loaded.storage.url, surroundings)
    _execute(
        *(loaded, options, lambda screen: create_run(loaded, screen, surroundings)),
        as_json=as_json,
    )


def second_phase_command(
    run_id: str,
    overrides: Sequence[str],
    storage: str,
    surroundings: Surroundings,
    *,
    as_json: bool,
) -> None:
    """Run a second phase on what a finished run left behind.

    Raises:
        UnknownRun: If there is none of this name.
        ConfigError: If it cannot be run; nothing is written then.
    """
    found = resolve_run(run_id, storage)
    with open_storage(storage) as database:
        tree = stored_config(database, found, surroundings).model_dump(mode="json")
    tree["storage"]["url"] = storage
    config = parse_config({**tree, "phase_two_of": found}, overrides, surroundings.sources)
    _execute(
        *(config, finding(storage, surroundings)),
        lambda screen: create_run(config, screen, surroundings),
        as_json=as_json,
    )


def resume_command(run_id: str, storage: str, surroundings: Surroundings, *, as_json: bool) -> None:
    """Go on with a run.

    Raises:
        UnknownRun: If there is none of this name.
        ConfigError: If it has finished.
    """
    found = resolve_run(run_id, storage)
    with open_storage(storage) as database:
        with database.unit_of_work(read_only=True) as uow:
            if uow.runs.get(found).status == "finished":
                raise ConfigError(f"--resume: run {found} has finished; see `report {found}`")
        config = stored_config(database, found, surroundings)
    if config.federation is not None:
        moved = config.model_copy(update={"storage": StorageConfig(url=storage)})
        federate_again(found, moved, surroundings, as_json=as_json)
        return
    _execute(
        *(config, finding(storage, surroundings)),
        lambda screen: reopen_run(found, storage, screen, surroundings),
        as_json=as_json,
    )


def _execute(
    config: RunConfig,
    options: Sequence[str],
    set_up: Callable[[ScreenObserver], Simulation],
    *,
    as_json: bool,
) -> None:
    screen = ScreenObserver(config.privacy.target_delta, quiet=as_json)
    with interruptible(lambda number: ended_run(number, screen.run_id, options)), screen:
        simulation = set_up(screen)
        with simulation.database:
            summary = execute(simulation, screen)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
    code = exit_code_of(summary.get("canaries"))
    if code:
        raise typer.Exit(code)


def exit_code_of(canaries: Mapping[str, Any] | None) -> int:
    """Return the exit code of a run that finished, by what its own canaries showed."""
    if canaries is None:
        return 0
    if canaries["is_refuted"] or canaries["is_blind"]:
        return exit_codes.FAILED
    return exit_codes.ABOVE_CLAIM if canaries["is_above_claim"] else 0
