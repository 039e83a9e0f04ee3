"""`clipping` and `audit-privacy`: try a configuration before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.progress import TaskID

from methods.interface.subspace import subspace_of
from platform.cli.ending import FAILED, Ended, interruptible
from platform.cli.output import Said, Whole, WithBar, answer, epsilon, fraction, table
from platform.cli.reporting import ScreenObserver
from platform.config import RunConfig, load_config
from platform.data.loading import RENDERED
from platform.data.shapes import Stream
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run, plan_run
from platform.experiment.privacy_auditing.audit import (
    FAMILY_WISE_ERROR,
    AuditPlan,
    audit_games,
    audit_run,
    require_claim,
)
from platform.experiment.privacy_auditing.outcome import ChannelAudit, Game
from platform.experiment.rehearsal import (
    QUANTILES,
    Listening,
    on_public_images,
    recommended,
    rehearsal_config,
    rounds_of,
)
from platform.results.charts import ALARM, COLOURS, INK, Picture, new_figure, require_drawable
from platform.results.pictures import write_pictures
from platform.rounds.observing import Observer, SilentObserver
from platform.wire.layout import vector_length
from privacy import CalibrationError
from privacy.auditing import canaries_needed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def clipping_command(
    config: Path,
    overrides: Sequence[str] | None,
    folder: Path | None,
    *,
    dataset: str | None,
    root: Path | None,
    rounds: int | None,
    as_json: bool,
) -> None:
    """Run a configuration dry on public images, and print the norms of its uploads."""
    surroundings = Surroundings.with_plugins(folder)
    loaded = load_config(config, overrides or (), surroundings.sources)
    screen = ScreenObserver(quiet=True)
    place = None if root is None else str(root)
    with interruptible(lambda number: Ended(number, "interrupted; nothing is kept")), screen:
        found = rehearse(loaded, surroundings, screen, dataset=dataset, root=place, rounds=rounds)
    answer(found, _norm_words(found), as_json=as_json)


def _norm_words(found: Mapping[str, Any]) -> Iterator[Said]:
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
    where = "" if found["subspace"] is None else f" of a subspace ({found['subspace']})"
    yield table(f"norms of uploads, {found['values']} values{where}", columns, rows)
    yield (
        f"recommended privacy.clipping_norm: {norm:.3g} or less, the median of the first round's "
        "norms: a larger C adds noise for nothing, a smaller one shortens steps"
    )
    if configured is not None:
        yield f"the configured one is {configured / norm:.2g} times that"
    source = "rendered for this" if public["root"] is None else f"below {public['root']!r}"
    yield (
        f"on public examples only, {public['examples']} of {public['dataset']}, {source}: no "
        "client's data were read, nothing was charged, and nothing is kept"
    )


def rehearse(
    config: RunConfig,
    surroundings: Surroundings,
    observer: Observer,
    *,
    dataset: str | None = None,
    root: str | None = None,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Run a configuration dry on public images, and return the norms of its uploads.

    Data set and its folder are the configuration's, and the rounds all of them, unless given.
    """
    public = on_public_images(config, dataset, root)
    norms: dict[int, list[float]] = {}
    apart = replace(
        surroundings,
        images=Stream.REHEARSAL,
        carry=lambda within: Listening(surroundings.carry(within), norms),
    )
    # The run's folder, database, clients' stores and features all go at the end.
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/sotto.db"
        dry = rehearsal_config(public, rounds, url, surroundings.sources)
        simulation = create_run(dry, observer, apart)
        try:
            execute(simulation, observer)
        finally:
            simulation.database.close()
    tried = rounds_of(norms)
    method, task = simulation.learning.method, simulation.run.terms.config.task
    configured, found = config.privacy.clipping_norm, recommended(tried)
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
            for one in tried
        ],
    }


COLUMNS = ("channel", "claimed mu", "seen mu", "interval", "claimed eps", "seen eps", "verdict")
ENOUGH = 0.999
"""If halved noise is noticed with a lower probability, the audit recommends more canaries."""


