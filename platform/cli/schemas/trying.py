"""What commands print that look at data, or try a configuration, before there is a run."""

from __future__ import annotations

from typing import Final

from platform.cli.schemas.shapes import (
    BOOLEAN,
    COUNT,
    NOT_NEGATIVE,
    NUMBER,
    SHARE,
    SPENT,
    TEXT,
    either,
    listing,
    mapping,
    nullable,
    record,
)

_TEXTS: Final = listing(TEXT)
CLIPPING: Final = record(
    {
        "clipping_norm": NOT_NEGATIVE,
        "configured": nullable(NOT_NEGATIVE),
        "public": record({"dataset": TEXT, "root": nullable(TEXT), "examples": COUNT}),
        "values": COUNT,
        "subspace": nullable(TEXT),
        "rounds": listing(
            record(
                {
                    "round": COUNT,
                    "uploads": COUNT,
                    "norms": mapping(NOT_NEGATIVE),
                    "clipped": SHARE,
                    "clipped_as_configured": nullable(SHARE),
                }
            )
        ),
    }
)
_CHANNEL: Final = record(
    {
        "channel": TEXT,
        "mechanism": TEXT,
        "unit": TEXT,
        "claimed_mu": NOT_NEGATIVE,
        "estimated_mu": NUMBER,
        "mu_interval": listing(either(NUMBER, {"const": "inf"})),
        "epsilon_lower_bound_95": NOT_NEGATIVE,
        "claimed_epsilon": SPENT,
        "delta": SHARE,
        "clip_respected": BOOLEAN,
        "canaries": COUNT,
        "power": SHARE,
        "is_tight": BOOLEAN,
        "passed": BOOLEAN,
        "reasons": _TEXTS,
        "array": nullable(TEXT),
        "gaussian": nullable(record({"epsilon": NOT_NEGATIVE, "ceiling": NOT_NEGATIVE})),
    }
)
_FAILURES: Final = record(
    {
        "channel": TEXT,
        "mechanism": TEXT,
        "rounds": COUNT,
        "failed": COUNT,
        "split": COUNT,
        "passed": BOOLEAN,
        "reasons": _TEXTS,
    }
)
_PEERS: Final = record(
    {
        "channel": TEXT,
        "mechanism": TEXT,
        "rounds": COUNT,
        "lost": COUNT,
        "passed": BOOLEAN,
        "reasons": _TEXTS,
    }
)
AUDITED: Final = listing(either(_CHANNEL, _FAILURES, _PEERS))
_PARTS: Final = ("train", "validation", "test")
HOLDINGS: Final = record(
    {
        "dataset": TEXT,
        "partition": {
            "type": "object",
            "description": "The keys of `task.partition` that are set.",
        },
        "shots": nullable(COUNT),
        "validation_share": SHARE,
        "protocol": TEXT,
        "held_out_domain": nullable(TEXT),
        "senses": nullable(TEXT),
        "seeds": record({name: COUNT for name in ("class_map", "shots", "split", "validation")}),
        "classes": _TEXTS,
        "domains": _TEXTS,
        "clients": listing(
            record(
                {
                    "client": TEXT,
                    "sense": TEXT,
                    "new": BOOLEAN,
                    "classes": COUNT,
                    **{part: COUNT for part in _PARTS},
                    **{f"{part}_by_class": listing(COUNT) for part in _PARTS},
                    "by_domain": mapping(COUNT),
                },
                optional=("sense",),
            )
        ),
        "common": mapping(COUNT),
    }
)
_COUNTED: Final = record({"total": COUNT, "by_class": mapping(COUNT), "by_domain": mapping(COUNT)})
_FOUND: Final = record({"number": COUNT, "first": _TEXTS})
CHECKED_FOLDER: Final = record(
    {
        "dataset": TEXT,
        "sound": BOOLEAN,
        "expected": _TEXTS,
        "source": TEXT,
        "refusal": nullable(TEXT),
        "recognised": _TEXTS,
        "counts": nullable(mapping(_COUNTED)),
        **{
            name: _FOUND
            for name in ("damaged", "repeated", "contradictory", "copies", "few", "slips")
        },
    },
    about="The exit code is 1 where it is not sound.",
)
