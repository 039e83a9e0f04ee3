"""Sets up runs whose clients are processes of their own, and offers the runs to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from methods import Examples, Method
from platform.agreement import require_agreement
from platform.config import RunConfig, StorageConfig
from platform.config.loading import validate_options
from platform.config.rules import void_settings
from platform.config.run import code_of, origins_of
from platform.config.sections import FederationConfig
from platform.data.loading import TaskData, task_without_images
from platform.data.preparing import frozen_model, is_public
from platform.disk.files import only_process_of, require_free
from platform.disk.opening import closed_on_error, open_storage, records_in, run_folder, transaction
from platform.errors import ConfigError, ProtocolError
from platform.experiment.environment import (
    resolve_device,
    sotto_version,
    use_threads,
    with_absolute_paths,
)
from platform.experiment.evaluation import UNMEASURED
from platform.experiment.finishing import Conducted
from platform.experiment.method_building import method_on, task_of, void_options
from platform.experiment.planning import (
    Surroundings,
    new_run_id,
    plan_terms,
    record_run,
    stored_config,
)
from platform.experiment.resuming import (
    require_known_clients,
    require_same_enrolment,
    require_same_releases,
    require_start,
)
from platform.parties.identities import enrolment_of, fingerprint_of, read_enrolment
from platform.protection.building import void_pool
from platform.relay.hub import Hub, HubTransport, Told
from platform.rounds.asking import Door
from platform.rounds.leaving import (
    LeavingTransport,
    LeftClient,
    joined,
    left_clients,
    record_leaving,
    verify_statement,
)
from platform.rounds.observing import Observer
from platform.rounds.receipts import Courier
from platform.rounds.run import Roll, Run, RunTerms
from platform.wire.codec import Envelope
from platform.wire.messages import Stage
from platform.wire.outside_rounds import Facts, Left, Offer, decode_left
from platform.wire.transport import ClientId, Transport
from storage import Database

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

SLOW: Final[tuple[Stage, ...]] = ("train", "personalise")
"""Stages in which clients train."""
LOCAL_FOLDER: Final = "local-dir:"
"""The name of a model in a local folder begins with this; the folder follows."""
Reaching = Callable[[FederationConfig], AbstractContextManager[Transport]]
"""Makes the transport to a federation's clients."""


@contextmanager
def new_federation(
    config: RunConfig, observer: Observer, surroundings: Surroundings, *, reaching: Reaching
) -> Iterator[Conducted]:
    """Set up a new run and offer it; clients can be reached as long as the context lasts.

    Raises:
        ConfigError: If the configuration cannot be run; nothing is written then.
        RunStopped: If a client cannot be reached, or declines.
    """
    config = with_absolute_paths(config)
    section = section_of(config)
    terms, facts, device = plan_federation(config, surroundings)
    options = validate_options(surroundings.registry, config.method)
    voids = (
        *void_settings(config),
        *void_options(config, options),
        *void_pool(config, terms.method),
    )
    observer.warned((*config.remarks, *voids))
    run_id = new_run_id(config, surroundings.now())
    with (
        reaching(section) as transport,
        closed_on_error(open_storage(config.storage.url)) as database,
        database,
    ):
        record_run(
            *(database, run_id, terms, surroundings.registry),
            classes=section.classes,
            device=device,
        )
        observer.run_created(run_id)
        yield _assembled(
            *(run_id, terms, facts, database), transport=transport, surroundings=surroundings
        )


