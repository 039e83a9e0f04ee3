"""The data holder's own store: its lock, the files beside it, its backups, and leaving a run.

One process answers with the store, and others may read it meanwhile. Beside the store the process
keeps a file for each run and kind: the accepted offer, the parting with which the run ended, and
the statement of having left.

A backup is older than the client's last release. A restored store says so, and the client takes
part in no round before it has caught up (`platform.parties.client_state`). Without this rule it
would count too little spending, and would answer the same request twice. No backup contains the
private key, which stays on its machine.

A client leaves a run for good under the holder's own key. First it keeps the statement, which is
then its answer to every message of that run. The coordinator learns of it with its next message, or
from the file. Then the client erases all of the run except its charges, which the holder keeps for
life. If the process is killed in between, the next reader of the statement erases the rest.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from platform.disk.archives import Archive, Manifest, make_backup, restore_backup
from platform.disk.files import Held, erase, held, make_folder, write_bytes
from platform.errors import ConfigError, ProtocolError, UnknownRun
from platform.holder.settings import STORE, HolderSettings, private_key
from platform.wire.outside_rounds import Left, encode_left
from storage import ClientStore, StorageFull, open_client_store
from storage.client_files import stored_version
from storage.copying import copy_databases

Found = TypeVar("Found")
LOCK: Final = "client.lock"
"""The file in the storage folder that the answering process locks."""


@contextmanager
def only_process_with(settings: HolderSettings) -> Iterator[None]:
    """Reserve a store for this process; another process must not serve it at any socket."""
    try:
        with held(settings.storage / LOCK):
            yield
    except Held as error:
        raise ConfigError(
            f"storage: another process answers with the store in {str(settings.storage)!r} "
            "already; valid: one process a store"
        ) from error


def read_store(settings: HolderSettings, read: Callable[[ClientStore], Found]) -> Found | None:
    """Return what `read` finds in the holder's store, also while its client runs; None without one.

    The function opens the store as a writer: then the write-ahead log counts, also the log of a
    killed process. If the store cannot be written, as in a backup, it opens it read-only. `read`
    must not write to it.
    """
    if not settings.store_file.exists():
        return None
    try:
        return read(open_client_store(settings.store_file))
    except StorageFull:
        return read(open_client_store(settings.store_file, read_only=True))


KEPT: Final = "offers"
"""The folder of a run's files, in the client's storage folder."""
Kind = Literal["offer", "parting", "left"]
RUN_NAME: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
"""The form of a run's name that becomes a file's name."""


@dataclass(frozen=True)
class Keeping:
    """The files that the holder keeps of its runs."""

    storage: Path

    def place(self, run_id: str, kind: Kind) -> Path:
        """Return the path of a file, which may be missing; `ProtocolError` for an unfit name."""
        if re.fullmatch(RUN_NAME, run_id) is None:
            raise ProtocolError("message: the run's name is not valid")
        return self.storage / KEPT / f"{run_id}.{kind}"

    def read(self, run_id: str, kind: Kind) -> bytes | None:
        """Return the data of a run, None if the file is missing; see `place` for the error."""
        try:
            return self.place(run_id, kind).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, run_id: str, kind: Kind, data: bytes) -> None:
        """Write data of a run, completely or not at all; see `place` for the error."""
        place = self.place(run_id, kind)
        make_folder(place.parent)
        write_bytes(place, data)

    def erase(self, run_id: str, kind: Kind) -> None:
        """Write zeros over a file and delete it; a missing file is no error."""
        erase(self.place(run_id, kind))

    def runs(self, kind: Kind) -> list[str]:
        """Return the runs that have a file of this kind, sorted."""
        ending = f".{kind}"
        found = (self.storage / KEPT).glob(f"*{ending}")
        names = (path.name.removesuffix(ending) for path in found)
        return sorted(name for name in names if re.fullmatch(RUN_NAME, name))

    def going_on(self) -> list[str]:
        """Return the accepted runs that are not over, sorted."""
        over = {*self.runs("parting"), *self.runs("left")}
        return [run_id for run_id in self.runs("offer") if run_id not in over]


KIND: Final = "client"


def back_up_store(settings: HolderSettings, file: Path, now: datetime) -> Manifest:
    """Back up a holder's own store and its files of runs, also while the client runs."""
    store = require_store(settings)

    def build(folder: Path) -> tuple[Manifest, Mapping[str, Path]]:
        copy = folder / STORE
        copy_databases(store, copy, dict, folder.joinpath)
        examined = folder / "examined"
        shutil.copyfile(copy, examined)
        # Opening would migrate an older schema, which the copy must keep: so open a second copy.
        opened = open_client_store(examined)
        opened.verify_integrity()
        beside = (f"{KEPT}/{path.name}" for path in (settings.storage / KEPT).glob("*"))
        # An unfinished file has another name, and does not count.
        known = {name: settings.storage / name for name in beside if may_hold(name)}
        members = {STORE: copy} | known
        facts = {"pseudonym": opened.identity.pseudonym}
        made = now.isoformat(timespec="seconds")
        version = stored_version(copy)
        return Manifest(kind=KIND, schema=version, made=made, facts=facts), members

    return make_backup(file, build, may_hold)


