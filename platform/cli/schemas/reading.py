"""What commands print that read records, look at data or try a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from platform.cli.schemas import (
    BOOLEAN,
    COUNT,
    DIGEST,
    NOT_NEGATIVE,
    NUMBER,
    SHARE,
    SPENT,
    TEXT,
    TIME,
    Shape,
    choice,
    either,
    listing,
    mapping,
    nullable,
    record,
)
from platform.cli.schemas.runs import EPSILON, EPSILON_SO_FAR, STOPPING

_TEXTS: Final = listing(TEXT)
_LIFETIME: Final = record(
    {
        "spent": nullable(SPENT),
        "left": nullable(NOT_NEGATIVE),
        "problem": nullable(TEXT),
        "holds": nullable(TEXT),
        "runs": _TEXTS,
    }
)
_TERMS: Final[Mapping[str, Shape]] = {
    "warnings": _TEXTS,
    "schema_version": choice(1),
    "run_id": TEXT,
    "phase_two_of": nullable(TEXT),
    "status": TEXT,
    "finished": BOOLEAN,
    "rounds_over": COUNT,
    "rounds_planned": COUNT,
    "mechanism": TEXT,
    "unit": nullable(TEXT),
    "relation": nullable(TEXT),
    "delta": SHARE,
    "accountant": TEXT,
    "limited_against": nullable(choice("server", "peers")),
    "target_epsilon": nullable(NOT_NEGATIVE),
    "lifetime_budget": nullable(NOT_NEGATIVE),
    "epsilon": EPSILON_SO_FAR,
    "spent": nullable(SPENT),
    "left": nullable(NOT_NEGATIVE),
    "stopping": STOPPING,
}
_CLIENT: Final = record(
    {
        "pseudonym": TEXT,
        "number": nullable(COUNT),
        "takes_part": BOOLEAN,
        "epsilon": EPSILON_SO_FAR,
        "spent": nullable(SPENT),
        "releases": COUNT,
        "reserved": record({"epsilon": SPENT, "releases": mapping(COUNT)}),
        "left": nullable(NOT_NEGATIVE),
        "lifetime": _LIFETIME,
        "rounds_left": nullable(COUNT),
    }
)
_ATTEMPT: Final = record(
    {
        "round": COUNT,
        "attempt": COUNT,
        "state": TEXT,
        "why": nullable(TEXT),
        "clients_charged": COUNT,
        "cost": SPENT,
    }
)
RUN_BUDGET: Final = record(
    {
        **_TERMS,
        "clients": listing(_CLIENT),
        "attempts": listing(_ATTEMPT),
        "forecast": nullable(record({"rounds_to_come": COUNT, "rounds_left": nullable(COUNT)})),
        "lifetime_covers": TEXT,
    }
)
BUDGETS: Final = record(
    {
        "client": nullable(TEXT),
        "runs": listing(
            either(
                record({**_TERMS, "problem": {"type": "null"}}),
                record({"run_id": TEXT, "problem": TEXT}),
            )
        ),
        "left_out": COUNT,
        "lifetime": _LIFETIME,
    },
    optional=("lifetime",),
)
ENTRIES: Final = listing(
    record(
        {
            "sequence": nullable(COUNT),
            "leaf": COUNT,
            "run": TEXT,
            "actor": TEXT,
            "action": TEXT,
            "round": nullable(COUNT),
            "channel": nullable(TEXT),
            "time": nullable(TEXT),
            "detail": {
                "type": ["object", "string"],
                "description": "What the log says; by its action. Text where it is no JSON object.",
            },
            "hash": DIGEST,
        },
        optional=("leaf",),
    )
)
VERIFIED: Final = record(
    {
        "runs": listing(
            record(
                {
                    "run": TEXT,
                    "count": nullable(COUNT),
                    "hash": nullable(DIGEST),
                    "problems": _TEXTS,
                }
            )
        ),
        "log": nullable(
            record(
                {
                    "size": nullable(COUNT),
                    "root": nullable(DIGEST),
                    "heads": COUNT,
                    "key": nullable(TEXT),
                    "problems": _TEXTS,
                }
            )
        ),
        "problems": _TEXTS,
    },
    about="Nothing is wrong where all lists of problems are empty; else the exit code is 3.",
)
HEAD: Final = record(
    {"origin": TEXT, "size": COUNT, "root": DIGEST, "key": TEXT, "checkpoint": TEXT}
)
PROOF: Final = record(
    {
        "leaf": COUNT,
        "kind": TEXT,
        "run": TEXT,
        "data": TEXT,
        "says": TEXT,
        "salt": nullable(TEXT),
        "hash": DIGEST,
        "proof": _TEXTS,
        "size": COUNT,
        "root": DIGEST,
        "key": TEXT,
        "checkpoint": TEXT,
    }
)
EXPORTED_LOG: Final = record({"size": COUNT, "root": DIGEST, "files": _TEXTS})
WATCHED: Final = record(
    {
        "leaf": COUNT,
        "kind": TEXT,
        "says": {"type": ["array", "object"], "description": "The leaf, as the log has it."},
    }
)
CACHED: Final = listing(
    record(
        {
            "model": nullable(TEXT),
            "fingerprint": nullable(TEXT),
            "kind": TEXT,
            "row_shape": nullable(listing(COUNT)),
            "images": COUNT,
            "bytes": COUNT,
            "last_used": nullable(TEXT),
        }
    )
)
CLEARED: Final = record({"images": COUNT, "bytes": COUNT})
ENROLMENT: Final = record(
    {
        "serial": COUNT,
        "fingerprint": TEXT,
        "members": listing(
            record(
                {
                    "name": TEXT,
                    "fingerprint": nullable(TEXT),
                    "node": nullable(TEXT),
                    "retired_keys": COUNT,
                }
            )
        ),
    }
)
SECAGG: Final = listing(
    record(
        {
            "adversary": choice("semi_honest", "active"),
            "graph": choice("complete", "k_regular"),
            "rule": TEXT,
            **{
                name: nullable(COUNT)
                for name in ("neighbours", "threshold", "corrupt", "smallest_sum")
            },
            "security_bits": nullable(NUMBER),
            "correctness_bits": nullable(NUMBER),
            "bytes_up": COUNT,
            "chosen": BOOLEAN,
            "refused": nullable(TEXT),
        },
        optional=("security_bits", "correctness_bits", "bytes_up"),
    )
)
REMOVED: Final = record(
    {
        "run_id": TEXT,
        "client": TEXT,
        "pseudonym": nullable(TEXT),
        "action": choice("client.left", "client.removed"),
        "time": TIME,
        "after_round": COUNT,
        "generations": COUNT,
    }
)
EXPORTED: Final = record({"run_id": TEXT, "files": _TEXTS, "tensors": _TEXTS})
PREDICTED: Final = listing(
    record(
        {"image": TEXT, "text": TEXT, "class": TEXT, "probability": SHARE},
        optional=("image", "text"),
    )
)
EVENTS: Final = record({"file": TEXT, "rounds": COUNT, "scalars": COUNT})
MANIFEST: Final = record(
    {
        "path": TEXT,
        "kind": TEXT,
        "schema": TEXT,
        "made": TEXT,
        "pseudonym": TEXT,
        "heads": mapping(listing(either(COUNT, DIGEST))),
        "members": _TEXTS,
    },
    optional=("pseudonym", "heads"),
)
UPGRADED: Final = listing(record({"path": TEXT, "before": TEXT, "after": TEXT}))
CHARGES: Final = record({"path": TEXT, "pseudonym": TEXT, "charges": mapping(COUNT)})
RECEIPTS: Final = record(
    {
        "runs": listing(
            record(
                {
                    "run": TEXT,
                    "log": TEXT,
                    "receipts": COUNT,
                    "rounds": COUNT,
                    "epsilon": nullable(EPSILON),
                    "stated": nullable(EPSILON),
                    "charged": COUNT,
                    "uploads": listing(
                        record({"round": COUNT, "attempt": COUNT, "sha256": DIGEST})
                    ),
                    "problems": _TEXTS,
                }
            )
        ),
        "compared": listing(record({"file": TEXT, "common": COUNT, "problems": _TEXTS})),
        "uploads": listing(
            either(
                record(
                    {
                        "file": TEXT,
                        "run": TEXT,
                        "round": COUNT,
                        "attempt": COUNT,
                        "sha256": DIGEST,
                    }
                ),
                record({"file": TEXT, "run": {"type": "null"}, "sha256": DIGEST}),
            )
        ),
    },
    about="The exit code is 3 where there are problems, or an upload that no receipt tells of.",
)


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


def _game(*counts: str, **more: Shape) -> Shape:
    """Return a game that no canary is sent in, with its numbers."""
    shared = {"channel": TEXT, "passed": BOOLEAN, "reasons": _TEXTS}
    return record({**shared, **more, **dict.fromkeys(counts, COUNT)})


AUDITED: Final = listing(
    either(
        _CHANNEL,
        _game("offers", "accepted", "split"),
        _game("folders", mechanism=TEXT),
        _game("rounds", "failed", "split", mechanism=TEXT),
        _game("rounds", "lost", mechanism=TEXT),
    )
)
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
