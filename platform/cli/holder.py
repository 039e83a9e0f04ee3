"""The data holder's commands that need no model: checks, budget, keys, backups and leaving."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

import platform.holder
from platform.cli.ending import BAD_INPUT
from platform.cli.keeping import show_manifest
from platform.cli.output import answer, console, epsilon, rounded_down, table
from platform.errors import ConfigError
from platform.holder.checking import CONFIGURATION, Check, check_file, check_holder
from platform.holder.settings import account_of, load_holder, own_account
from platform.holder.store import (
    back_up_store,
    leave_runs,
    own_store,
    read_store,
    restore_store,
    write_statement,
)
from platform.parties.client_state import catch_up
from platform.parties.identities import create_key, read_key
from platform.rounds.documents import json_number
from platform.wire.charges import decode_charges
from privacy.secure_aggregation import Identity, fingerprint

EXAMPLE: Final = Path(platform.holder.__file__).with_name("example.yaml")


def check_command(config: Path, *, as_json: bool) -> None:
    """Check a data holder's settings, files and folders; exit code 2 if a check failed."""
    try:
        settings = load_holder(config)
        checks = (check_file(config), *check_holder(settings))
    except ConfigError as error:
        checks = (Check(CONFIGURATION, False, str(error)),)
    is_sound = all(check.is_sound for check in checks)
    answer(
        {"is_sound": is_sound, "checks": [asdict(check) for check in checks]},
        *(f"{'ok' if c.is_sound else 'failed':<7} {c.point:<14} {c.text}" for c in checks),
        as_json=as_json,
    )
    if not is_sound:
        raise typer.Exit(BAD_INPUT)


def budget_command(config: Path, *, as_json: bool) -> None:
    """Show how much a data holder has spent and how much is left, by its own store."""
    settings = load_holder(config)
    limits = settings.limits
    account = read_store(settings, lambda store: own_account(store, limits))
    account = account_of((), limits) if account is None else account
    every = [
        {
            **asdict(one),
            "epsilon": None if one.epsilon is None else json_number(one.epsilon),
            "left": one.left,
        }
        for one in (*account.runs, account.total)
    ]
    rows = [
        (
            one["run_id"] or "all runs",
            ", ".join(one["mechanisms"]) or "-",
            str(one["releases"]),
            "n/a" if one["problem"] is not None else epsilon(one["epsilon"]),
            "-" if one["limit"] is None else f"{one['limit']:g}",
            rounded_down(one["left"]),
        )
        for one in every
    ]
    columns = ("run", "mechanisms", "releases", "epsilon", "limit", "left")
    answer(
        {"name": settings.name, "delta": limits.delta, "runs": every[:-1], "total": every[-1]},
        table(f"{settings.name}: epsilon at delta {limits.delta:g}", columns, rows),
        *(
            f"note: {one['run_id'] or 'all runs'} has no epsilon: {one['problem']}"
            for one in every
            if one["problem"] is not None
        ),
        "note: epsilons do not add up; the next release is priced with all that came before it, "
        "so what is left is a difference, not a promise of that much more",
        as_json=as_json,
    )


def example_command() -> None:
    """Print a settings file to start from."""
    sys.stdout.write(EXAMPLE.read_text(encoding="utf-8"))


def create_key_command(file: Path, *, as_json: bool) -> None:
    """Make a private key in a new file, as keys are never replaced, and show its public half."""
    _show_key(create_key(file), as_json=as_json)


def show_key_command(file: Path, *, as_json: bool) -> None:
    """Show the public half of a private key."""
    _show_key(read_key(file, key="KEY"), as_json=as_json)


def _show_key(identity: Identity, *, as_json: bool) -> None:
    public, short = identity.public.hex(), fingerprint(identity.public)
    answer(
        {"public": public, "fingerprint": short},
        f"public key  {public}\nfingerprint {short}",
        "the public key travels; compare the fingerprint by telephone or in person",
        as_json=as_json,
    )


def backup_command(config: Path, file: Path, *, as_json: bool) -> None:
    """Back up a data holder's store, and say what is in the backup."""
    manifest = back_up_store(load_holder(config), file, datetime.now(UTC))
    show_manifest(file, manifest, as_json=as_json)


def restore_command(config: Path, file: Path, *, as_json: bool) -> None:
    """Bring a data holder's store back, or leave its folder empty, and print the next steps."""
    settings = load_holder(config)
    manifest = restore_store(file, settings, datetime.now(UTC))
    show_manifest(settings.store_file, manifest, as_json=as_json)
    if not as_json:
        console().print(
            "it takes part in no round before it has caught up: ask each coordinator for "
            f"`charges {manifest.facts.get('pseudonym')} FILE`, and give all files to `catch-up`",
        )


def catch_up_command(config: Path, files: Sequence[Path], *, as_json: bool) -> None:
    """Take over charges of coordinators, and say how many were new."""
    store = own_store(load_holder(config))
    charges = []
    for file in files:
        try:
            charges.append(decode_charges(file.read_bytes()))
        except OSError as error:
            raise ConfigError(
                f"CHARGES: {str(file)!r} cannot be read ({error.strerror}); "
                "valid: a file that `charges` made"
            ) from error
    added = catch_up(store, charges, datetime.now(UTC))
    found = {"pseudonym": store.identity.pseudonym, "added": added}
    answer(found, f"{added} charges were added; the client takes part again", as_json=as_json)


def leave_command(
    config: Path, runs: Sequence[str] | None, statement: Path | None, *, all_: bool, as_json: bool
) -> None:
    """Leave some or all runs for good, and say what stays here of each."""
    run_ids = None if all_ else runs or ()
    if run_ids is not None and not run_ids:
        raise ConfigError("RUN: no run is named; valid: names of runs, or --all")
    if statement is not None and (run_ids is None or len(run_ids) != 1):
        raise ConfigError("--statement: one statement is about one run; valid with one RUN")
    settings = load_holder(config)
    found = leave_runs(settings, run_ids)
    if statement is not None:
        write_statement(settings, found[0].run_id, statement)
    said = []
    for one in found:
        word = "left" if one.is_new else "had been left before, and is erased again"
        said.append(f"{one.run_id}: {word}; {one.charges} charges stay, all else is erased")
    if any(one.is_new and not one.is_signed for one in found):
        said.append("note: without an identity the statement is not signed")
    said.append(
        "keep the client running until the coordinator has heard it; delete older backups yourself"
    )
    answer([asdict(one) for one in found], *said, as_json=as_json)