def restore_store(file: Path, settings: HolderSettings, now: datetime) -> Manifest:
    """Restore a data holder's store into an empty folder; the client must then catch up.

    The storage folder must be missing or empty, and stays so if the backup is not whole.
    """

    def lay_out(archive: Archive, folder: Path) -> None:
        if STORE not in archive.manifest.digests:
            raise ConfigError(f"FILE: {str(file)!r} holds no store")
        for name in archive.manifest.digests:
            target = folder / name
            make_folder(target.parent)
            archive.extract(name, target)
        store = open_client_store(folder / STORE)
        store.verify_integrity()
        store.restoring.mark(now)

    return restore_backup(file, settings.storage, kind=KIND, lay_out=lay_out, may_hold=may_hold)


def may_hold(name: str) -> bool:
    """Return whether a backup may hold a member of this name."""
    kinds = "|".join(get_args(Kind))
    kept = re.fullmatch(rf"{re.escape(KEPT)}/{RUN_NAME}\.({kinds})", name)
    return name == STORE or kept is not None


def own_store(settings: HolderSettings) -> ClientStore:
    """Return the holder's own store, which must exist, open for writing."""
    return open_client_store(require_store(settings))


def require_store(settings: HolderSettings) -> Path:
    """Return the file of the holder's store, which must exist (`ConfigError`)."""
    path = settings.store_file
    if not path.is_file():
        raise ConfigError(
            f"storage: there is no store at {str(path)!r}; "
            "valid: one that the client's first start has made"
        )
    return path


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The result of leaving one run.

    Attributes:
        is_new: Whether the client had not left it before.
        is_signed: Whether the statement is signed, which a coordinator with an enrolment requires.
        charges: Rows that stay in the holder's own ledger.
    """

    run_id: str
    is_new: bool
    is_signed: bool
    charges: int


def leave_runs(settings: HolderSettings, run_ids: Sequence[str] | None) -> list[Leaving]:
    """Leave some runs for good, None for all that were ever accepted here; erase them once more.

    Nothing changes if a run was never accepted here (`UnknownRun`). `DatabaseBusy` means that the
    client used its store all the time: try again.
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
            if identity is not None:
                statement = replace(statement, signature=identity.sign(statement.digest))
            keeping.keep(run_id, "left", encode_left(statement))
        erase_run(keeping, store, run_id)
        is_signed, charges = identity is not None, len(store.rows(run_id))
        found.append(Leaving(run_id=run_id, is_new=is_new, is_signed=is_signed, charges=charges))
    return found


def erase_run(keeping: Keeping, store: ClientStore, run_id: str) -> None:
    """Erase all of a run that the client left, except its charges; may be repeated."""
    store.erase_run(run_id)
    for kind in ("parting", "offer"):
        keeping.erase(run_id, kind)


def write_statement(settings: HolderSettings, run_id: str, file: Path) -> None:
    """Write the statement of having left a run into a new file, or `ConfigError`."""
    statement = Keeping(settings.storage).read(run_id, "left")
    if statement is None:
        raise ConfigError(f"RUN: {run_id!r} has not been left; valid is a run that has")
    if file.exists():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    try:
        write_bytes(file, statement)
    except OSError as error:
        raise ConfigError(f"FILE: {str(file)!r} cannot be written ({error.strerror})") from error
