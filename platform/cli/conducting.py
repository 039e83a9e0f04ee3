"""`run` with a federation section: clients are elsewhere, and people see who is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from platform.bootstrap.federating import (
    Reaching,
    new_federation,
    reopened_federation,
    through_hub,
)
from platform.bootstrap.surroundings import Surroundings
from platform.cli.interrupting import ended_run, finding, interruptible
from platform.cli.reporting import print_summary
from platform.cli.watching import ScreenObserver
from platform.config import RunConfig
from platform.config.federation_section import FederationConfig
from platform.experiment.conducting import Conducted, conduct
from platform.relay.hub import Told
from platform.wire.messages import Stage
from platform.wire.transport import Transport

Setting = Callable[[ScreenObserver, Reaching], AbstractContextManager[Conducted]]
SHOWN = 5
"""Clients that are named at most where a stage waits for more."""


def federate(config: RunConfig, surroundings: Surroundings, *, as_json: bool) -> None:
    """Run a configuration with its clients, from its first round.

    Raises:
        ConfigError: If it cannot be run; nothing is written then.
    """
    _execute(
        *(config, finding(config.storage.url, surroundings)),
        lambda screen, reaching: new_federation(config, screen, surroundings, reaching=reaching),
        as_json=as_json,
    )


def federate_again(
    run_id: str, config: RunConfig, surroundings: Surroundings, *, as_json: bool
) -> None:
    """Go on with a run and its clients.

    Args:
        run_id: The run.
        config: As it was started with, its storage where it is now.
        surroundings: What is taken from outside.
        as_json: Whether stdout gets JSON lines: events, and the summary last.

    Raises:
        ConfigError: If it cannot be run here.
    """
    _execute(
        *(config, finding(config.storage.url, surroundings)),
        lambda screen, reach: reopened_federation(
            run_id, config, screen, surroundings, reaching=reach
        ),
        as_json=as_json,
    )


class FederationScreen(ScreenObserver):
    """Shows beside the rounds who is there, and whom a stage waits for."""

    def connected(self, client: str, there: bool) -> None:
        """Tell that a client can be reached, or no longer."""
        # In the hub's thread, which would hang up on the relay.
        with suppress(OSError):
            sys.stderr.write(f"{client} can {'be reached' if there else 'no longer be reached'}\n")

    def waiting(self, stage: Stage, clients: frozenset[str]) -> None:
        """Name on the bar who is missing."""
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
        """Tell who is missing."""
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


def _execute(config: RunConfig, options: Sequence[str], set_up: Setting, *, as_json: bool) -> None:
    kind = FederationLines if as_json else FederationScreen
    screen = kind(config.privacy.target_delta, quiet=as_json)
    told = Told(connected=screen.connected, waiting=screen.waiting)

    def reaching(section: FederationConfig) -> AbstractContextManager[Transport]:
        return through_hub(section, told)

    interrupted = interruptible(lambda number: ended_run(number, screen.run_id, options))
    with interrupted, screen, set_up(screen, reaching) as conducted:
        summary = conduct(conducted, screen)
    if as_json:
        _line("summary", **summary)
    else:
        print_summary(summary)


def _line(event: str, **fields: Any) -> None:
    sys.stdout.write(f"{json.dumps({'event': event, **fields})}\n")
    sys.stdout.flush()
