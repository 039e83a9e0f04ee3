"""`audit-privacy`: try to refute a configuration's claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.progress import TaskID, TextColumn

from platform.bootstrap import Surroundings, plan_run
from platform.cli import exit_codes
from platform.cli.drawing_audits import draw, require_drawable
from platform.cli.output import WithBar, console, epsilon, print_json, table
from platform.config import load_config
from platform.privacy_auditing.audit import (
    FAMILY_WISE_ERROR,
    AuditPlan,
    audit_games,
    audit_run,
    require_claim,
)
from platform.privacy_auditing.outcome import ChannelAudit, Game
from platform.rounds.observing import SilentObserver
from privacy import CalibrationError
from privacy.auditing import AuditResult, canaries_needed

COLUMNS = ("channel", "claimed mu", "seen mu", "interval", "claimed eps", "seen eps", "verdict")
ENOUGH = 0.999
"""Probability of noticing halved noise below which more canaries are recommended."""


def audit_privacy_command(
    config: Path,
    overrides: Sequence[str],
    surroundings: Surroundings,
    *,
    canaries: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Audit a configuration's mechanism; exit code 1 if its claim is refuted.

    Raises:
        ConfigError: If it cannot be run, claims nothing, or the picture has nowhere to go.
    """
    if plot is not None:
        require_drawable(plot)
    loaded = load_config(config, overrides, surroundings.sources)
    require_claim(loaded)
    run = plan_run(loaded, SilentObserver(), surroundings)
    with AuditProgress() as progress:
        audits = audit_run(AuditPlan(run, canaries), progress)
        games = audit_games(AuditPlan(run, canaries), surroundings)
    if plot is not None:
        draw(audits, plot)
    verdicts: list[ChannelAudit | Game] = [*audits, *games]
    if as_json:
        print_json([one.document() for one in verdicts])
    else:
        _show(audits, games, plot)
    if not all(one.passed for one in verdicts):
        raise typer.Exit(exit_codes.FAILED)


class AuditProgress(WithBar):
    """A bar on stderr with the channel and the canaries sent; one line a channel elsewhere."""

    def __init__(self) -> None:
        """Take nothing; the bar comes with the first canary."""
        super().__init__(TextColumn("canaries"))
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, channel: str, done: int, total: int) -> None:
        """Move the channel's bar."""
        if channel not in self._tasks:
            self._tasks[channel] = self._progress.add_task(channel, total=total)
            if not self._error.is_terminal:
                self._error.print(f"{channel}: {total} canaries")
        self._progress.update(self._tasks[channel], completed=min(done, total))


def _show(audits: Sequence[ChannelAudit], games: Sequence[Game], plot: Path | None) -> None:
    out = console()
    unit = audits[0].result.unit
    title = f"{audits[0].mechanism}: one release of one client, unit {unit}"
    out.print(table(title, COLUMNS, [*map(_row, audits), *map(_row_of_game, games)]))
    for audit in audits:
        for reason in audit.reasons:
            out.print(f"{audit.channel}: {reason}")
        _show_bound(audit)
        out.print(
            f"{audit.channel}: {audit.result.canaries} canaries would have noticed halved "
            f"noise with probability {audit.result.power:.3f}{_more_needed(audit.result)}",
        )
    for game in games:
        for reason in game.reasons:
            out.print(f"{game.channel}: {reason}")
        out.print(f"{game.channel}: {game.played}")
    if plot is not None:
        out.print(f"picture: {plot}", soft_wrap=True)


def _show_bound(audit: ChannelAudit) -> None:
    bound = audit.result.gaussian
    if bound is not None:
        console().print(
            f"{audit.channel}: if scores are normal, epsilon is at least {epsilon(bound.epsilon)} "
            f"(95%); of a build exactly as claimed {audit.result.canaries} canaries show "
            f"{epsilon(bound.ceiling)}, their ceiling",
        )


def _more_needed(result: AuditResult) -> str:
    """Say how many canaries a check that can fail takes, where these were too few."""
    if result.power >= ENOUGH:
        return ""
    try:
        needed = canaries_needed(result.claimed_mu, 2.0 * result.claimed_mu, FAMILY_WISE_ERROR)
    except CalibrationError:
        return "; no number of canaries would at this mu"
    return f"; --canaries {needed} would with 0.999"


def _row(audit: ChannelAudit) -> tuple[str, ...]:
    result = audit.result
    low, high = result.mu_interval
    return (
        audit.channel,
        f"{result.claimed_mu:.3f}",
        f"{result.estimated_mu:.3f}",
        f"{low:.2f} to {high:.2f}",
        epsilon(result.claimed_epsilon),
        epsilon(result.epsilon_lower_bound_95),
        "not refuted" if audit.passed else "REFUTED",
    )


def _row_of_game(game: Game) -> tuple[str, ...]:
    verdict = "not refuted" if game.passed else "REFUTED"
    return (game.channel, *["-"] * (len(COLUMNS) - 2), verdict)