def audit_privacy_command(
    config: Path,
    overrides: Sequence[str] | None,
    folder: Path | None,
    *,
    canaries: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Audit a configuration's mechanism; exit code 1 if its claim is refuted."""
    surroundings = Surroundings.with_plugins(folder)
    if plot is not None:
        require_drawable(plot)
    loaded = load_config(config, overrides or (), surroundings.sources)
    require_claim(loaded)
    run = plan_run(loaded, SilentObserver(), surroundings)
    with AuditProgress() as progress:
        audits = audit_run(AuditPlan(run, canaries), progress)
        games = audit_games(AuditPlan(run, canaries), surroundings)
    if plot is not None:
        draw(audits, plot)
    verdicts: list[ChannelAudit | Game] = [*audits, *games]
    answer(
        [one.document() for one in verdicts],
        _verdicts(audits, games),
        *([] if plot is None else [Whole(f"picture: {plot}")]),
        as_json=as_json,
    )
    if not all(one.passed for one in verdicts):
        raise typer.Exit(FAILED)


class AuditProgress(WithBar):
    """A bar on stderr with the channel and the canaries sent; one line a channel elsewhere."""

    def __init__(self) -> None:
        """Make a bar that appears with the first canary."""
        super().__init__()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, channel: str, done: int, total: int) -> None:
        """Move the channel's bar."""
        if channel not in self._tasks:
            self._tasks[channel] = self._progress.add_task(f"{channel}: canaries", total=total)
            if not self._error.is_terminal:
                self._error.print(f"{channel}: {total} canaries")
        self._progress.update(self._tasks[channel], completed=min(done, total))


def _verdicts(audits: Sequence[ChannelAudit], games: Sequence[Game]) -> Iterator[Said]:
    title = f"{audits[0].mechanism}: one release of one client, unit {audits[0].result.unit}"
    rows: list[tuple[str, ...]] = []
    for audit in audits:
        result, (low, high) = audit.result, audit.result.mu_interval
        rows.append(
            (
                audit.channel,
                *(f"{mu:.3f}" for mu in (result.claimed_mu, result.estimated_mu)),
                f"{low:.2f} to {high:.2f}",
                *map(epsilon, (result.claimed_epsilon, result.epsilon_lower_bound_95)),
                "not refuted" if audit.passed else "REFUTED",
            )
        )
    for game in games:
        verdict = "not refuted" if game.passed else "REFUTED"
        rows.append((game.channel, *["-"] * (len(COLUMNS) - 2), verdict))
    yield table(title, COLUMNS, rows)
    for audit in audits:
        result = audit.result
        yield from (f"{audit.channel}: {reason}" for reason in audit.reasons)
        if (bound := result.gaussian) is not None:
            yield (
                f"{audit.channel}: if scores are normal, epsilon is at least "
                f"{epsilon(bound.epsilon)} (95%); of a build exactly as claimed "
                f"{result.canaries} canaries show {epsilon(bound.ceiling)}, their ceiling"
            )
        more = ""
        if result.power < ENOUGH:
            mu = result.claimed_mu
            try:
                needed = canaries_needed(mu, 2.0 * mu, FAMILY_WISE_ERROR)
                more = f"; --canaries {needed} would with 0.999"
            except CalibrationError:
                more = "; no number of canaries would at this mu"
        yield (
            f"{audit.channel}: {result.canaries} canaries would have noticed halved noise with "
            f"probability {result.power:.3f}{more}"
        )
    for game in games:
        yield from (f"{game.channel}: {reason}" for reason in game.reasons)
        yield f"{game.channel}: {game.played}"


PANELS_A_ROW = 4
BINS = 32
SIDES = (("out", COLOURS[1], -0.5), ("in", COLOURS[0], 0.5))
CLAIM, REFUTED, WIDEST = INK, ALARM, 8.0


