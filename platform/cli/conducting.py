"""`run` with a federation section: clients are elsewhere, and people see who is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from platform.bootstrap.federating import (
    Reaching,
    new_federation,
    reopened_federation,
    through_hub,
)
from platform.bootstrap.surroundings import Surroundings
from platform.cli.interrupting import farewell, interruptible
from platform.cli.output import print_json
from platform.cli.reporting import print_summary
from platform.cli.watching import ScreenObserver
from platform.config import RunConfig
from platform.experiment.conducting import Conducted, conduct
from platform.relay.hub import Told
from platform.wire.messages import ROUND_STAGES, Stage

Setting = Callable[[ScreenObserver, Reaching], AbstractContextManager[Conducted]]


def federate(config: RunConfig, surroundings: Surroundings, *, as_json: bool) -> None:
    """Run a configuration with its clients, from its first round.

    Raises:
        ConfigError: If it cannot be run; nothing is written then.
    """
    _execute(
        config,
        lambda screen, reaching: new_federation(config, screen, surroundings, reaching),
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
        as_json: Whether only the summary goes to stdout.

    Raises:
        ConfigError: If it cannot be run here.
    """
    _execute(
        config,
        lambda screen, reaching: reopened_federation(
            run_id, config, screen, surroundings, reaching
        ),
        as_json=as_json,
    )


def _execute(config: RunConfig, set_up: Setting, *, as_json: bool) -> None:
    screen = ScreenObserver(config.privacy.target_delta, quiet=as_json)
    try:
        with interruptible(), screen, set_up(screen, _reaching(screen)) as conducted:
            summary = conduct(conducted, screen)
    except KeyboardInterrupt as error:
        where = f"; resume with --resume {screen.run_id}" if screen.run_id else ""
        raise farewell(error, f"interrupted{where}") from None
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)


def _reaching(screen: ScreenObserver) -> Reaching:
    """Return the hub, which tells on stderr who comes and goes, and moves the bar."""

    def connected(client: str, there: bool) -> None:
        sys.stderr.write(f"{client} can {'be reached' if there else 'no longer be reached'}\n")

    def answered(client: str, stage: Stage) -> None:
        if stage in ROUND_STAGES:
            screen.client_answered()

    told = Told(connected=connected, answered=answered)
    return lambda section: through_hub(section, told)
