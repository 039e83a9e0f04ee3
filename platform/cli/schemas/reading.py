"""What commands of the coordinator print that read records, or write files from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from platform.cli.schemas.runs import EPSILON, EPSILON_SO_FAR, STOPPING
from platform.cli.schemas.shapes import (
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
