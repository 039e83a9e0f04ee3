"""The privacy budget report of a run, as `report --format json` makes it."""

from __future__ import annotations

from typing import Final

from platform.cli.schemas.shapes import (
    COUNT,
    NUMBER,
    TEXT,
    Shape,
    choice,
    either,
    listing,
    nullable,
    record,
)
from platform.rounds.documents import ADVERSARIES

_TEXTS: Final = listing(TEXT)
_NUMBER: Final[Shape] = {"type": "integer", "minimum": 1}
_VALUE: Final = nullable(either(NUMBER, {"const": "inf"}))
_HEAD: Final[Shape] = {
    "description": "The head of an audit log: how many entries, and the last one's digest.",
    "type": "string",
    "pattern": "^[0-9]+:[0-9a-f]{64}$",
}
_FIGURE: Final = record(
    {"text": TEXT, "value": either(_VALUE, _HEAD), "rests_on": _NUMBER},
    about="A number in the text, and the number of what it rests on.",
)
_WORDS: Final = either(TEXT, record({"text": TEXT, "numbers": listing(_FIGURE)}))
_FACTS: Final = record(
    {"kind": choice("facts"), "rows": listing(record({"term": TEXT, "is": _WORDS}))}
)
_LINE: Final = record({"label": TEXT, "points": listing(listing(NUMBER))})
_BLOCK: Final = either(
    record({"kind": choice("paragraph"), "text": _WORDS}),
    record({"kind": choice("list"), "items": listing(_WORDS)}),
    _FACTS,
    record(
        {
            "kind": choice("table"),
            "caption": TEXT,
            "columns": _TEXTS,
            "rows": listing(listing(_WORDS)),
            "anchors": _TEXTS,
        }
    ),
    record({"kind": choice("plot"), "title": TEXT, "says": TEXT, "lines": listing(_LINE)}),
)
_BASIS: Final = record(
    {
        "number": _NUMBER,
        "what": TEXT,
        "run": nullable(TEXT),
        "rows": listing(record({"round": COUNT, "attempt": COUNT, "channel": TEXT})),
        "pseudonyms": nullable(_TEXTS),
        "audit_entries": listing(COUNT),
        "command": nullable(TEXT),
    }
)
PRIVACY_REPORT: Final = record(
    {
        "warnings": _TEXTS,
        "schema_version": choice(1),
        "run_id": TEXT,
        "title": TEXT,
        "lead": _FACTS,
        "right_guesses_of_100_at_most": record({name: _VALUE for name in ADVERSARIES}),
        "sections": listing(record({"anchor": TEXT, "title": TEXT, "blocks": listing(_BLOCK)})),
        "rests_on": listing(_BASIS),
    }
)
