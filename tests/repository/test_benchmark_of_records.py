"""The benchmark of records looks into what it measures, so it breaks where that is renamed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repository._source import ROOT


@pytest.mark.slow
def test_it_runs_and_measures_each_part():
    command = [sys.executable, "benchmarks/records.py", "--events", "12000", "--rounds", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("leaves, tiles, heads", "receipts in all", "verified", "longest transaction"):
        (line,) = (line for line in done.stdout.splitlines() if part in line)
        assert float(line.split("|")[2].split()[0].replace(",", "")) > 0.0
