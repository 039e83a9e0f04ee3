"""Who has the client's own store: one process that answers, and whoever reads it meanwhile.

What a data holder's process keeps of each run beside its store: a file a kind.

The offer that was accepted, the parting with which the run ended, and the statement of having left.

Backups of a data holder's own store, and what becomes of a client that comes back from one.

A backup is older than the client's last release. Restored, the store says so, and the client takes
part in no round before it has caught up (`platform.parties.own_ledger`): it would otherwise take
itself for one that has spent less, and answer a second time what it has answered. The private key
is in no backup: it stays where it was made.

Leaving a run for good: said under the holder's own key, and then erased here.

What is kept first is the statement, which from then on is the answer to every message of that run;
the coordinator hears of it when it asks for the next thing, or is handed the file. Then all of the
run goes but what was spent in it: charges are the holder's for life. Killed in between, the
statement is there, and whoever finds it erases the rest.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
"""File in the storage folder which the process that answers holds."""


@contextmanager
def only_process_with(settings: HolderSettings) -> Iterator[None]:
    """Keep a store to this process, whatever socket another one would answer at.

    Raises:
        ConfigError: If another process answers with it.
        Unwritable: If the lock cannot be made.
    """
    try:
        with held(settings.storage / LOCK):
            yield
    except Held as error:
        raise ConfigError(
            f"storage: another process answers with the store in {str(settings.storage)!r} "
            "already; valid: one process a store"
        ) from error


def read_store(settings: HolderSettings, read: Callable[[ClientStore], Found]) -> Found | None:
    """Return what is read of the holder's store, also beside its client, or after that was killed.

    Who reads beside a writer reads better as one of them: what lies in the write-ahead log then is
    part of what is read, and a log that a killed process left is taken up. Where nothing can be
    written, as in a backup, nobody writes, and it is read alone.

    Args:
        settings: The holder's.
        read: Told the store; writes nothing.

    Returns:
        None where there is no store yet.

    Raises:
        StorageError: The file is no store, or damaged.
    """
    if not settings.store_file.exists():
        return None
    try:
        return read(open_client_store(settings.store_file))
    except StorageFull:
        return read(open_client_store(settings.store_file, read_only=True))


KEPT: Final = "offers"
"""Their folder, in the client's storage folder."""
Kind = Literal["offer", "parting", "left"]
RUN_NAME: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
"""What the name of a run looks like that becomes a file's name."""


@dataclass(frozen=True)
class Keeping:
    """What is kept of runs.

    Attributes:
        storage: The client's storage folder.
    """

    storage: Path

    def place(self, run_id: str, kind: Kind) -> Path:
        """Return where it lies, whether it is there or not.

        Raises:
            ProtocolError: If the run's name is none.
        """
        if re.fullmatch(RUN_NAME, run_id) is None:
            raise ProtocolError("message: the run's name is not valid")
        return self.storage / KEPT / f"{run_id}.{kind}"

    def read(self, run_id: str, kind: Kind) -> bytes | None:
        """Return what is kept, None where nothing is.

        Raises:
            ProtocolError: If the run's name is none.
        """
        try:
            return self.place(run_id, kind).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, run_id: str, kind: Kind, data: bytes) -> None:
        """Keep it, whole or not at all.

        Raises:
            ProtocolError: If the run's name is none.
        """
        place = self.place(run_id, kind)
        make_folder(place.parent)
        write_bytes(place, data)

    def erase(self, run_id: str, kind: Kind) -> None:
        """Write zeros over what is kept, and delete it; does nothing where nothing is."""
        erase(self.place(run_id, kind))

    def runs(self, kind: Kind) -> list[str]:
        """Return the runs of which this is kept, sorted."""
        ending = f".{kind}"
        found = (self.storage / KEPT).glob(f"*{ending}")
        names = (path.name.removesuffix(ending) for path in found)
        return sorted(name for name in names if re.fullmatch(RUN_NAME, name))

    def going_on(self) -> list[str]:
        """Return the runs that were accepted and are not over, sorted."""
        over = {*self.runs("parting"), *self.runs("left")}
        return [run_id for run_id in self.runs("offer") if run_id not in over]


def may_be_kept(name: str) -> bool:
    """Return whether a file may have this name, from the storage folder on."""
    kinds = "|".join(get_args(Kind))
    return re.fullmatch(rf"{re.escape(KEPT)}/{RUN_NAME}\.({kinds})", name) is not None


KIND: Final = "client"


def back_up_store(settings: HolderSettings, file: Path, now: datetime) -> Manifest:
    """Back up a holder's own store and what it keeps of its runs, also while the client runs.

    Args:
        settings: The holder's.
        file: The backup, which is not there yet.
        now: When it is made, for its manifest.

    Raises:
        ConfigError: If there is no store, or the backup is there already.
        StorageError: If the store is damaged, or the backup cannot be written; then there is none.
    """
    store = require_store(settings)

    def build(folder: Path) -> tuple[Manifest, Mapping[str, Path]]:
        copy = folder / STORE
        copy_databases(store, copy, dict, folder.joinpath)
        examined = folder / "examined"
        shutil.copyfile(copy, examined)
        # A copy of the copy, which may be of an older schema, and stays so.
        opened = open_client_store(examined)
        opened.verify_integrity()
        beside = (f"{KEPT}/{path.name}" for path in (settings.storage / KEPT).glob("*"))
        # What is written just now has another name, and is not there yet.
        known = {name: settings.storage / name for name in beside if may_hold(name)}
        members = {STORE: copy} | known
        facts = {"pseudonym": opened.identity.pseudonym}
        made = now.isoformat(timespec="seconds")
        version = stored_version(copy)
        return Manifest(kind=KIND, schema=version, made=made, facts=facts), members

    return make_backup(file, build, may_hold)


def restore_store(file: Path, settings: HolderSettings, now: datetime) -> Manifest:
    """Bring a data holder's store back where there is none; it must then catch up.

    Args:
        file: The backup.
        settings: The holder's; its storage folder must be missing or empty.
        now: The time, which the store remembers.

    Raises:
        ConfigError: If the backup is none that is whole, or there is something in the folder.
        StorageError: If the store in it is damaged or of a newer version, or cannot be written;
            then nothing is there.
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
    return name == STORE or may_be_kept(name)


def own_store(settings: HolderSettings) -> ClientStore:
    """Return the holder's own store, to be written to.

    Raises:
        ConfigError: If there is none.
        StorageError: If it cannot be used.
    """
    return open_client_store(require_store(settings))


def require_store(settings: HolderSettings) -> Path:
    """Return where the holder's store lies.

    Raises:
        ConfigError: If there is none.
    """
    path = settings.store_file
    if not path.is_file():
        raise ConfigError(
            f"storage: there is no store at {str(path)!r}; "
            "valid: one that the client's first start has made"
        )
    return path


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
