"""One client's charges, as a document that the coordinator's operator hands to the client's owner.

A client needs the document if its store came back from a backup: the coordinator's ledger is the
only record of its later releases. The document names charges and attempts, never the contents of
uploads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final, NoReturn

from platform.errors import ConfigError
from storage import LedgerRow
from storage.records import COHORT

FORMAT: Final = "sotto-charges"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 28
_LEFT_OUT: Final = frozenset(("run_id", "pseudonym", "status", *COHORT))
"""Columns missing from rows: stated once for all rows, or known to the coordinator only."""
_NAMES: Final = tuple(f.name for f in fields(LedgerRow) if f.name not in _LEFT_OUT)


@dataclass(frozen=True)
class RunCharges:
    """A client's charges in one run.

    Attributes:
        newest: The newest (round, attempt) that the coordinator has begun.
        rows: The client's charges, each of status ``reserved``.
    """

    newest: tuple[int, int]
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True)
class Charges:
    """All charges of one client.

    Attributes:
        made: When the coordinator's ledger was read, with a time zone.
        runs: By name, all runs to which the client was ever invited.
    """

    pseudonym: str
    made: datetime
    runs: Mapping[str, RunCharges]


def encode_charges(charges: Charges) -> bytes:
    """Return charges as a JSON document in UTF-8."""
    runs: dict[str, Any] = {}
    for run_id, run in sorted(charges.runs.items()):
        rows = [{n: value for n, value in asdict(row).items() if n in _NAMES} for row in run.rows]
        for row in rows:
            # JSON has no infinity.
            row["clipping_norm"] = (
                None if math.isinf(row["clipping_norm"]) else row["clipping_norm"]
            )
        runs[run_id] = {"newest": list(run.newest), "rows": rows}
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "pseudonym": charges.pseudonym}
    head |= {"made": charges.made.isoformat()}
    return (json.dumps({**head, "runs": runs}, indent=1, allow_nan=False) + "\n").encode()


def decode_charges(data: bytes) -> Charges:
    """Return the charges in a document, or `ConfigError`; `catch_up` checks their rows."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError("it is too long")
        document = json.loads(data.decode(), parse_constant=_refuse)
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError("it is of another format")
        pseudonym = _text(document["pseudonym"])
        made = datetime.fromisoformat(document["made"])
        if made.utcoffset() is None:
            raise ValueError("its time has no zone")
        runs: dict[str, RunCharges] = {}
        for run_id, found in document["runs"].items():
            number, attempt = found["newest"]
            rows = tuple(_read_row(_text(run_id), pseudonym, row) for row in found["rows"])
            runs[_text(run_id)] = RunCharges((_count(number), _count(attempt)), rows)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "CHARGES: these are no charges; valid is a file that the coordinator's command "
            "`charges` has written"
        ) from error
    return Charges(pseudonym, made, runs)


def _read_row(run_id: str, pseudonym: str, found: Mapping[str, Any]) -> LedgerRow:
    if set(found) != set(_NAMES):
        raise ValueError("a row has other facts")
    norm = found["clipping_norm"]
    facts = {**found, "clipping_norm": math.inf if norm is None else norm}
    return LedgerRow(run_id=run_id, pseudonym=pseudonym, **facts)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a name is not a text, or is empty")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("a number is not a whole number from 0")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
