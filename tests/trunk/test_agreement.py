"""Records of a run that were edited: resume, report and `audit verify` say which, and where."""

from __future__ import annotations

import pytest

from platform.agreement import problems_of
from storage import open_database
from tests.trunk._runs import Finished


def test_sound_run_agrees(noised_run: Finished, plain_run: Finished) -> None:
    for run in (noised_run, plain_run):
        with open_database(run.storage.url) as database:
            assert problems_of(database, run.run_id) == []