@dataclass(frozen=True, kw_only=True)
class AuditPicture(Picture):
    """The scores of canaries beside the claims, of at least one audit, each with a label."""

    name: str = "audit"
    title: str = "Scores of canaries against the claim"
    audits: Sequence[ChannelAudit]
    labels: Sequence[str]

    def figure(self) -> Figure:
        """Return the figure."""
        columns = min(PANELS_A_ROW, len(self.audits))
        rows = math.ceil(len(self.audits) / columns)
        heights = [1.6 * rows + 0.4, 0.9 + 0.24 * len(self.audits)]
        figure = new_figure(max(6.4, 2.6 * columns), sum(heights))
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        upper, lower = parts
        panels = upper.subplots(rows, columns, squeeze=False).ravel()
        for axes, audit, name in zip(panels, self.audits, self.labels, strict=False):
            _draw_scores(axes, audit, name)
        for axes in panels[len(self.audits) :]:
            axes.set_axis_off()
        panels[0].legend(fontsize=6, frameon=False, loc="upper left", handlelength=1.0)
        upper.supxlabel("score of a canary, in the deviations that the claim promises", fontsize=9)
        _draw_intervals(lower.subplots(), self.audits, self.labels)
        return figure


def draw(audits: Sequence[ChannelAudit], path: Path, labels: Sequence[str] | None = None) -> None:
    """Draw the outcomes into a file, each with a label: by default mechanism and channel."""
    names = tuple(labels or (f"{audit.mechanism}, {audit.channel}" for audit in audits))
    write_pictures([(AuditPicture(audits=tuple(audits), labels=names), path)])


def _draw_scores(axes: Axes, audit: ChannelAudit, name: str) -> None:
    mu = audit.result.claimed_mu
    # Scores far outside, of a build without noise, are counted in the last bin.
    reach = min(WIDEST, max(4.0 + mu / 2.0, float(np.abs(audit.scores).max())))
    edges = np.linspace(-reach, reach, BINS + 1)
    grid = np.linspace(-reach, reach, 241)
    for (side, colour, where), mask in zip(SIDES, (~audit.included, audit.included), strict=True):
        scores = np.clip(audit.scores[mask], -reach, reach)
        weights = np.full(scores.size, 1.0 / (max(1, scores.size) * (edges[1] - edges[0])))
        axes.hist(
            scores,
            list(edges),
            weights=weights,
            histtype="stepfilled",
            color=colour,
            alpha=0.35,
            label=f"canary {side}",
        )
        density = np.exp(-((grid - where * mu) ** 2) / 2.0) / math.sqrt(2.0 * math.pi)
        axes.plot(grid, density, color=colour, linewidth=1.3, label=f"claimed, {side}")
    axes.axvline(0.0, color=CLAIM, linestyle=":", linewidth=1.0, label="threshold")
    verdict = "" if audit.passed else ": REFUTED"
    axes.set_title(f"{name}{verdict}", fontsize=8, color=CLAIM if audit.passed else REFUTED)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelsize=7)


def _draw_intervals(axes: Axes, audits: Sequence[ChannelAudit], names: Sequence[str]) -> None:
    places = range(len(audits), 0, -1)
    ends = [bound for audit in audits for bound in audit.result.mu_interval if math.isfinite(bound)]
    limit = 1.1 * max([*ends, *(audit.result.claimed_mu for audit in audits)])
    for place, audit in zip(places, audits, strict=True):
        result, is_first = audit.result, place == len(audits)
        low, high = result.mu_interval
        colour = SIDES[1][1] if audit.passed else REFUTED
        axes.plot([low, min(high, limit)], [place, place], color=colour, linewidth=3, alpha=0.45)
        axes.plot(result.estimated_mu, place, "o", color=colour, label="seen" * is_first or None)
        axes.plot(
            [result.claimed_mu] * 2,
            [place - 0.35, place + 0.35],
            color=CLAIM,
            linewidth=1.6,
            label="claimed" * is_first or None,
        )
    axes.set_yticks(list(places), list(names))
    axes.set_xlim(0.0, limit)
    axes.set_ylim(0.3, len(audits) + 0.7)
    axes.set_xlabel("mu: estimate and interval at the family-wise error, against the claim")
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0))
