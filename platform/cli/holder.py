"""The data holder's commands: `check`, `budget`, `example` and `keys`."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer

import platform.holder
from platform.cli import exit_codes
from platform.cli.output import console, epsilon, print_json, rounded_down, table
from platform.errors import ConfigError
from platform.holder.budget import Account, Spending, account_of, own_account
from platform.holder.checking import CONFIGURATION, Check, check_file, check_holder
from platform.holder.settings import HolderSettings, load_holder
from platform.holder.store import read_store
from platform.parties.enrolment import create_key, read_key
from privacy.secure_aggregation import Identity, fingerprint

EXAMPLE: Final = Path(platform.holder.__file__).with_name("example.yaml")


def check_command(config: Path, *, as_json: bool) -> None:
    """Say what is right and wrong with a data holder's settings, and with what they name.

    Raises:
        typer.Exit: With code 2, if a check failed.
    """
    try:
        settings = load_holder(config)
        checks = (check_file(config), *check_holder(settings))
    except ConfigError as error:
        checks = (Check(CONFIGURATION, False, str(error)),)
    is_sound = all(check.is_sound for check in checks)
    if as_json:
        print_json({"is_sound": is_sound, "checks": [asdict(check) for check in checks]})
    else:
        out = console()
        for check in checks:
            word = "ok" if check.is_sound else "failed"
            out.print(f"{word:<7} {check.point:<14} {check.text}")
    if not is_sound:
        raise typer.Exit(exit_codes.BAD_INPUT)


def budget_command(config: Path, *, as_json: bool) -> None:
    """Show what a data holder has spent and what is left, from its own store.

    Raises:
        ConfigError: If the settings are not valid.
        StorageError: If the store cannot be read.
    """
    settings = load_holder(config)
    limits = settings.limits
    account = read_store(settings, lambda store: own_account(store, limits))
    known = account_of((), limits) if account is None else account
    if as_json:
        print_json(_document(settings, known))
    else:
        _print_account(settings, known)


def _document(settings: HolderSettings, account: Account) -> dict[str, Any]:
    return {
        "name": settings.name,
        "delta": settings.limits.delta,
        "runs": [_spending_document(run) for run in account.runs],
        "total": _spending_document(account.total),
    }


def _spending_document(spent: Spending) -> dict[str, Any]:
    return {**asdict(spent), "epsilon": _finite(spent.epsilon), "left": spent.left}


def _finite(value: float | None) -> float | str | None:
    """Return a number as strict JSON can hold it, which has no infinity."""
    return "inf" if value is not None and math.isinf(value) else value


def _print_account(settings: HolderSettings, account: Account) -> None:
    out = console()
    title = f"{settings.name}: epsilon at delta {settings.limits.delta:g}"
    columns = ("run", "mechanisms", "releases", "epsilon", "limit", "left")
    out.print(table(title, columns, [_row(one) for one in (*account.runs, account.total)]))
    for one in (*account.runs, account.total):
        if one.problem is not None:
            out.print(f"note: {_name(one)} has no epsilon: {one.problem}")
    out.print(
        "note: epsilons do not add up; the next release is priced with all that came before it, "
        "so what is left is a difference and no promise of so much more",
    )


def _name(spent: Spending) -> str:
    return "all runs" if spent.run_id is None else spent.run_id


def _row(spent: Spending) -> tuple[str, ...]:
    return (
        _name(spent),
        ", ".join(spent.mechanisms) or "-",
        str(spent.releases),
        "n/a" if spent.problem is not None else epsilon(_finite(spent.epsilon)),
        "-" if spent.limit is None else f"{spent.limit:g}",
        rounded_down(spent.left),
    )


def example_command() -> None:
    """Print a settings file to start from."""
    sys.stdout.write(EXAMPLE.read_text(encoding="utf-8"))


def create_key_command(path: Path, *, as_json: bool) -> None:
    """Make a private key and show its public half.

    Raises:
        ConfigError: If the file exists, as keys are never replaced, or cannot be written.
    """
    _show_key(create_key(path), as_json=as_json)


def show_key_command(path: Path, *, as_json: bool) -> None:
    """Show the public half of a private key.

    Raises:
        ConfigError: If the file holds none.
    """
    _show_key(read_key(path, key="KEY"), as_json=as_json)


def _show_key(identity: Identity, *, as_json: bool) -> None:
    public, short = identity.public.hex(), fingerprint(identity.public)
    if as_json:
        print_json({"public": public, "fingerprint": short})
        return
    out = console()
    out.print(f"public key  {public}\nfingerprint {short}")
    out.print("the public key travels; compare the fingerprint by telephone or in person")
