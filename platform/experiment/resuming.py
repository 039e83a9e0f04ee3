"""A resumed run must be the run that was charged, also as the second phase of another run.

Configuration, clients and releases must be the same. A second phase takes the first run's pool,
clients and ledger, and has other options. No message leaves a client in the second phase, so its
repetition costs nothing more. The settings behind the first run's releases must stay as they were,
and the second phase only reads that run. Clients keep their newly personalised parts in their
stores under the new run's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from methods import Method, Registry
from platform.agreement import Agreed, require_agreement
from platform.config import RunConfig
from platform.config.files import read_yaml, yaml_problem
from platform.config.randomness import stream
from platform.errors import ConfigError, RunStopped
from platform.experiment.method_building import options_of_others, require_same_code
from platform.parties.identities import client_names, stores_file
from platform.protection.charging import as_row, rows_that_count
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.run import Progress, Run, decode_state
from platform.wire.codec import decode_arrays
from privacy import ReleaseKey
from storage import Database, open_client_stores

SIZES = ("standard_deviation", "clipping_norm")
FACTS = ("mechanism", "relation", "sampling", "sampling_probability", "count", *SIZES)
"""The facts that all ledger rows of one channel of a run share, sizes last."""


def require_start(agreed: Agreed, config: RunConfig, registry: Registry) -> Mapping[str, Any]:
    """Return what the audit log says of a run's start, for a run that may go on.

    A run whose models were erased, or whose plug-ins have other code now, is refused.
    """
    if agreed.records.is_pruned:
        raise RunStopped(
            f"run {agreed.records.run_id}: its models were erased by `runs --prune`, so nothing "
            "goes on from it; its records stay: see `report` and `budget`, or start a new run"
        )
    started = agreed.records.entries("run.created")[0].detail
    require_same_code(agreed.records.run_id, config.model_dump(mode="json"), started, registry)
    return started


def require_same_enrolment(run_id: str, started: str | None, now: str | None) -> None:
    """Refuse another enrolment than at the start: open attempts and the report rely on it.

    Both are fingerprints, None without a file.
    """
    if now != started:
        raise RunStopped(
            f"run {run_id}: secure_aggregation.enrolment has the fingerprint {now} now and had "
            f"{started} when the run was started; put that file back or start a new run"
        )


def require_same_releases(database: Database, run_id: str, protection: Protection) -> None:
    """Check that a run's releases are those that its ledger charges.

    The budget was computed for these releases and holds for no others.
    """
    with database.unit_of_work(read_only=True) as uow:
        charged = uow.ledger.rows(run_id)
    for number in sorted({row.round_number for row in charged}):
        of_round = protection.in_round(number)
        key = ReleaseKey(run_id=run_id, round_number=1, attempt=1, pseudonym="any")
        planned = {row.channel: row for row in map(as_row, of_round.releases(key))}
        # An adaptive norm, and its noise, follow from earlier rounds.
        facts = FACTS if of_round.extras.adaptive is None else FACTS[: -len(SIZES)]
        for row in (row for row in charged if row.round_number == number):
            now = planned.get(row.channel)
            if now is None:
                raise RunStopped(
                    f"run {run_id}: its ledger has a release on channel {row.channel!r}, which "
                    f"the run does not make now; valid: {', '.join(sorted(planned)) or 'none'}"
                )
            for name in facts:
                if getattr(row, name) != getattr(now, name):
                    raise RunStopped(
                        f"run {run_id}: {name} is {getattr(now, name)} now and "
                        f"{getattr(row, name)} in its ledger; valid is what it was charged for, "
                        "or a new run"
                    )


def require_spent_elsewhere(run: Run, database: Database) -> None:
    """Check the records of all runs whose spending counts against a lifetime budget."""
    if run.terms.budget.lifetime_budget is None:
        return
    with run.records.read() as uow:
        everybody = tuple(run.roll.pseudonyms.values())
        rows = rows_that_count(uow, run.terms.config, run.source, everybody)
    for run_id in sorted({row.run_id for row in rows}):
        require_agreement(database, run_id, run.terms.config.mechanisms)


def require_known_clients(run: Run, where: str = "") -> None:
    """Refuse clients with a new store, which would start anew at epsilon 0."""
    with run.records.read() as uow:
        charged = {row.pseudonym for row in uow.ledger.rows(run.source)}
    if not charged <= set(run.roll.pseudonyms.values()):
        raise RunStopped(
            f"run {run.run_id}: a client's store {where}is missing or "
            "another's, so what it spent cannot be carried on; put it back or start a new run"
        )


FREE: Final = ("name", "device", "threads", "phase_two_of", "storage", "method", "training")
"""Keys that change no release, except for the method that `method` builds on."""
VALID: Final = (
    "name, device, threads, training.*, and method.* but the name, and a base with its options"
)


class FirstRun(NamedTuple):
    """The first run of a second phase: its configuration, and its database."""

    config: RunConfig
    database: Database


def require_second_phase(
    config: RunConfig, first: FirstRun, folder: Path, registry: Registry
) -> None:
    """Check that a run may be the second phase of the run that it names, without making a store.

    `registry` knows the options of the method that ran the rounds. `ConfigError` if the named run
    has not finished, is a second phase itself, differs in more than its second phase, or lacks a
    file or a charged client's store.
    """
    source = str(config.phase_two_of)
    with first.database.unit_of_work(read_only=True) as uow:
        status = uow.runs.get(source).status
    if status != "finished":
        raise ConfigError(
            f"phase_two_of: run {source} has not finished (it is {status}); valid: a finished run, "
            f"which this is after `run --resume {source}`"
        )
    if first.config.phase_two_of is not None:
        raise ConfigError(
            f"phase_two_of: run {source} is a second phase itself; valid: "
            f"{first.config.phase_two_of}, "
            "whose pool it uses"
        )
    mine, theirs = (
        {**one.model_dump(mode="json", exclude=set(FREE)), "method": {"name": one.method.name}}
        for one in (config, first.config)
    )
    changes = _differences(mine, theirs)
    # If the names are equal, the options of the rounds must be equal too.
    change = next(changes, None)
    if change is None:
        mine, theirs = (options_of_others(registry, c.method) for c in (config, first.config))
        change = next(_differences(mine, theirs, "method."), None)
    if change is not None:
        key, new, old = change
        raise ConfigError(
            f"{key}: {new!r} is not run {source}'s {old!r}, which its releases follow from; "
            f"valid to change in a second phase: {VALID}"
        )
    for name in ("effective.yaml", "summary.json"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"phase_two_of: run {source} has no {name} in {str(folder)!r}; valid: a finished "
                "run whose folder is as it was left"
            )
    path = stores_file(config, folder)
    is_there = path.is_file() and path.stat().st_size
    known = open_client_stores(path, read_only=True).stores if is_there else {}
    missing = [name for name in client_names(config.task.clients) if name not in known]
    if missing:
        raise ConfigError(
            f"phase_two_of: a client's store of run {source} is missing ({missing[0]} in "
            f"{str(path)!r}); valid: a finished run whose clients are still there"
        )
    with first.database.unit_of_work(read_only=True) as uow:
        charged = {row.pseudonym for row in uow.ledger.rows(source)}
    if not charged <= {store.identity.pseudonym for store in known.values()}:
        raise ConfigError(
            f"phase_two_of: a client's store in {str(path)!r} is not that of run {source}'s "
            "ledger; valid: a finished run whose clients are still there"
        )


def require_fitting_pool(database: Database, config: RunConfig, method: Method) -> None:
    """Check that the method can work with the first run's pool, made once, and with its state."""
    source, policy = str(config.phase_two_of), method.pool_policy()
    with database.unit_of_work(read_only=True) as uow:
        entries, latest = uow.pool.entries(source), uow.states.latest(source)
    if policy is None or not policy.closes or not entries or latest is None:
        raise ConfigError(
            f"phase_two_of: run {source} has no pool that was made once, after its last round; "
            "valid: a finished run that has one"
        )
    start = method.init_server(stream(config.seed_of("initialisation"), "server"))
    shared = {name: array.shape for name, array in start.items()}
    state = decode_state(latest.blob)[0]
    _require_shapes("a shared tensor of another shape", shared, state, source)
    wanted = {name: tensor.shape for name, tensor in policy.spec.items()}
    for entry in entries:
        _require_shapes("an expert of another shape", wanted, decode_arrays(entry.entry), source)


