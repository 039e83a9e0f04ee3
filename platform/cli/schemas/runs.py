"""What runs print and write: the summary, its rounds, and the lines of a federation."""

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
    Shape,
    choice,
    either,
    listing,
    mapping,
    nullable,
    record,
)

PHASE: Final = choice("rounds", "collection")
MAYBE_COUNT: Final = nullable(COUNT)
MAYBE_SHARE: Final = nullable(SHARE)
ACCURACY: Final = record(
    {
        "mean": MAYBE_SHARE,
        "weighted": MAYBE_SHARE,
        "std": nullable(NOT_NEGATIVE),
        "worst": MAYBE_SHARE,
        "per_client": nullable(listing(SHARE)),
    },
    about="Over clients; all null where nothing was measured.",
)
EPSILON: Final = record({"server": SPENT, "peers": SPENT, "observer": SPENT})
EPSILON_SO_FAR: Final = record({name: nullable(SPENT) for name in ("server", "peers", "observer")})
PROTOCOL: Final = either(
    record({"name": choice("client_mean", "all_classes", "base_to_novel", "leave_one_domain_out")}),
    record({"name": choice("all_classes"), "own": ACCURACY}),
    record(
        {
            "name": choice("base_to_novel"),
            **{name: SHARE for name in ("local", "base", "novel", "harmonic_mean")},
        }
    ),
    record({"name": choice("leave_one_domain_out"), "local": SHARE, "target": ACCURACY}),
)
GROUPS: Final = record(
    {
        "kept": listing(COUNT),
        "copied": listing(listing(COUNT)),
        "counts": nullable(listing(NUMBER)),
        "std": nullable(NOT_NEGATIVE),
        "floor": NOT_NEGATIVE,
    }
)
_ROUND: Final[Mapping[str, Shape]] = {
    "round": COUNT,
    "phase": PHASE,
    "cohort": MAYBE_COUNT,
    "dropped": MAYBE_COUNT,
    "accuracy": ACCURACY,
    "validation": ACCURACY,
    "released_validation": nullable(
        record({"round": COUNT, "mean": NUMBER, "std": nullable(NOT_NEGATIVE)})
    ),
    "epsilon": EPSILON,
    "bytes_up": nullable(NOT_NEGATIVE),
    "bytes_down": nullable(NOT_NEGATIVE),
    "seconds": nullable(NOT_NEGATIVE),
    "clipping_norm": nullable(NOT_NEGATIVE),
    "clipped_fraction": nullable(NUMBER),
    "signal_to_noise": nullable(record({"low": NOT_NEGATIVE, "high": NOT_NEGATIVE})),
    "groups": nullable(GROUPS),
}
ROUND: Final = record(
    _ROUND,
    about="One round: counts of clients, mean bytes an invited client, seconds of the wall clock, "
    "and epsilon of the worst client from the first round up to this one, which holds for a round "
    "that is fixed beforehand. Null is withheld, or was not measured.",
)
SCHEDULE: Final = record(
    {
        "kind": choice("constant", "exponential", "cosine"),
        "gamma": SHARE,
        "final": SHARE,
        "rounds": COUNT,
        "warm_up_rounds": COUNT,
        "warm_up_factor": SHARE,
        "first_factor": SHARE,
        "last_factor": SHARE,
    },
    optional=("gamma", "final", "rounds", "warm_up_rounds", "warm_up_factor"),
)
TRAINING: Final = record(
    {
        "optimizer": choice("sgd", "adam", "adamw"),
        "learning_rate": NOT_NEGATIVE,
        "momentum": NOT_NEGATIVE,
        "betas": listing(SHARE),
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "batch_size": COUNT,
        "local_steps": COUNT,
        "local_epochs": COUNT,
        "schedule": SCHEDULE,
    },
    optional=("momentum", "betas", "eps", "local_steps", "local_epochs"),
)
CANARIES: Final = record(
    {
        **{name: COUNT for name in ("canaries", "directions", "dimension")},
        "relation": TEXT,
        "confidence": SHARE,
        "delta": SHARE,
        **{name: NOT_NEGATIVE for name in ("lower_bound", "claimed", "share", "ceiling")},
        "guessed_lower_bound": nullable(NOT_NEGATIVE),
        "seen_mu": NUMBER,
        **{name: BOOLEAN for name in ("is_above_claim", "is_refuted", "is_blind")},
        "claimed_mu": NOT_NEGATIVE,
        "seen_deviation": NOT_NEGATIVE,
        "share_of_noise": NOT_NEGATIVE,
        "pseudonyms": listing(TEXT),
    },
    about="What an audit's canary clients showed.",
)
_CLAIM: Final[Mapping[str, Shape]] = {
    "unit": nullable(TEXT),
    "mechanism": TEXT,
    "relation": nullable(TEXT),
    "delta": SHARE,
    "accountant": TEXT,
}
STOPPING: Final = nullable(
    record(
        {
            "as_planned": BOOLEAN,
            "attempts": COUNT,
            "planned_attempts": COUNT,
            "epsilon": nullable(EPSILON),
            "holds": TEXT,
        },
        about="Whether a run came to its planned end, and the epsilon that holds at every end.",
    )
)
SUMMARY: Final = record(
    {
        "schema_version": choice(1),
        "run_id": TEXT,
        "phase_two_of": nullable(TEXT),
        **{name: TEXT for name in ("config", "method", "dataset")},
        **_CLAIM,
        "sampling": nullable(TEXT),
        "subspace": nullable(
            record(
                {
                    "kind": TEXT,
                    "rank": COUNT,
                    "coordinates": COUNT,
                    "public_images": MAYBE_COUNT,
                }
            )
        ),
        "noise_distribution": nullable(TEXT),
        "noise_source": nullable(choice("os", "seeded")),
        "accountants": mapping(either(NOT_NEGATIVE, TEXT)),
        "rounds": listing(ROUND),
        "stopping": STOPPING,
        "final": record(
            {
                **_ROUND,
                "round": MAYBE_COUNT,
                "protocol": PROTOCOL,
                "new_clients": nullable(
                    record({"clients": COUNT, "before": ACCURACY, "after": ACCURACY})
                ),
                "expert_weights": nullable(listing(NUMBER)),
            }
        ),
        "local": record({"accuracy": ACCURACY, "protocol": nullable(PROTOCOL)}),
        "gain_over_local": nullable(NUMBER),
        "worth_of_sharing": nullable(NUMBER),
        "silent": nullable(record({"bare": SHARE, "noised": MAYBE_SHARE})),
        "phases": nullable(
            record(
                {
                    "before": ACCURACY,
                    "after": ACCURACY,
                    "seconds": record(
                        {
                            "rounds": NOT_NEGATIVE,
                            "collection": NOT_NEGATIVE,
                            "second": nullable(NOT_NEGATIVE),
                        }
                    ),
                    "cost_share": nullable(NOT_NEGATIVE),
                }
            )
        ),
        "best_on_validation": nullable(
            record(
                {"round": COUNT, "validation": NUMBER, "accuracy": ACCURACY, "protocol": PROTOCOL}
            )
        ),
        "evaluation": record({"protocol": TEXT, "selection": TEXT}),
        "training": TRAINING,
        "canaries": CANARIES,
        "warnings": listing(TEXT),
        "audit_head": record({"count": COUNT, "hash": DIGEST}),
    },
    optional=("canaries", "stopping"),
)
UNFINISHED: Final = record(
    {
        "schema_version": choice(1),
        **{name: TEXT for name in ("run_id", "status")},
        "finished": {"const": False},
        **{name: TEXT for name in ("config", "method", "dataset")},
        **_CLAIM,
        "epsilon": EPSILON_SO_FAR,
        "stopping": STOPPING,
        "planned_rounds": COUNT,
        "open_attempt": nullable(record({"round": COUNT, "attempt": COUNT})),
        "rounds": listing(ROUND),
        "warnings": listing(TEXT),
    },
    about="What can be said of a run that has not finished.",
)


