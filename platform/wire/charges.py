"""What a coordinator charged one client, as a document that its operator hands to the client's.

A client needs it if its store came back from a backup: the coordinator's ledger is the only record
of its later releases. The document names charges and attempts, never the contents of uploads.
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

FORMAT: Final = "sotto-charges"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 28
COHORT: Final = ("cohort_kind", "cohort_size", "cohort_population", "cohort_drawn")
_LEFT_OUT: Final = frozenset(("run_id", "pseudonym", "status", *COHORT))
"""Said once for all rows, or how the coordinator drew its cohorts, which is its own knowledge."""
_NAMES: Final = tuple(f.name for f in fields(LedgerRow) if f.name not in _LEFT_OUT)


@dataclass(frozen=True)
class RunCharges:
    """One run of it.

    Attributes:
        newest: The newest (round, attempt) that the coordinator has begun.
        rows: What the client is charged, each of status ``reserved``.
    """

    newest: tuple[int, int]
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True)
class Charges:
    """What one client was charged.

    Attributes:
        pseudonym: The client's.
        made: When the coordinator's ledger was read, with a time zone.
        runs: By name, all runs that it was ever asked to take part in.
    """

    pseudonym: str
    made: datetime
    runs: Mapping[str, RunCharges]


def encode_charges(charges: Charges) -> bytes:
    """Return charges as a JSON document in UTF-8."""
    runs = {
        run_id: {"newest": list(run.newest), "rows": [_written(row) for row in run.rows]}
        for run_id, run in sorted(charges.runs.items())
    }
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "pseudonym": charges.pseudonym}
    head |= {"made": charges.made.isoformat()}
    return (json.dumps({**head, "runs": runs}, indent=1, allow_nan=False) + "\n").encode()


def decode_charges(data: bytes) -> Charges:
    """Return the charges that a document holds; their rows are checked when they are taken over.

    Raises:
        ConfigError: If it holds none.
    """
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
        runs = {_text(k): _read_run(k, pseudonym, v) for k, v in document["runs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "CHARGES: these are no charges; valid is a file that the coordinator's command "
            "`charges` has written"
        ) from error
    return Charges(pseudonym, made, runs)


def _written(row: LedgerRow) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(row).items() if name in _NAMES}
    # JSON has no infinity.
    return {**facts, "clipping_norm": None if math.isinf(row.clipping_norm) else row.clipping_norm}


def _read_run(run_id: str, pseudonym: str, found: Mapping[str, Any]) -> RunCharges:
    number, attempt = found["newest"]
    rows = tuple(_read_row(run_id, pseudonym, row) for row in found["rows"])
    return RunCharges((_count(number), _count(attempt)), rows)


def _read_row(run_id: str, pseudonym: str, found: Mapping[str, Any]) -> LedgerRow:
    if set(found) != set(_NAMES):
        raise ValueError("a row has other facts")
    norm = found["clipping_norm"]
    facts = {**found, "clipping_norm": math.inf if norm is None else norm}
    return LedgerRow(run_id=run_id, pseudonym=pseudonym, **facts)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a name is none")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("a number is none")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
