"""Runs as a tidy pandas frame for notebooks, with one row per run, round or client.

A run does not need pandas; `.venv/bin/pip install -e '.[notebook]'` in the checkout installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platform.agreement import Agreed
from platform.errors import ConfigError
from platform.results.numbers import RunNumbers, last_parts, number
from platform.results.reading import numbers_of, read_runs, read_sweep_runs
from platform.rounds.documents import ADVERSARIES

if TYPE_CHECKING:
    from pandas import DataFrame

DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"
TEXT, WHOLE, REAL, YES_NO = "string", "Int64", "float64", "boolean"
"""Types of columns; each type has a value for missing data."""

RUN: Final[Mapping[str, tuple[str, str]]] = {
    "run": (TEXT, "the run's id"),
    "config": (TEXT, "the name of its configuration"),
    "dataset": (TEXT, "the data set"),
    "method": (TEXT, "the method"),
    "mechanism": (TEXT, "the privacy mechanism"),
    "seed": (WHOLE, "the run's seed"),
    "status": (TEXT, "finished, running or interrupted"),
}
"""The first columns of every frame: type and meaning."""
_SPENT: Final = {
    f"epsilon_{name}": (REAL, f"epsilon for {name}, infinite where nothing is proven")
    for name in ADVERSARIES
}
_ACCURACY: Final = {
    "accuracy": (REAL, "mean over clients of the share of correct test predictions"),
    "accuracy_weighted": (REAL, "the same mean, weighted by test examples"),
    "accuracy_std": (REAL, "standard deviation over clients"),
    "accuracy_worst": (REAL, "the worst client's accuracy"),
}
COLUMNS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "run": {
        **RUN,
        "clients": (WHOLE, "clients that the configuration asks for"),
        "rounds": (WHOLE, "rounds that were committed and trained"),
        "protocol": (TEXT, "the protocol that measures accuracy"),
        **_ACCURACY,
        "headline": (REAL, "the protocol's one number; `accuracy` for most protocols"),
        "gain_over_local": (REAL, "headline minus that of the local twins"),
        "worth_of_sharing": (REAL, "headline minus that of the same run with uploads of zeros"),
        "validation": (REAL, "mean over clients on their validation examples"),
        **_SPENT,
        "delta": (REAL, "delta of the epsilons"),
        "unit": (TEXT, "unit of the epsilons: record, client, or missing without a guarantee"),
        "accountant": (TEXT, "the accountant that computed the epsilons"),
        "target_epsilon": (REAL, "privacy.target_epsilon of its configuration"),
        "noise_multiplier": (REAL, "privacy.noise_multiplier of its configuration"),
    },
    "round": {
        **RUN,
        "round": (WHOLE, "the round's number, from 1"),
        "cohort": (WHOLE, "clients that were asked; missing if this is secret"),
        "dropped": (WHOLE, "lost clients of the cohort"),
        **_ACCURACY,
        "validation": (REAL, "mean over clients on their validation examples"),
        **_SPENT,
        "bytes_up": (WHOLE, "bytes that a client sent"),
        "bytes_down": (WHOLE, "bytes that a client received"),
        "seconds": (REAL, "time of the round"),
    },
    "client": {
        **RUN,
        "client": (WHOLE, "the client's index among the measured clients, from 0"),
        "accuracy": (REAL, "accuracy on the protocol's test examples, at the end"),
        "accuracy_own": (REAL, "accuracy on its own test examples, if the protocol adds others"),
        "accuracy_alone": (REAL, "the accuracy of its local twin"),
    },
}
"""Columns of each frame in order: type and meaning. A sweep's axes follow, as text."""


