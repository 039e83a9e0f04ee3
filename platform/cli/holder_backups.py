"""`backup`, `restore` and `catch-up` of a data holder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from platform.cli.backing_up import show_manifest
from platform.cli.output import console, print_json
from platform.errors import ConfigError
from platform.holder.backups import back_up_store, own_store, restore_store
from platform.holder.settings import load_holder
from platform.parties.catching_up import catch_up
from platform.wire.charges import Charges, decode_charges


def backup_command(config: Path, file: Path, *, as_json: bool) -> None:
    """Back up a data holder's store, and say what is in the backup.

    Raises:
        ConfigError: If the settings are not valid, there is no store, or the backup is there.
        StorageError: If the store is damaged, or the backup cannot be written.
    """
    manifest = back_up_store(load_holder(config), file, datetime.now(UTC))
    show_manifest(file, manifest, as_json=as_json)


def restore_command(config: Path, file: Path, *, as_json: bool) -> None:
    """Bring a data holder's store back, and say what is to be done next.

    Raises:
        ConfigError: If the settings are not valid, the backup is none that is whole, or something
            is in the storage folder.
        StorageError: If the store in it cannot be used, or not be written; then nothing is there.
    """
    settings = load_holder(config)
    manifest = restore_store(file, settings, datetime.now(UTC))
    show_manifest(settings.store_file, manifest, as_json=as_json)
    if not as_json:
        console().print(
            "it takes part in no round before it has caught up: ask each coordinator for "
            f"`charges {manifest.facts.get('pseudonym')} FILE`, and give all files to `catch-up`",
        )


def catch_up_command(config: Path, files: Sequence[Path], *, as_json: bool) -> None:
    """Take over what coordinators charged, and say how much was new.

    Raises:
        ConfigError: If the settings or the files are not valid, or do not fit the store.
        StorageError: If the store cannot be used.
    """
    store = own_store(load_holder(config))
    added = catch_up(store, [_read(file) for file in files], datetime.now(UTC))
    if as_json:
        print_json({"pseudonym": store.identity.pseudonym, "added": added})
        return
    console().print(f"{added} charges were added; the client takes part again")


def _read(file: Path) -> Charges:
    try:
        return decode_charges(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"CHARGES: {str(file)!r} cannot be read ({error.strerror}); "
            "valid: a file that `charges` made"
        ) from error
