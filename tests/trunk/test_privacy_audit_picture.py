"""The picture of an audit: every channel is in it, and equal outcomes give equal bytes."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from platform.cli.trying import draw, require_drawable
from platform.errors import ConfigError
from platform.privacy_auditing.outcome import ChannelAudit, standardise
from privacy.auditing import RecordScores, gaussian_claim, judge_record_unit
from tests.repository._source import ROOT


def outcome(claimed: float = 1.0, real: float = 1.0, canaries: int = 1000) -> ChannelAudit:
    rng = np.random.default_rng(4)
    included = rng.random(canaries) < 0.5
    scores = np.where(included, real / 2, -real / 2) + rng.standard_normal(canaries)
    table = RecordScores(("update",), (scores / claimed + 0.5)[:, None], included)
    result = judge_record_unit(table, gaussian_claim(claimed, 1e-5))
    return ChannelAudit(
        channel="sum",
        mechanism="upload_noise",
        result=result,
        scores=scores,
        included=included,
        problems=(),
    )


@pytest.mark.parametrize("number", [1, 2, 6])
def test_every_channel_is_drawn(tmp_path, number):
    audits = [outcome() for _ in range(number)]
    path = tmp_path / "audit.svg"
    draw(audits, path, [f"channel-{i}" for i in range(number)])
    text = path.read_text("utf-8")
    # Each name stands above its panel and beside its interval.
    for index in range(number):
        assert len(re.findall(f"<!-- channel-{index} -->", text)) == 2
    assert "refuted" not in text.lower()


def test_a_refuted_channel_is_named(tmp_path):
    draw([outcome(real=3.0)], tmp_path / "audit.svg")
    assert "upload_noise, sum: REFUTED" in (tmp_path / "audit.svg").read_text("utf-8")


@pytest.mark.parametrize("real", [0.0, 40.0])
def test_what_lies_far_outside_is_drawn(tmp_path, real):
    draw([outcome(real=real)], tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_equal_outcomes_give_equal_files(tmp_path):
    for name in ("first.svg", "second.svg"):
        draw([outcome(), outcome(2.0)], tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("first.svg", "second.svg"))
    assert first == second
    assert b"<dc:date>" not in first


def test_other_places_and_formats_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.svg or \.png"):
        require_drawable(tmp_path / "audit.jpeg")
    with pytest.raises(ConfigError, match="no folder"):
        require_drawable(tmp_path / "nowhere" / "audit.svg")
    require_drawable(tmp_path / "audit.png")


def test_scores_are_brought_to_the_claims_scale():
    """Canaries 2C = 2 apart under a claimed mu of 3: one deviation is 2/3."""
    scaled = standardise(np.array([1.0, 2.0, 0.0]), threshold=1.0, distance=2.0, mu=3.0)
    assert scaled.tolist() == [0.0, 1.5, -1.5]


def test_the_commands_do_not_wait_for_the_picture():
    code = (
        "import sys, platform.cli.app, platform.cli.trying; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