def require_same_classes(folder: Path, source: str, classes: Sequence[str]) -> None:
    """Check that the data still have the classes of the first run."""
    try:
        facts = read_yaml((folder / "effective.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"phase_two_of: effective.yaml of run {source} is not readable: {yaml_problem(error)}; "
            "valid: a finished run whose folder is as it was left"
        ) from error
    known = facts.get("classes") if isinstance(facts, dict) else []
    # Runs of earlier versions do not state them.
    if known is not None and list(classes) != known:
        raise ConfigError(
            f"task: unequal class lists: {', '.join(classes)} now and {', '.join(known)} in run "
            f"{source}; valid: the data set as it was"
        )


def require_first_releases(database: Database, source: str, protection: Protection) -> None:
    """Refuse a second phase with another protection than the first run `source`."""
    try:
        require_same_releases(database, source, protection)
    except RunStopped as error:
        raise ConfigError(f"phase_two_of: {error}") from error


def take_up(run: Run, source: str) -> Progress:
    """Begin a second phase, and return the progress of the first run at its end."""
    with run.records.write() as uow:
        rounds, latest = uow.rounds.all(source), uow.states.latest(source)
        AuditTrail(uow.audit, run.run_id).run_begins(0)
        uow.runs.set_status(run.run_id, "running")
    last = rounds[-1]
    state = {} if latest is None else decode_state(latest.blob)[0]
    # The first run's clients have personalised, so that is their last commit.
    committed = dict.fromkeys(run.roll.clients, run.terms.final_attempt)
    return Progress(
        completed=last.round_number,
        committed=committed,
        state=state,
        ended_early=last.document.get("ended_early"),
    )


def take_over(summary: dict[str, Any], first: Mapping[str, Any]) -> None:
    """Copy the first run's measurements before its second phase, and its local twins.

    Local twins never use a pool, so both phases have the same twins.
    """
    summary["phases"]["before"] = first["phases"]["before"]
    local = first["local"]
    summary["local"], summary["gain_over_local"] = local, None
    if local["protocol"] is not None:
        summary["gain_over_local"] = _headline(summary["final"]) - _headline(local)


def _headline(part: Mapping[str, Any]) -> float:
    """Return the protocol's one number, from a part of a summary."""
    protocol = part["protocol"]
    if "target" in protocol:
        return float(protocol["target"]["mean"])
    return float(protocol.get("harmonic_mean", part["accuracy"]["mean"]))


def _differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**mine, **theirs}:
        value, other = mine.get(name), theirs.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differences(value, other, f"{prefix}{name}.")
        elif value != other:
            yield f"{prefix}{name}", value, other


def _require_shapes(
    what: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Any], source: str
) -> None:
    for name in sorted({*wanted, *found}):
        here = wanted.get(name)
        there = found[name].shape if name in found else None
        if here != there:
            raise ConfigError(
                f"phase_two_of: {what}: {name!r} is {there or 'missing'} in run {source} and "
                f"{here or 'missing'} in this one; valid: options that leave it as it was"
            )
