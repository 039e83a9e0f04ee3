"""Leaving a run for good: said under the holder's own key, and then erased here.

What is kept first is the statement, which from then on is the answer to every message of that run;
the coordinator hears of it when it asks for the next thing, or is handed the file. Then all of the
run goes but what was spent in it: charges are the holder's for life. Killed in between, the
statement is there, and whoever finds it erases the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from platform.disk.files import write_bytes
from platform.errors import ConfigError, UnknownRun
from platform.holder.backups import own_store
from platform.holder.identity import private_key
from platform.holder.keeping import Keeping
from platform.holder.settings import HolderSettings
from platform.wire.leaving import Left, encode_left
from storage import ClientStore


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """What came of leaving one run.

    Attributes:
        run_id: The run.
        is_new: Whether it had not been left before.
        is_signed: Whether the statement is signed, as a coordinator that knows keys wants it.
        charges: Rows that stay in the holder's own ledger.
    """

    run_id: str
    is_new: bool
    is_signed: bool
    charges: int


def leave_runs(settings: HolderSettings, run_ids: Sequence[str] | None) -> list[Leaving]:
    """Leave some runs for good; one that was left before is erased once more.

    Args:
        settings: The holder's.
        run_ids: The runs; None for all that were ever accepted here.

    Raises:
        ConfigError: If there is no store, or the holder's key cannot be used; nothing is done.
        UnknownRun: If a run was never accepted here; nothing is done.
        DatabaseBusy: If the client was at work in its store all the time; try again.
    """
    store, keeping = own_store(settings), Keeping(settings.storage)
    known = sorted({*keeping.runs("offer"), *keeping.runs("left")})
    for run_id in run_ids or ():
        if run_id not in known:
            raise UnknownRun(f"RUN: no run {run_id!r} was accepted here; see `budget` for all")
    identity = None if settings.identity is None else private_key(settings.identity)
    found: list[Leaving] = []
    for run_id in known if run_ids is None else run_ids:
        is_new = keeping.read(run_id, "left") is None
        if is_new:
            statement = Left(run_id, settings.name, store.identity.pseudonym)
            signature = b"" if identity is None else identity.sign(statement.digest)
            signed = Left(run_id, statement.client, statement.pseudonym, signature)
            keeping.keep(run_id, "left", encode_left(signed))
        erase_run(keeping, store, run_id)
        charges = len(store.rows(run_id))
        found.append(
            Leaving(
                run_id=run_id,
                is_new=is_new,
                is_signed=identity is not None,
                charges=charges,
            )
        )
    return found


def erase_run(keeping: Keeping, store: ClientStore, run_id: str) -> None:
    """Erase all that is here of a run that was left, but for its charges; any number of times."""
    store.erase_run(run_id)
    for kind in ("parting", "offer"):
        keeping.erase(run_id, kind)


def write_statement(settings: HolderSettings, run_id: str, file: Path) -> None:
    """Write the statement of having left a run into a new file, to be handed over.

    Raises:
        ConfigError: If the file is there already, or cannot be written.
    """
    statement = Keeping(settings.storage).read(run_id, "left")
    if statement is None:
        raise ConfigError(f"RUN: {run_id!r} has not been left; valid is a run that has")
    if file.exists():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    try:
        write_bytes(file, statement)
    except OSError as error:
        raise ConfigError(f"FILE: {str(file)!r} cannot be written ({error.strerror})") from error
