"""The clients' own ledgers, read from their stores where these lie beside the database."""

from __future__ import annotations

from pathlib import Path

from platform.agreement.clients import OwnLedger
from platform.config import RunConfig, Sources, parse_config
from platform.errors import ConfigError, RecordsDisagree
from platform.mechanisms import Mechanisms
from platform.parties.identities import client_names, stores_file
from platform.protection.charging import stored_tree
from storage import RunRecord, open_client_stores


def config_of(run: RunRecord, mechanisms: Mechanisms) -> RunConfig:
    """Return the configuration in a run's row, checked against these mechanisms.

    Raises:
        RecordsDisagree: If it is none.
    """
    try:
        return parse_config(stored_tree(run), sources=Sources(mechanisms=mechanisms))
    except (ConfigError, TypeError) as error:
        raise RecordsDisagree(run.run_id, f"its configuration is not valid: {error}") from error


def read_own_ledgers(config: RunConfig, folder: Path) -> tuple[OwnLedger, ...]:
    """Return what the clients of a simulation keep themselves; a store that is missing is left out.

    Args:
        config: The run's.
        folder: Of the run whose clients these are.
    """
    path = stores_file(config, folder)
    if not path.is_file() or not path.stat().st_size:
        return ()
    opened = open_client_stores(path, read_only=True)
    names = {*client_names(config.task.clients), *config.canary_names}
    with opened.kept_open():
        opened.verify_integrity()
        return tuple(
            OwnLedger(name, store.identity.pseudonym, store.rows())
            for name, store in opened.stores.items()
            if name in names
        )