def _event(name: str, fields: Mapping[str, Shape]) -> Shape:
    return record({"event": {"const": name}, **fields})


LINE: Final = either(
    _event("connected", {"client": TEXT}),
    _event("disconnected", {"client": TEXT}),
    _event("waiting", {"stage": TEXT, "clients": listing(TEXT)}),
    _event("run", {"run_id": TEXT}),
    _event("round", _ROUND),
    {
        **SUMMARY,
        "properties": {"event": {"const": "summary"}, **SUMMARY["properties"]},
        "required": ["event", *SUMMARY["required"]],
    },
)
"""Of a run with a `federation` section, one object a line; the summary comes last."""

_SPREAD: Final = record(
    {"mean": NUMBER, "deviation": nullable(NOT_NEGATIVE), "n": COUNT, "values": listing(NUMBER)}
)
SWEEP: Final = record(
    {
        "output": TEXT,
        "grid": TEXT,
        "cells": listing(
            record(
                {
                    **{name: TEXT for name in ("config", "dataset", "method")},
                    "axes": mapping({}),
                    "protocol": TEXT,
                    "training": TRAINING,
                    "seeds": listing(COUNT),
                    "runs": listing(TEXT),
                    "selections": mapping(mapping(nullable(_SPREAD))),
                    "ended_early": listing(TEXT),
                    "warnings": listing(TEXT),
                    "privacy": record(
                        {
                            **_CLAIM,
                            "sampling": nullable(TEXT),
                            "noise_distribution": nullable(TEXT),
                            "noise_source": nullable(TEXT),
                            "epsilon": EPSILON,
                        }
                    ),
                }
            )
        ),
        "failed": listing(record({"cell": TEXT, "error": TEXT})),
    }
)
