"""The picture of an audit: what was guessed from, beside what is claimed.

One panel a channel with the scores of canaries that were in and out, the two normal laws of the
claim and the threshold; below them every channel's mu with its interval against the claim. Drawn
without a window system, and to the same bytes for the same outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from platform.pictures.canvas import ALARM, COLOURS, INK, require_drawable, write_picture
from platform.privacy_auditing.outcome import ChannelAudit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AuditPicture", "draw", "require_drawable"]

COLUMNS = 4
BINS = 32
SIDES = (("out", COLOURS[1], -0.5), ("in", COLOURS[0], 0.5))
CLAIM, REFUTED, WIDEST = INK, ALARM, 8.0


@dataclass(frozen=True)
class AuditPicture:
    """What was guessed from, beside what is claimed.

    Attributes:
        audits: At least one.
        labels: What each is called.
        name: Of the file, without a suffix.
        title: What it shows, in words.
    """

    audits: Sequence[ChannelAudit]
    labels: Sequence[str]
    name: str = "audit"
    title: str = "Scores of canaries against the claim"

    def figure(self) -> Figure:
        """Return the figure."""
        from matplotlib.figure import Figure

        columns = min(COLUMNS, len(self.audits))
        rows = math.ceil(len(self.audits) / columns)
        heights = [1.6 * rows + 0.4, 0.9 + 0.24 * len(self.audits)]
        figure = Figure(figsize=(max(6.4, 2.6 * columns), sum(heights)), layout="constrained")
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
    """Draw the outcomes into a file.

    Args:
        audits: At least one.
        path: Ends in .svg or .png.
        labels: What each is called; by default mechanism and channel.

    Raises:
        ConfigError: If it cannot be written.
    """
    names = tuple(labels or (f"{audit.mechanism}, {audit.channel}" for audit in audits))
    write_picture(AuditPicture(tuple(audits), names), path)


def _draw_scores(axes: Axes, audit: ChannelAudit, name: str) -> None:
    guesses, mu = audit.guesses, audit.result.claimed_mu
    # Scores far outside, of a build without noise, are counted in the last bin.
    reach = min(WIDEST, max(4.0 + mu / 2.0, float(np.abs(guesses.scores).max())))
    edges = np.linspace(-reach, reach, BINS + 1)
    grid = np.linspace(-reach, reach, 241)
    for (side, colour, where), mask in zip(
        SIDES, (~guesses.included, guesses.included), strict=True
    ):
        scores = np.clip(guesses.scores[mask], -reach, reach)
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
