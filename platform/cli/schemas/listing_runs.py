"""What commands print that list runs, put them side by side, draw or prune them."""

from __future__ import annotations

from typing import Final

from platform.cli.schemas.runs import EPSILON_SO_FAR
from platform.cli.schemas.shapes import (
    BOOLEAN,
    COUNT,
    NUMBER,
    SHARE,
    TEXT,
    TIME,
    Shape,
    listing,
    mapping,
    nullable,
    record,
)

_WHATEVER: Final[Shape] = {"description": "A setting's value, of the configuration's own type."}
_LISTED: Final = listing(
    record(
        {
            **{name: TEXT for name in ("run", "config", "status")},
            "pruned": BOOLEAN,
            "created": TIME,
            "rounds": COUNT,
            "planned_rounds": nullable(COUNT),
            "phase_two_of": nullable(TEXT),
            "method": nullable(TEXT),
            "dataset": nullable(TEXT),
            "accuracy": nullable(SHARE),
            "epsilon": nullable(EPSILON_SO_FAR),
            "problem": nullable(TEXT),
        }
    )
)
_PRUNED: Final = record(
    {
        "runs": listing(
            record(
                {
                    "run_id": TEXT,
                    "status": TEXT,
                    "states": listing(COUNT),
                    "generations": listing(COUNT),
                    "clients": COUNT,
                    "is_pruned": BOOLEAN,
                }
            )
        ),
        "erased": BOOLEAN,
        "bytes_freed": {"type": "integer"},
    },
    about="With --prune: what would be erased, or was.",
)
RUNS: Final[Shape] = {"anyOf": [_LISTED, _PRUNED]}
COMPARED: Final = record(
    {
        "runs": listing(
            record(
                {
                    **{name: TEXT for name in ("run", "status", "method", "dataset", "mechanism")},
                    "rounds": COUNT,
                    "accuracy": record(
                        {name: nullable(SHARE) for name in ("mean", "weighted", "std", "worst")}
                    ),
                    "gain_over_local": nullable(NUMBER),
                    "epsilon": EPSILON_SO_FAR,
                    "unit": nullable(TEXT),
                    "relation": nullable(TEXT),
                    "delta": SHARE,
                }
            )
        ),
        "differences": mapping(mapping(_WHATEVER)),
        "epsilons_differ_in": listing(TEXT),
    }
)
PLOTTED: Final = record({"files": listing(TEXT), "missing": mapping(TEXT)})
STARTED: Final = record({"written": listing(TEXT), "next": TEXT})