@contextmanager
def reopened_federation(
    run_id: str,
    config: RunConfig,
    observer: Observer,
    surroundings: Surroundings,
    *,
    reaching: Reaching,
) -> Iterator[Conducted]:
    """Set up a run that exists, and offer it to its clients again.

    The configuration is the run's first, with the present place of its storage.

    Raises:
        ConfigError: If its configuration cannot be run here.
        RunStopped: If its records do not agree, or it would go on with other parameters than it was
            charged for, or a client cannot be reached.
    """
    url = config.storage.url
    with closed_on_error(open_storage(url)) as database, database:
        database.verify_integrity()
        agreed = require_agreement(database, run_id, surroundings.sources.mechanisms)
        started = require_start(agreed, config, surroundings.registry)
        section = section_of(config)
        terms, facts, _ = plan_federation(config, surroundings)
        known = enrolment_of(config, terms.protection.terms)
        require_same_enrolment(run_id, started.get("enrolment"), fingerprint_of(known))
        require_same_releases(database, run_id, terms.protection)
        observer.run_created(run_id)
        require_free(run_folder(url, run_id))
        with reaching(section) as transport:
            yield _assembled(
                *(run_id, terms, facts, database), transport=transport, surroundings=surroundings
            )


def plan_federation(config: RunConfig, surroundings: Surroundings) -> tuple[RunTerms, Facts, str]:
    """Return a federation's terms, the facts that all sides must share, and torch's device."""
    data = task_without_images(section_of(config).classes)
    return build_terms(config, data, surroundings)[:3]


def build_terms(
    config: RunConfig, data: TaskData, surroundings: Surroundings
) -> tuple[RunTerms, Facts, str, Backbone | None]:
    """Return terms, facts, torch's device and the frozen model, alike on both sides.

    The task is as this side knows it.
    """
    device = resolve_device(config.device)
    use_threads(config.threads)
    registry = surroundings.registry
    backbone = frozen_model(config.task.model, device, config.plugins)
    task = task_of(config, data, backbone, device)

    def no_public_images(method: Method) -> Examples:
        raise ConfigError("public_data: a federation has no public data")

    method = method_on(data, registry, config, task, public=no_public_images)
    if "domains" in method.needs:
        raise ConfigError(
            f"method.name: {config.method.name} learns from the domains of clients' images, which "
            "a federation does not reveal; valid: methods that need no domains"
        )
    terms = plan_terms(config, method)
    if terms.protection.layout.weighted and config.secure_aggregation.largest_weight is None:
        raise ConfigError(
            "secure_aggregation.largest_weight: null takes the largest client of a simulation; "
            "valid with a federation section: the most examples that a client may have"
        )
    code = code_of(origins_of(config.model_dump(mode="json"), registry.plugins))
    model = "" if backbone is None else f"{backbone.fingerprint}-{backbone.transform_digest}"
    return terms, Facts(sotto_version(), model, code or ""), device, backbone


def offered(config: RunConfig) -> bytes:
    """Return a configuration as it is offered to clients, without paths of the coordinator."""
    tree = config.model_dump(mode="json")
    tree["storage"] = StorageConfig().model_dump(mode="json")
    tree["device"], tree["threads"] = "auto", 1
    for section, key in (("federation", "socket"), ("task", "root")):
        del tree[section][key]
    tree["secure_aggregation"]["enrolment"] = None
    model = config.task.model
    if model is not None and not is_public(model):
        # Each holder has its own copy; digests prove that all copies are the same.
        tree["task"]["model"]["pretrained"] = None
        if model.name.startswith(LOCAL_FOLDER):
            tree["task"]["model"]["name"] = LOCAL_FOLDER
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def _assembled(
    run_id: str,
    terms: RunTerms,
    facts: Facts,
    database: Database,
    *,
    transport: Transport,
    surroundings: Surroundings,
) -> Conducted:
    """Return a federation whose clients have introduced themselves."""
    section, records = section_of(terms.config), records_in(database)
    enrolled = enrolment_of(terms.config, terms.protection.terms)
    named, members = section.clients, {} if enrolled is None else enrolled.members
    with records.read() as uow:
        pseudonyms = joined(uow, run_id, named)
        left = {gone.client for gone in left_clients(uow, run_id, named)}
    keys = {name: members[name].current for name in named if name in members}
    roll = Roll(
        pseudonyms=pseudonyms,
        identities={name: key for name, key in keys.items() if key is not None},
        enrolment_serial=0 if enrolled is None else enrolled.serial,
        named=named,
        left=left,
    )
    reachable: Callable[[], Container[ClientId]] | None = None
    if isinstance(transport, HubTransport):
        hub = transport.hub
        reachable = lambda: hub.connected  # noqa: E731
    through = LeavingTransport(
        transport=transport, run_id=run_id, roll=roll, known=enrolled, records=records
    )
    offer = Offer(Envelope(run_id, 0, 0), offered(terms.config), facts)
    door = Door(
        through=through,
        offer=offer,
        enough=section.start_with,
        reachable=reachable,
        seconds=section.phase_seconds,
    )
    run = Run(
        run_id=run_id,
        terms=terms,
        roll=roll,
        transport=Courier(
            transport=through, run_id=run_id, roll=roll, budget=terms.budget, records=records
        ),
        records=records,
        # A coordinator sees no client's images.
        measure=lambda run, round_number, after: UNMEASURED,
        clock=surroundings.clock,
    )
    door.open(lambda: require_known_clients(run))
    folder = run_folder(terms.config.storage.url, run_id)
    return Conducted(run=run, folder=folder, database=database, admit=door.admit)


