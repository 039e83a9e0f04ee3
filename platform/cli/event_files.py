"""`report --tensorboard`: a run's rounds as the event file that TensorBoard reads.

What is in it is what `metrics.csv` has, no more: columns that are empty there, since nothing was
released or the size of a secret cohort is withheld, are no scalars here. Times are the run's own,
and no name of a machine or a person is in the file or its name, so equal runs give equal files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from platform.agreement.statements import stated_document
from platform.cli.access import agreed_run
from platform.cli.output import console, print_json, printable
from platform.disk.files import write_bytes
from platform.errors import ConfigError
from platform.experiment.summary import metrics_csv
from platform.rounds.phases import in_rounds

NAME: Final = "events.out.tfevents.sotto"
"""TensorBoard knows event files by the middle of their names."""
_GROUPS: Final = ("accuracy", "epsilon", "bytes", "signal_to_noise")
"""Columns that begin so are shown together."""


class Scalar(NamedTuple):
    """One number of one round."""

    round_number: int
    tag: str
    value: float


def events_command(run_id: str, folder: Path, storage: str, *, as_json: bool) -> None:
    """Write the rounds of a run into a folder of its own below `folder`.

    Raises:
        ConfigError: If `tensorboard` is not installed.
        UnknownRun: If there is no such run.
        RunStopped: If its records do not agree; nothing is written then.
        AuditChainBroken: If its audit log was changed; likewise.
        Unwritable: If the file cannot be written.
    """
    _require_installed()
    agreed = agreed_run(run_id, storage)
    document = stated_document(agreed)
    rounds = in_rounds(document["rounds"])
    run = agreed.records.run
    file = folder / run.run_id / NAME
    found = scalars(rounds)
    write_bytes(file, event_file(found, _times(rounds, run.created)))
    if as_json:
        print_json({"file": str(file), "rounds": len(rounds), "scalars": len(found)})
    else:
        console().print(printable(f"events: {file}"), soft_wrap=True)


def scalars(rounds: Sequence[Mapping[str, Any]]) -> list[Scalar]:
    """Return the numbers of some rounds, as `metrics.csv` has them."""
    rows = csv.DictReader(io.StringIO(metrics_csv(rounds)))
    return [scalar for row in rows for scalar in _of_row(row)]


def _of_row(row: Mapping[str, str]) -> Iterator[Scalar]:
    for name, text in row.items():
        # A phase is a word, and what is withheld is empty.
        with suppress(ValueError):
            if name != "round":
                yield Scalar(int(row["round"]), _tag(name), float(text))


def _tag(column: str) -> str:
    for group in _GROUPS:
        if column.startswith(f"{group}_"):
            return f"{group}/{column.removeprefix(f'{group}_')}"
    return f"round/{column}"


def _times(rounds: Sequence[Mapping[str, Any]], created: str) -> dict[int, float]:
    """Return when each round ended, if they followed each other from the run's beginning on."""
    moment = datetime.fromisoformat(created).timestamp()
    times = {}
    for document in rounds:
        moment += float(document["seconds"] or 0.0)
        times[document["round"]] = moment
    return times


def event_file(found: Sequence[Scalar], times: Mapping[int, float]) -> bytes:
    """Return numbers as an event file; `times` are seconds since 1970 by round."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    data = io.BytesIO()
    writer = RecordWriter(data)
    begin = min(times.values(), default=0.0)
    writer.write(Event(wall_time=begin, file_version="brain.Event:2").SerializeToString())
    for round_number, tag, value in found:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        event = Event(wall_time=times[round_number], step=round_number, summary=summary)
        writer.write(event.SerializeToString())
    return data.getvalue()


def _require_installed() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--tensorboard: the package tensorboard is not installed; install it with"
            " `.venv/bin/pip install -e '.[tensorboard]'` in the checkout"
        ) from error
