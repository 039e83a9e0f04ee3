"""Sets up runs whose clients are all in this process."""

from __future__ import annotations

from functools import partial

from platform.agreement import require_agreement, stored_tree
from platform.bootstrap.planning import RunPlan, Surroundings, new_run_id, plan_run, record_run
from platform.config import (
    RunConfig,
    StorageConfig,
    parse_config,
)
from platform.disk.files import require_free
from platform.disk.opening import (
    closed_on_error,
    open_existing,
    open_storage,
    records_in,
    run_folder,
)
from platform.errors import UnknownRun
from platform.experiment.canaries import draw_key, read_canaries
from platform.experiment.environment import with_absolute_paths
from platform.experiment.evaluation import measure_round
from platform.experiment.method_building import require_same_method
from platform.experiment.resuming import (
    FirstRun,
    require_clients,
    require_files,
    require_first_releases,
    require_kept,
    require_same_classes,
    require_same_enrolment,
    require_same_run,
    require_second_phase,
)
from platform.experiment.simulation import Simulation, build_population
from platform.parties.identities import enrolment_of, fingerprint_of
from platform.parties.profile import RunNames
from platform.rounds.asking import call_roll, newest_attempt
from platform.rounds.attempts import simulated_losses
from platform.rounds.observing import Observer
from platform.rounds.run import Run
from platform.wire.messages import ROUND_STAGES, Stage
from platform.wire.transport import InProcessTransport
from privacy.auditing import Canaries
from storage import Database, NotFound


def create_run(config: RunConfig, observer: Observer, surroundings: Surroundings) -> Simulation:
    """Set up a new run.

    Raises:
        ConfigError: If the configuration cannot be run; nothing is written then.
    """
    config = with_absolute_paths(config)
    plan = _plan(config, observer, surroundings)
    run_id = new_run_id(config, surroundings.now())
    folder = run_folder(config.storage.url, run_id)
    with closed_on_error(open_storage(config.storage.url)) as database:
        learning, registry = plan.learning, surroundings.registry
        committed = draw_key(config, folder)
        record_run(
            *(database, run_id, plan.terms, registry),
            classes=learning.classes,
            device=learning.device,
            canaries=committed,
        )
        observer.run_created(run_id)
        canaries = read_canaries(plan.terms, folder, run_id, committed)
        return _simulate(
            plan, run_id, database, canaries, observer=observer, surroundings=surroundings
        )


def _plan(config: RunConfig, observer: Observer, surroundings: Surroundings) -> RunPlan:
    """Return a run's plan; the plan of a second phase rests on the records of its first run."""
    source, url = config.phase_two_of, config.storage.url
    if source is None:
        return plan_run(config, observer, surroundings)
    database = open_existing(url, read_only=False)
    try:
        first = stored_config(database, source, surroundings)
        require_second_phase(config, first, database, surroundings.registry)
        folder = run_folder(url, source)
        require_files(folder, source)
        require_clients(database, config, folder)
        agreed = require_agreement(database, source, surroundings.sources.mechanisms)
        require_kept(agreed)
        begun = agreed.records.entries("run.created")[0]
        code, registry = begun.detail.get("method"), surroundings.registry
        require_same_method(source, config.method.name, code, registry)
        plan = plan_run(config, observer, surroundings, FirstRun(first, database))
        require_same_classes(folder, source, plan.learning.classes)
        require_first_releases(database, source, plan.terms.protection)
    finally:
        database.close()
    return plan


def reopen_run(
    run_id: str,
    url: str,
    observer: Observer,
    surroundings: Surroundings,
    *,
    read_only: bool = False,
) -> Simulation:
    """Set up a run that exists; with `read_only` no database is written to.

    A run that goes on builds on all rows of its database, so all rows are checked then.

    Raises:
        UnknownRun: If no run has this name.
        ConfigError: If its configuration cannot be run here.
        RunStopped: If its records do not agree, a client that was charged is not here any more, or
            the run would go on with other parameters than it was charged for.
    """
    database = open_existing(url) if read_only else open_storage(url)
    with closed_on_error(database):
        if not read_only:
            database.verify_integrity()
        config = stored_config(database, run_id, surroundings)
        agreed = require_agreement(database, run_id, surroundings.sources.mechanisms)
        require_kept(agreed)
        created = agreed.records.entries("run.created")[0]
        code, registry = created.detail.get("method"), surroundings.registry
        require_same_method(run_id, config.method.name, code, registry)
        # The clients' stores lie beside the database, which may have moved since the run started.
        config = config.model_copy(update={"storage": StorageConfig(url=url)})
        plan = _plan(config, observer, surroundings)
        if not database.is_read_only:
            require_free(run_folder(url, run_id))
            known = enrolment_of(config, plan.terms.protection.terms)
            require_same_enrolment(run_id, created.detail.get("enrolment"), fingerprint_of(known))
        observer.run_created(run_id)
        committed = created.detail.get("canaries")
        canaries = read_canaries(plan.terms, run_folder(url, run_id), run_id, committed)
        simulation = _simulate(
            plan, run_id, database, canaries, observer=observer, surroundings=surroundings
        )
        require_same_run(simulation.run, database, simulation.folder)
        return simulation


def stored_config(database: Database, run_id: str, surroundings: Surroundings) -> RunConfig:
    """Return the configuration with which a run started.

    Raises:
        UnknownRun: If there is no such run.
        RecordsDisagree: If its row has no configuration.
        ConfigError: If the configuration is not valid here.
    """
    try:
        with database.unit_of_work(read_only=True) as uow:
            run = uow.runs.get(run_id)
    except NotFound as error:
        raise UnknownRun(str(error)) from error
    return parse_config(stored_tree(run), sources=surroundings.sources)


def _simulate(
    plan: RunPlan,
    run_id: str,
    database: Database,
    canaries: Canaries | None,
    *,
    observer: Observer,
    surroundings: Surroundings,
) -> Simulation:
    """Return a run that is ready, with clients in this process that answer messages only.

    Raises:
        RunStopped: If a client does not introduce itself as a client of this run.
    """
    config, evaluation = plan.terms.config, plan.learning.evaluation
    folder = run_folder(config.storage.url, run_id)
    source = config.phase_two_of
    of_clients = folder if source is None else run_folder(config.storage.url, source)
    population = build_population(
        *(plan.terms, plan.learning, RunNames(run_id, source), of_clients),
        canaries=canaries,
        read_only=database.is_read_only,
    )
    everybody = population.everybody

    def tell(stage: Stage) -> None:
        if stage in ROUND_STAGES:
            observer.client_answered()

    handlers = {name: client.handle for name, client in everybody.items()}
    within = InProcessTransport(
        handlers=handlers, losses=simulated_losses(config), stage=population.stage, tell=tell
    )
    transport = surroundings.carry(within)
    enrolled = enrolment_of(config, plan.terms.protection.terms)
    records, names = records_in(database), tuple(everybody)
    begun = newest_attempt(records, run_id)
    run = Run(
        run_id=run_id,
        source_id=source,
        terms=plan.terms,
        roll=call_roll(transport, run_id, names, enrolled, begun=begun),
        transport=transport,
        records=records,
        measure=partial(measure_round, evaluation),
        clock=surroundings.clock,
    )
    return Simulation(
        run=run,
        folder=folder,
        database=database,
        learning=plan.learning,
        population=population,
        canaries=canaries,
    )