@contextmanager
def through_hub(section: FederationConfig, told: Told) -> Iterator[Transport]:
    """Reach clients through relays that connect to a socket of this process."""
    slow = dict.fromkeys(SLOW, section.training_seconds) | {"join": section.joining_seconds}
    with Hub(path=Path(section.socket), clients=section.clients, told=told) as hub:
        yield HubTransport(hub, slow, section.phase_seconds, section.go_on_with)


def section_of(config: RunConfig) -> FederationConfig:
    """Return the federation section of a run; a simulation is refused."""
    if config.federation is None:
        raise ConfigError("federation: null simulates all clients; valid here: a section")
    return config.federation


def remove_client(
    run_id: str, url: str, client: str, *, statement: Path | None, surroundings: Surroundings
) -> LeftClient:
    """Record that a client has left a run, and erase data that may have its entries.

    The statement is a file of the client's own. If the run has no such client, or it has left, or
    the statement is not its own, nothing changes; nor while another process runs the run.
    """
    with open_storage(url) as database, only_process_of(run_folder(url, run_id)):
        config = stored_config(database, run_id, surroundings)
        clients = section_of(config).clients
        if client not in clients:
            raise ConfigError(
                f"CLIENT: {client!r} is not in run {run_id}; valid: {', '.join(clients)}"
            )
        agreed = require_agreement(database, run_id, surroundings.sources.mechanisms)
        created = agreed.records.entries("run.created")[0]
        path, known = config.secure_aggregation.enrolment, None
        if config.secure_aggregation.adversary == "active" and path is not None:
            known = read_enrolment(Path(path))
            require_same_enrolment(run_id, created.detail.get("enrolment"), fingerprint_of(known))
        said: Left | None = None
        try:
            said = None if statement is None else decode_left(statement.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"--statement: {str(statement)!r} cannot be read ({error.strerror}); "
                "valid: a file that `leave --statement` wrote"
            ) from error
        except ProtocolError as error:
            raise ConfigError(
                f"--statement: {str(statement)!r} is not a statement; valid is a file that a "
                "client's command `leave` has written"
            ) from error
        with transaction(database) as uow:
            if any(gone.client == client for gone in left_clients(uow, run_id, clients)):
                raise ConfigError(f"CLIENT: {client!r} has left run {run_id} already")
            pseudonym = joined(uow, run_id, clients).get(client)
            if said is not None:
                try:
                    verify_statement(said, run_id, client, pseudonym=pseudonym, known=known)
                except ProtocolError as error:
                    raise ConfigError(
                        f"--statement: {error}; valid is what {client} wrote when it left run "
                        f"{run_id}"
                    ) from error
            record_leaving(uow, run_id, clients, client, pseudonym=pseudonym, statement=said)
            return left_clients(uow, run_id, clients)[-1]