def results(
    storage: str = DEFAULT_STORAGE,
    *,
    runs: str | Sequence[str] | None = None,
    sweep: str | Path | None = None,
    per: str = "run",
) -> DataFrame:
    """Return runs of a database as a pandas frame; the function writes nothing.

    Numbers are those of a run's summary: accuracies are shares in [0, 1], gains are differences of
    shares, and values that were not measured are missing. Unfinished runs have the numbers of
    their finished rounds. `COLUMNS` lists the columns with their types. A sweep's runs have the
    order of its cells, and a column for each axis.

    Args:
        storage: The coordinator's database, as in `storage.url`.
        runs: One or several ids of runs, or `latest`; None for all runs.
        sweep: The folder of a sweep's results, for the runs of that sweep.
        per: The content of a row: `run`, `round` or `client`.

    Raises:
        ConfigError: If an argument is not valid, or pandas is not installed.
        UnknownRun: If there is no such run, or no database.
        RecordsDisagree: If the records of a run do not agree.
        AuditChainBroken: If an audit log was changed.
    """
    if per not in COLUMNS:
        raise ConfigError(f"per: {per!r} is not valid; valid: {', '.join(COLUMNS)}")
    if runs is not None and sweep is not None:
        raise ConfigError("sweep: does not go with runs; valid is one of them")
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "results: pandas is not installed; valid after "
            "`.venv/bin/pip install -e '.[notebook]'` in the checkout"
        ) from error
    if sweep is not None:
        found, _ = read_sweep_runs(Path(sweep), storage)
    else:
        wanted = [runs] if isinstance(runs, str) else runs
        found = [(numbers_of(agreed), agreed) for agreed in read_runs(storage, wanted)]
    axes = list(dict.fromkeys(key for run, _ in found for key, _ in run.axes))
    names = last_parts(axes, COLUMNS[per])
    rows = [
        {**row, **{names[key]: value for key, value in run.axes}}
        for run, agreed in found
        for row in _ROWS[per](run, agreed)
    ]
    types = {name: kind for name, (kind, _) in COLUMNS[per].items()}
    types |= dict.fromkeys(names.values(), TEXT)
    frame: DataFrame = pandas.DataFrame(rows, columns=list(types)).astype(types)
    return frame


def _of_run(run: RunNumbers, agreed: Agreed) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "config": run.config,
        "dataset": run.dataset,
        "method": run.method,
        "mechanism": run.document["mechanism"],
        "seed": run.seed,
        "status": agreed.records.run.status,
    }


def _accuracy(document: Mapping[str, Any]) -> dict[str, float | None]:
    found = document.get("accuracy") or {}
    return {
        "accuracy": number(found.get("mean")),
        **{f"accuracy_{name}": number(found.get(name)) for name in ("weighted", "std", "worst")},
    }


def _run_rows(run: RunNumbers, agreed: Agreed) -> Iterator[dict[str, Any]]:
    document, config = run.document, agreed.config
    yield {
        **_of_run(run, agreed),
        "clients": config.task.clients,
        "rounds": len(run.rounds),
        "protocol": run.protocol,
        **_accuracy(run.final),
        "headline": run.headline(),
        "gain_over_local": document.get("gain_over_local"),
        "worth_of_sharing": document.get("worth_of_sharing"),
        "validation": (run.final.get("validation") or {}).get("mean"),
        **{f"epsilon_{name}": run.epsilon(name) for name in ADVERSARIES},
        "delta": run.delta,
        "unit": document["unit"],
        "accountant": document["accountant"],
        "target_epsilon": config.privacy.target_epsilon,
        "noise_multiplier": config.privacy.noise_multiplier,
    }


def _round_rows(run: RunNumbers, agreed: Agreed) -> Iterator[dict[str, Any]]:
    for document in run.rounds:
        yield {
            **_of_run(run, agreed),
            **{name: document[name] for name in ("round", "cohort", "dropped")},
            **_accuracy(document),
            "validation": (document.get("validation") or {}).get("mean"),
            **{f"epsilon_{name}": number(document["epsilon"][name]) for name in ADVERSARIES},
            **{name: document[name] for name in ("bytes_up", "bytes_down", "seconds")},
        }


def _client_rows(run: RunNumbers, agreed: Agreed) -> Iterator[dict[str, Any]]:
    found = run.clients()
    for index in range(max(map(len, found.values()), default=0)):
        each = {name: values[index] for name, values in found.items() if index < len(values)}
        yield {
            **_of_run(run, agreed),
            "client": index,
            "accuracy": each.get("accuracy"),
            "accuracy_own": each.get("own"),
            "accuracy_alone": each.get("local_twin"),
        }


_ROWS: Final[Mapping[str, Callable[[RunNumbers, Agreed], Iterator[dict[str, Any]]]]] = {
    "run": _run_rows,
    "round": _round_rows,
    "client": _client_rows,
}
