"""Every schema by its name: what a command prints under `--json`, and what a run writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from methods.interface.registry import MethodInfo
from platform.cli.ending import Failure
from platform.cli.output import console, print_json, table
from platform.cli.schemas import (
    BOOLEAN,
    COUNT,
    NUMBER,
    SHARE,
    SPENT,
    TEXT,
    TIME,
    Shape,
    choice,
    derived,
    either,
    listing,
    mapping,
    nullable,
    reading,
    record,
    runs,
)
from platform.cli.schemas.runs import EPSILON_SO_FAR
from platform.config import RunConfig
from platform.config.run import Key
from platform.data.catalogue import DatasetInfo
from platform.errors import ConfigError, listed
from platform.holder.checking import Check
from platform.holder.own_limits import Spending
from platform.holder.store import Leaving
from platform.relay.packets import ClientStatus
from platform.rounds.documents import ADVERSARIES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PROGRAMS: Final = ("coordinator", "client")

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


@dataclass(frozen=True)
class Published:
    """One schema.

    Attributes:
        title: What it is of.
        shape: Makes it.
    """

    title: str
    shape: Callable[[], Shape]


def _printed(*commands: str, by: str = "coordinator") -> str:
    named = " or ".join(f"`{command}`" for command in commands)
    return f"What {named} of the {by} prints under --json"


def _with(shape: Shape, fields: Mapping[str, Shape]) -> Shape:
    """Return a record that has more keys, or other ones in place of its own."""
    properties = {**shape["properties"], **fields}
    return {**shape, "properties": properties, "required": list(properties)}


def _spending() -> Shape:
    left = {"left": nullable({"type": "number"}), "epsilon": nullable(SPENT)}
    return _with(derived(Spending), left)


def _titles() -> Shape:
    return listing(record({"name": TEXT, "title": TEXT}))


def _constant(shape: Shape) -> Callable[[], Shape]:
    return lambda: shape


def _plain(name: str, shape: Shape) -> tuple[str, Published]:
    program, *words = name.split(".")
    command = "CONFIG" if not words else " ".join(words)
    return name, Published(_printed(command, by=program), _constant(shape))


_KEY: Final = record({"public": TEXT, "fingerprint": TEXT})
_SIMPLE: Final = (
    _plain("coordinator.sweep", runs.SWEEP),
    _plain("coordinator.report", either(runs.SUMMARY, runs.UNFINISHED, reading.EVENTS)),
    _plain("coordinator.budget", either(reading.RUN_BUDGET, reading.BUDGETS)),
    _plain("coordinator.runs", RUNS),
    _plain("coordinator.compare", COMPARED),
    _plain("coordinator.plot", PLOTTED),
    _plain("coordinator.new.method", STARTED),
    _plain("coordinator.audit.query", reading.ENTRIES),
    _plain("coordinator.audit.verify", reading.VERIFIED),
    _plain("coordinator.audit.head", reading.HEAD),
    _plain("coordinator.audit.prove", reading.PROOF),
    _plain("coordinator.audit.export", reading.EXPORTED_LOG),
    _plain("coordinator.audit.watch", reading.WATCHED),
    _plain("coordinator.cache.list", reading.CACHED),
    _plain("coordinator.cache.clear", reading.CLEARED),
    *(
        _plain(f"coordinator.enrolment.{word}", reading.ENROLMENT)
        for word in ("create-for-development", "show", "add", "rotate", "revoke", "bind")
    ),
    _plain("coordinator.secagg-plan", reading.SECAGG),
    _plain("coordinator.federation.remove", reading.REMOVED),
    _plain("coordinator.export", reading.EXPORTED),
    _plain("coordinator.predict", reading.PREDICTED),
    _plain("coordinator.backup", reading.MANIFEST),
    _plain("coordinator.restore", reading.MANIFEST),
    _plain("coordinator.upgrade", reading.UPGRADED),
    _plain("coordinator.charges", reading.CHARGES),
    _plain("coordinator.clipping", reading.CLIPPING),
    _plain("coordinator.audit-privacy", reading.AUDITED),
    _plain("client.backup", reading.MANIFEST),
    _plain("client.restore", reading.MANIFEST),
    _plain("client.catch-up", record({"pseudonym": TEXT, "added": COUNT})),
    _plain("client.predict", reading.PREDICTED),
    _plain(
        "client.evaluate",
        record({"run_id": TEXT, "accuracy": nullable(SHARE), "test_images": COUNT}),
    ),
    _plain("client.export", record({"run_id": TEXT, "file": TEXT, "tensors": listing(TEXT)})),
    _plain("client.keys.create", _KEY),
    _plain("client.keys.show", _KEY),
    _plain("client.receipts.verify", reading.RECEIPTS),
    _plain("client.receipts.export", record({"file": TEXT, "receipts": COUNT})),
    _plain("client.CONFIG", record({"time": TIME, "event": TEXT})),
)
SCHEMAS: Final[Mapping[str, Published]] = {
    "error": Published(
        "The last line of stderr of any command under --json that has no answer",
        lambda: derived(Failure),
    ),
    "summary": Published(
        "A run's `summary.json`, and what `run` prints under --json", _constant(runs.SUMMARY)
    ),
    "metrics-line": Published("A line of a run's `metrics.jsonl`", _constant(runs.ROUND)),
    "privacy-report": Published(
        "A run's privacy budget report, which `report` of the coordinator makes of it under "
        "--format json",
        _constant(PRIVACY_REPORT),
    ),
    "federation-line": Published(
        "A line that `run` prints under --json where clients are processes of their own",
        _constant(runs.LINE),
    ),
    "coordinator.run": Published(
        f"{_printed('run')}; where clients are processes of their own each line is one object",
        lambda: either(runs.SUMMARY, runs.LINE),
    ),
    "coordinator.methods": Published(_printed("methods"), lambda: listing(derived(MethodInfo))),
    "coordinator.configs": Published(
        _printed("configs"),
        lambda: either(_titles(), listing(derived(Key)), derived(RunConfig)),
    ),
    "coordinator.datasets": Published(
        _printed("datasets"),
        lambda: either(listing(derived(DatasetInfo)), reading.HOLDINGS, reading.CHECKED_FOLDER),
    ),
    "coordinator.schemas": Published(
        _printed("schemas"), lambda: either(_titles(), {"$ref": DIALECT})
    ),
    "coordinator.federation.status": Published(
        _printed("federation status"),
        lambda: listing(_with(derived(ClientStatus), {"standing": nullable(TEXT)})),
    ),
    "client.check": Published(
        _printed("check", by="client"),
        lambda: record({"is_sound": BOOLEAN, "checks": listing(derived(Check))}),
    ),
    "client.budget": Published(
        _printed("budget", by="client"),
        lambda: record(
            {"name": TEXT, "delta": SHARE, "runs": listing(_spending()), "total": _spending()}
        ),
    ),
    "client.leave": Published(_printed("leave", by="client"), lambda: listing(derived(Leaving))),
    **dict(_SIMPLE),
}


def schema_of(name: str) -> dict[str, Any]:
    """Return a schema as a JSON document of its own.

    Raises:
        ConfigError: If there is none of this name.
    """
    if name not in SCHEMAS:
        raise ConfigError(f"NAME: {name!r} is unknown; valid: {listed(sorted(SCHEMAS))}")
    found = SCHEMAS[name]
    return {
        "$schema": DIALECT,
        "$id": f"urn:sotto:schema:{name}",
        "title": found.title,
        **found.shape(),
    }


def schemas_command(name: str | None, *, as_json: bool) -> None:
    """Print one schema as JSON, or the names of all.

    Args:
        name: Of the schema; None for the list.
        as_json: Whether the list is JSON too.

    Raises:
        ConfigError: If there is none of this name.
    """
    if name is not None:
        print_json(schema_of(name))
        return
    titles = [(each, found.title) for each, found in sorted(SCHEMAS.items())]
    if as_json:
        print_json([{"name": each, "title": title} for each, title in titles])
    else:
        console().print(table(None, ("schema", "what it is of"), titles))
