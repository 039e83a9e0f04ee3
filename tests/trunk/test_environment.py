"""Where a run took place, as its records and results say."""

from __future__ import annotations

import subprocess

import pytest

from platform.experiment.environment import environment
from tests.repository._source import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_the_commit_is_the_checkouts():
    command = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert environment("cpu")["commit"] == told
