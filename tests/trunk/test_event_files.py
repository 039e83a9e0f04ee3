"""Event files for TensorBoard: what `metrics.csv` has, read back by TensorBoard's own reader."""

from __future__ import annotations

import csv
import io
import math
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.cli.event_files import NAME, scalars
from platform.experiment.summary import metrics_csv
from tests.trunk._runs import Answer, Command, Finished
from tests.trunk._tampering import edit

TAGS = {
    "round/cohort",
    "round/dropped",
    "round/seconds",
    "accuracy/mean",
    "accuracy/weighted",
    "accuracy/std",
    "accuracy/worst",
    "epsilon/server",
    "epsilon/peers",
    "epsilon/observer",
    "bytes/up",
    "bytes/down",
}
"""What a run without validation, and without a clipping norm that adapts, has numbers of."""


def read_back(file: Path) -> dict[tuple[str, int], float]:
    """Numbers by tag and step, as TensorBoard reads them."""
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="tensorboard is not installed (pip install -e '.[tensorboard]')",
    )
    found: dict[tuple[str, int], float] = {}
    for event in loader.LegacyEventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    return found


def test_scalars_are_the_columns_of_the_metrics(noised_run: Finished) -> None:
    rounds = noised_run.summary["rounds"]
    found = scalars(rounds)
    assert {scalar.tag for scalar in found} >= TAGS
    rows = {int(row["round"]): row for row in csv.DictReader(io.StringIO(metrics_csv(rounds)))}
    columns = {tag.removeprefix("round/").replace("/", "_"): tag for tag in TAGS}
    for number, row in rows.items():
        told = {s.tag: s.value for s in found if s.round_number == number}
        for column, tag in columns.items():
            assert told[tag] == float(row[column])


def test_what_is_withheld_is_no_scalar(noised_run: Finished) -> None:
    first = dict(noised_run.summary["rounds"][0])
    first["cohort"] = None
    first["accuracy"] = dict.fromkeys(first["accuracy"])
    first["epsilon"] = {**first["epsilon"], "server": "inf"}
    found = {scalar.tag: scalar.value for scalar in scalars([first])}
    assert not found.keys() & {"round/cohort", "accuracy/mean", "accuracy/worst", "round/phase"}
    assert math.isinf(found["epsilon/server"])


def test_it_is_refused_where_the_package_is_missing(
    sotto: Command, noised_run: Finished, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    answer = asked(sotto, noised_run, tmp_path / "events")
    assert answer.code == 2 and ".[tensorboard]" in answer.err
    assert answer.err.count("\n") == 1 and not (tmp_path / "events").exists()


def test_it_stands_alone(sotto: Command, noised_run: Finished, tmp_path: Path) -> None:
    answer = asked(sotto, noised_run, tmp_path / "events", "--format", "json")
    assert answer.code == 2 and "it stands alone" in answer.err


def asked(sotto: Callable[..., Answer], run: Finished, folder: Path, *more: str) -> Answer:
    storage = ("--storage", run.storage.url)
    return sotto("report", run.run_id, "--tensorboard", str(folder), *storage, *more)


@pytest.fixture
def library() -> Any:
    """TensorBoard, where it is installed."""
    return pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed (pip install -e '.[tensorboard]')"
    )


def test_tensorboard_reads_what_the_run_gave(
    library: Any, sotto: Command, noised_run: Finished, tmp_path: Path
) -> None:
    answer = asked(sotto, noised_run, tmp_path / "events", "--json")
    assert answer.code == 0, answer.err
    file = tmp_path / "events" / noised_run.run_id / NAME
    assert Path(answer.document["file"]) == file
    found = read_back(file)
    expected = {(s.tag, s.round_number): s.value for s in scalars(noised_run.summary["rounds"])}
    assert found == pytest.approx(expected, rel=1e-6)
    assert answer.document["scalars"] == len(expected)
    # The same again: the same bytes, in its place.
    whole = file.read_bytes()
    assert asked(sotto, noised_run, tmp_path / "events").code == 0
    assert file.read_bytes() == whole and [f.name for f in file.parent.iterdir()] == [NAME]


def test_nothing_but_numbers_is_in_the_file(
    library: Any, sotto: Command, noised_run: Finished, tmp_path: Path
) -> None:
    assert asked(sotto, noised_run, tmp_path / "events").code == 0
    data = (tmp_path / "events" / noised_run.run_id / NAME).read_bytes()
    rows = noised_run.storage.rows("SELECT DISTINCT pseudonym FROM ledger")
    assert len(rows) >= 2
    for (pseudonym,) in rows:
        assert pseudonym.encode() not in data
    assert socket.gethostname().encode() not in data
    tags = {s.tag for s in scalars(noised_run.summary["rounds"])}
    for tag in tags:
        data = data.replace(tag.encode(), b"")
    # What is left has no word of five letters but those of the version of the format.
    words = "".join(chr(c) if chr(c).isalpha() and c < 128 else " " for c in data).split()
    assert [word for word in words if len(word) > 4] == ["brain", "Event"]


def test_of_a_run_that_was_tampered_with_nothing_is_written(
    library: Any, sotto: Command, own_copy: Finished, tmp_path: Path
) -> None:
    from sqlalchemy import text

    edit(own_copy.storage.file, lambda c: c.execute(text("UPDATE audit SET actor = 'x'")))
    answer = asked(sotto, own_copy, tmp_path / "events")
    assert answer.code == 3 and not (tmp_path / "events").exists()
