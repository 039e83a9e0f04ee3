"""`compare`: runs side by side, and the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from platform.agreement import Agreed, require_agreement
from platform.cli.access import resolved
from platform.cli.output import console, epsilon, fraction, print_json, table
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.results.reading import numbers_of
from platform.rounds.documents import ADVERSARIES, in_rounds

COLUMNS: Final = ("run", "status", "accuracy", "std", "worst", "gain", *ADVERSARIES)
MEASURES: Final = ("mean", "weighted", "std", "worst")
TERMS: Final = ("unit", "relation", "delta")
"""What an epsilon means; others are no numbers of the same thing."""
ELSEWHERE: Final = ("storage",)
"""Sections that say where a run lies, not what it is."""

Document = Mapping[str, Any]


def compare_command(names: Sequence[str], storage: str, *, as_json: bool) -> None:
    """Show runs side by side.

    Args:
        names: Two runs or more; `latest` is the newest.
        storage: The database's URL.
        as_json: Print JSON.

    Raises:
        ConfigError: If there are fewer than two, or one is named twice.
        UnknownRun: If there is no such run.
        RunStopped: If records do not agree; nothing is shown then.
        AuditChainBroken: If an audit log was changed; likewise.
    """
    if len(names) < 2:
        raise ConfigError(f"RUN: {len(names)} is too few to compare; valid is two runs or more")
    with closing(open_existing(storage)) as database:
        found = [resolved(database, name, storage) for name in names]
        twice = sorted({one for one in found if found.count(one) > 1})
        if twice:
            raise ConfigError(f"RUN: {twice[0]!r} is named twice; valid is each run once")
        runs = [require_agreement(database, run_id) for run_id in found]
    document = comparison(runs)
    if as_json:
        print_json(document)
    else:
        _print(document)


def comparison(runs: Sequence[Agreed]) -> dict[str, Any]:
    """Return runs whose records agree side by side.

    The differing settings are by their dotted key, each by run; of a key that a run does not have
    nothing is said there.
    """
    shown = [_run(one) for one in runs]
    # What nothing bounds is of no unit, and no more comparable by being of the same.
    claiming = [one for one in shown if one["unit"] is not None]
    settings = {one.records.run_id: dict(flat(one.config.model_dump(mode="json"))) for one in runs}
    return {
        "runs": shown,
        "differences": _differences(settings),
        "epsilons_differ_in": [
            name for name in TERMS if len({json.dumps(one[name]) for one in claiming}) > 1
        ],
    }


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a configuration by their dotted keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _differences(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for key in dict.fromkeys(key for one in settings.values() for key in one):
        of = {run: one[key] for run, one in settings.items() if key in one}
        is_alike = len(of) == len(settings) and len({json.dumps(v) for v in of.values()}) == 1
        if not is_alike and key.partition(".")[0] not in ELSEWHERE:
            found[key] = of
    return found


def _run(agreed: Agreed) -> dict[str, Any]:
    config, numbers = agreed.config, numbers_of(agreed)
    facts = config.mechanism.facts
    return {
        "run": agreed.records.run_id,
        "status": agreed.records.run.status,
        "method": config.method.name,
        "dataset": config.task.dataset,
        "rounds": len(in_rounds([row.document for row in agreed.spending.rounds])),
        "accuracy": {name: numbers.accuracy[name] for name in MEASURES},
        "gain_over_local": numbers.document["gain_over_local"] if numbers.finished else None,
        "epsilon": numbers.epsilons,
        "mechanism": config.privacy.mechanism,
        "unit": facts.unit,
        "relation": config.relation if facts.claims else None,
        "delta": config.privacy.target_delta,
    }


def _print(document: Document) -> None:
    out = console()
    out.print(table("accuracy, and epsilon by adversary", COLUMNS, [*map(_row, document["runs"])]))
    differ = document["epsilons_differ_in"]
    if differ:
        out.print(f"note: these epsilons cannot be compared: runs differ in {', '.join(differ)}")
    for one in document["runs"]:
        if one["unit"] is None:
            text = "nothing protects its clients"
            out.print(f"note: {one['run']}: mechanism {one['mechanism']}: {text}")
    if any(one["status"] != "finished" for one in document["runs"]):
        out.print("note: of a run that has not finished it is what there is so far")
    out.print()
    names = [one["run"] for one in document["runs"]]
    rows = [
        (key, *(_setting(of, name) for name in names))
        for key, of in document["differences"].items()
    ]
    if rows:
        out.print(table("settings that differ", ("setting", *names), rows))
    else:
        out.print("no setting differs")


def _row(one: Document) -> tuple[str, ...]:
    accuracy, gain = one["accuracy"], one["gain_over_local"]
    return (
        one["run"],
        one["status"],
        *(fraction(accuracy[name]) for name in ("mean", "std", "worst")),
        "-" if gain is None else f"{100 * gain:+.1f}",
        *(epsilon(one["epsilon"][name]) for name in ADVERSARIES),
    )


def _setting(of: Mapping[str, Any], run: str) -> str:
    if run not in of:
        return "-"
    value = of[run]
    return value if isinstance(value, str) else json.dumps(value)
