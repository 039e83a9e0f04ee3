"""Taking a client off a federation's run for good: its machine is gone, or it said so by a file.

What follows is what follows when a client leaves by itself, but nothing is erased on its machine.
"""

from __future__ import annotations

from pathlib import Path

from platform.agreement import require_agreement
from platform.bootstrap.federating import section_of
from platform.bootstrap.simulating import stored_config
from platform.bootstrap.surroundings import Surroundings
from platform.config import RunConfig
from platform.disk.files import only_process_of
from platform.disk.opening import open_storage, run_folder, transaction
from platform.errors import ConfigError, ProtocolError
from platform.experiment.resuming import require_same_enrolment
from platform.parties.identities import fingerprint_of, read_enrolment
from platform.rounds.leaving import (
    Departure,
    departures,
    joined,
    record_departure,
    verify_statement,
)
from platform.wire.outside_rounds import Left, decode_left
from privacy.secure_aggregation import Enrolment
from storage import Database


def remove_client(
    run_id: str, url: str, client: str, *, statement: Path | None, surroundings: Surroundings
) -> Departure:
    """Note that a client takes part in a run no more, and erase what may have its entries in it.

    Args:
        run_id: The run, which no process runs just now.
        url: Of the coordinator's database.
        client: The client's name.
        statement: A file in which the client itself says so; None where nobody does.
        surroundings: What is taken from outside.

    Raises:
        ConfigError: If the run has no such client, or it has left, or the statement is not its own;
            nothing has changed then.
        UnknownRun: If there is no such run.
        RunBusy: If another process runs it.
        RunStopped: If its records do not agree.
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
        known = _enrolment(config, run_id, created.detail.get("enrolment"))
        said = None if statement is None else _read(statement)
        return _remove(database, run_id, clients, client, said=said, known=known)


def _remove(
    database: Database,
    run_id: str,
    clients: tuple[str, ...],
    client: str,
    *,
    said: Left | None,
    known: Enrolment | None,
) -> Departure:
    with transaction(database) as uow:
        if any(gone.client == client for gone in departures(uow, run_id, clients)):
            raise ConfigError(f"CLIENT: {client!r} takes part in run {run_id} no more already")
        pseudonym = joined(uow, run_id, clients).get(client)
        if said is not None:
            try:
                verify_statement(said, run_id, client, pseudonym=pseudonym, known=known)
            except ProtocolError as error:
                raise ConfigError(
                    f"--statement: {error}; valid is what {client} wrote when it left run {run_id}"
                ) from error
        record_departure(uow, run_id, clients, client, pseudonym=pseudonym, statement=said)
        return departures(uow, run_id, clients)[-1]


def _enrolment(config: RunConfig, run_id: str, started: str | None) -> Enrolment | None:
    path = config.secure_aggregation.enrolment
    if config.secure_aggregation.adversary != "active" or path is None:
        return None
    known = read_enrolment(Path(path))
    require_same_enrolment(run_id, started, fingerprint_of(known))
    return known


def _read(file: Path) -> Left:
    try:
        return decode_left(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--statement: {str(file)!r} cannot be read ({error.strerror}); "
            "valid: a file that `leave --statement` wrote"
        ) from error
    except ProtocolError as error:
        raise ConfigError(
            f"--statement: {str(file)!r} is none; valid is a file that a client's command `leave` "
            "has written"
        ) from error
