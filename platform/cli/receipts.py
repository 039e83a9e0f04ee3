"""`receipts verify` and `receipts export` of a data holder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from platform.cli import exit_codes
from platform.cli.auditing import parse_key
from platform.cli.output import console, epsilon, print_json, printable, table
from platform.disk.files import write_bytes
from platform.errors import ConfigError
from platform.holder.settings import load_holder
from platform.holder.store import read_store
from platform.parties.receipt_checks import (
    RunReceipts,
    forks,
    read_receipts,
    verified,
    write_receipts,
)
from platform.wire.receipt_messages import ADVERSARIES, UploadDigest
from storage import KeptReceipt, LedgerRow

_SPENT = tuple(f"epsilon {name}" for name in ADVERSARIES)
_NAMES = ("run", "receipts", "rounds", "uploads", *_SPENT, "problems")


def verify_receipts(
    source: Path,
    compare: Sequence[Path],
    key: str | None,
    *,
    uploads: Sequence[Path] = (),
    as_json: bool,
) -> None:
    """Recompute what receipts prove was spent, and name what does not hold.

    Args:
        source: A data holder's settings, or a file of receipts.
        compare: Files of other clients.
        key: The log's public key, as text.
        uploads: Files that hold an upload each, byte by byte as it was sent.
        as_json: Print JSON.

    Raises:
        ConfigError: A file is none of these, or there is no store.
        Exit: With the code for records that do not hold, also where nothing could be compared.
    """
    trusted = None if key is None else parse_key(key)
    kept, own = _source(source)
    found = verified(kept, own, key=trusted)
    compared: list[dict[str, Any]] = []
    for path in compare:
        forked, common = forks(found, verified(read_receipts(path), key=trusted))
        if not common:
            forked.append(f"{path}: no head is in common, so nothing could be compared")
        compared.append({"file": str(path), "common": common, "problems": forked})
    bound = [_bound(path, found) for path in uploads]
    problems = [p for run in found for p in run.problems]
    problems += [_unknown(x) for x in bound if x["run"] is None]
    problems += [p for other in compared for p in other["problems"]]
    if as_json:
        runs = [_document(run) for run in found]
        print_json({"runs": runs, "compared": compared, "uploads": bound})
    else:
        _print(found, compared)
        _print_uploads(bound)
    if problems:
        raise typer.Exit(exit_codes.AUDIT_BROKEN)


def export_receipts(config: Path, file: Path, *, as_json: bool) -> None:
    """Write all receipts of a data holder to a file that can be handed on.

    Raises:
        ConfigError: The settings are not valid, there is no store, or the file is there.
    """
    kept, _ = _of_holder(config)
    if file.exists() or file.is_symlink():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    write_bytes(file, write_receipts(kept))
    if as_json:
        print_json({"file": str(file), "receipts": len(kept)})
    else:
        console().print(f"{len(kept)} receipts in {file}", soft_wrap=True)


def _source(source: Path) -> tuple[Sequence[KeptReceipt], Sequence[LedgerRow] | None]:
    if source.suffix in (".yaml", ".yml"):
        return _of_holder(source)
    return read_receipts(source), None


def _of_holder(config: Path) -> tuple[Sequence[KeptReceipt], Sequence[LedgerRow]]:
    found = read_store(load_holder(config), lambda store: (store.receipts.all(), store.rows()))
    if found is None:
        raise ConfigError(
            f"CONFIG: {str(config)!r} has no store yet; valid: one whose client has run"
        )
    return found


def _document(run: RunReceipts) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "log": run.log.origin,
        "receipts": run.count,
        "rounds": run.rounds,
        "epsilon": _finite(run.epsilons),
        "stated": _finite(run.stated),
        "charged": run.received.charged,
        "uploads": [_upload(upload) for upload in run.received.uploads],
        "problems": list(run.problems),
    }


def _upload(upload: UploadDigest) -> dict[str, Any]:
    return {
        "round": upload.round_number,
        "attempt": upload.attempt,
        "sha256": upload.digest.hex(),
    }


def _bound(path: Path, found: Sequence[RunReceipts]) -> dict[str, Any]:
    """Return which round an upload is of, by the receipts; none where no receipt tells of it."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise ConfigError(
            f"--upload: {str(path)!r} cannot be read ({error.strerror}); "
            "valid: an upload as it was sent"
        ) from error
    for run in found:
        for upload in run.received.uploads:
            if upload.digest == digest:
                return {"file": str(path), "run": run.run_id, **_upload(upload)}
    return {"file": str(path), "run": None, "sha256": digest.hex()}


def _unknown(upload: Mapping[str, Any]) -> str:
    return f"no receipt is of the upload in {upload['file']}"


def _print_uploads(bound: Sequence[Mapping[str, Any]]) -> None:
    for upload in bound:
        if upload["run"] is None:
            typer.echo(f"error: {printable(_unknown(upload))}", err=True)
        else:
            told = f"round {upload['round']}, attempt {upload['attempt']} of run {upload['run']}"
            console().print(printable(f"{upload['file']}: the upload of {told}"))


def _finite(values: Mapping[str, float] | None) -> dict[str, float | str] | None:
    if values is None:
        return None
    return {name: "inf" if math.isinf(value) else value for name, value in values.items()}


def _print(found: Sequence[RunReceipts], compared: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for run in found:
        spent = [epsilon(run.epsilons[name]) if run.epsilons else "-" for name in ADVERSARIES]
        known = f"{len(run.received.uploads)} of {run.received.charged}"
        rows.append((run.run_id, run.count, run.rounds, known, *spent, len(run.problems)))
    console().print(table(None, _NAMES, rows))
    for other in compared:
        console().print(printable(f"{other['file']}: {other['common']} heads are in common"))
    for run in found:
        for problem in run.problems:
            typer.echo(f"error: run {printable(run.run_id)}: {printable(problem)}", err=True)
    for other in compared:
        for problem in other["problems"]:
            typer.echo(f"error: {printable(problem)}", err=True)
