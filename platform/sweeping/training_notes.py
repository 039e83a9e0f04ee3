"""Which optimiser the rows of a table were trained with, in words."""

from __future__ import annotations

from collections.abc import Sequence

from platform.experiment.optimisers import optimizer_words
from platform.sweeping.tidy import Record


def training_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a line for each optimiser, beginning with whose it is where there are several."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(optimizer_words(record.training), []).append(record)
    if len(runs) == 1:
        return tuple(runs)
    return tuple(f"{'; '.join(_names(of, records))}: {words}" for words, of in runs.items())


def _names(of: Sequence[Record], records: Sequence[Record]) -> list[str]:
    """Return whose runs these are: a method's name alone where all its runs are among them."""
    others = {record.method for record in records if record not in of}
    return list(dict.fromkeys(r.method if r.method not in others else _whole(r) for r in of))


def _whole(record: Record) -> str:
    values = "".join(f", {key}={value}" for key, value in record.axes)
    return f"{record.method} in {record.config}{values}"
