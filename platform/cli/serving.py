"""The data holder's commands that load torch: its process, its own model, and its receipts."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from platform.cli.auditing import parse_key
from platform.cli.ending import AUDIT_BROKEN, SIGNALS, Ended, ending_at_once, same_again
from platform.cli.models import print_classes, read_image
from platform.cli.output import (
    Whole,
    answer,
    console,
    epsilon,
    fraction,
    print_json,
    printable,
    table,
)
from platform.disk.files import write_bytes
from platform.errors import ConfigError, listed
from platform.experiment.joining import own_model, serve_holder
from platform.experiment.planning import Surroundings
from platform.holder.settings import load_holder
from platform.holder.store import Keeping, read_store
from platform.parties.receipt_checks import (
    RunReceipts,
    forks,
    read_receipts,
    verified,
    write_receipts,
)
from platform.rounds.documents import json_number
from platform.wire.receipt_messages import ADVERSARIES, UploadDigest
from storage import KeptReceipt, LedgerRow


def serve_command(config: Path, *, as_json: bool) -> None:
    """Run a data holder's client until SIGTERM or Ctrl-C; it finishes its current answer first.

    A second signal ends the process where it is. Ctrl-C raises `Ended`, as SIGTERM alone is the
    usual end of a service. Under `as_json` each log line is a JSON object.
    """
    settings, ended = load_holder(config), threading.Event()

    def tell(line: str) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        text = json.dumps({"time": now, "event": line}) if as_json else f"{now} {line}"
        # If the log cannot be written, on a full disk for example, the answers stay the same.
        with suppress(OSError):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    came: list[int] = []

    def told(number: int) -> Ended:
        going = Keeping(settings.storage).going_on()
        runs = f"; it takes part in {listed(going)}" if going else ""
        return Ended(
            number,
            f"{settings.name} has ended{runs}",
            run_id=going[0] if len(going) == 1 else None,
            command=same_again(),
        )

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        ended.set()
        for each in SIGNALS:
            signal.signal(each, ending_at_once(told))

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        serve_holder(settings, Surroundings(), tell, ended)
    finally:
        for number, handler in () if came else before.items():
            signal.signal(number, handler)
    tell(f"{settings.name} has ended")
    # SIGTERM tells a service to end, and it has ended.
    if came[:1] == [signal.SIGINT]:
        raise told(signal.SIGINT)


def predict_command(config: Path, run_id: str, files: Sequence[Path], *, as_json: bool) -> None:
    """Classify image files with the holder's own model."""
    settings = load_holder(config)
    examples = {path: read_image(path) for path in files}
    found = own_model(settings, run_id, Surroundings())
    print_classes(found.model, "image", examples, as_json=as_json)


def evaluate_command(config: Path, run_id: str, *, as_json: bool) -> None:
    """Print accuracy on the holder's own test images."""
    found = own_model(load_holder(config), run_id, Surroundings())
    accuracy = found.accuracy()
    text = "there are no readable test images here; see `check`"
    if accuracy is not None:
        text = f"accuracy {fraction(accuracy)} on {found.tested} own test images"
    document = {"run_id": run_id, "accuracy": accuracy, "test_images": found.tested}
    answer(document, text, as_json=as_json)


def export_command(config: Path, run_id: str, file: Path, *, as_json: bool) -> None:
    """Write the holder's own model as one safetensors file."""
    from safetensors.numpy import save

    if file.exists():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is a new file")
    arrays = own_model(load_holder(config), run_id, Surroundings()).model.arrays()
    if not arrays:
        raise ConfigError(f"RUN: {run_id} trained nothing that could be exported")
    write_bytes(file, save(arrays, {"run_id": run_id}))
    document = {"run_id": run_id, "file": str(file), "tensors": sorted(arrays)}
    answer(document, Whole(file), as_json=as_json)


_SPENT = tuple(f"epsilon {name}" for name in ADVERSARIES)
_NAMES = ("run", "receipts", "rounds", "uploads", *_SPENT, "problems")


def verify_receipts(
    source: Path,
    compare: Sequence[Path] | None,
    key: str | None,
    *,
    uploads: Sequence[Path] | None,
    as_json: bool,
) -> None:
    """Recompute epsilon from receipts alone, and print every fault.

    The exit code is 3 if a record does not hold, or two files have no head in common.
    """
    trusted = None if key is None else parse_key(key)
    kept: Sequence[KeptReceipt]
    own: Sequence[LedgerRow] | None
    if source.suffix in (".yaml", ".yml"):
        kept, own = _of_holder(source)
    else:
        kept, own = read_receipts(source), None
    found = verified(kept, own, key=trusted)
    compared: list[dict[str, Any]] = []
    for path in compare or ():
        forked, common = forks(found, verified(read_receipts(path), key=trusted))
        if not common:
            forked.append(f"{path}: no common head, so nothing could be compared")
        compared.append({"file": str(path), "common": common, "problems": forked})
    bound = []
    for path in uploads or ():
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise ConfigError(
                f"--upload: {str(path)!r} cannot be read ({error.strerror}); "
                "valid: an upload as it was sent"
            ) from error
        # The run is None if no receipt names the upload.
        named = [(run.run_id, one) for run in found for one in run.uploads if one.digest == digest]
        document: dict[str, Any] = {"file": str(path), "run": None, "sha256": digest.hex()}
        if named:
            run_id, upload = named[0]
            document = {"file": str(path), "run": run_id, **_upload(upload)}
        bound.append(document)
    if as_json:
        runs = [
            {
                "run": run.run_id,
                "log": run.origin,
                "receipts": run.count,
                "rounds": run.rounds,
                **{
                    name: None
                    if spent is None
                    else {who: json_number(v) for who, v in spent.items()}
                    for name, spent in (("epsilon", run.epsilons), ("stated", run.stated))
                },
                "charged": run.charged,
                "uploads": [_upload(upload) for upload in run.uploads],
                "problems": list(run.problems),
            }
            for run in found
        ]
        print_json({"runs": runs, "compared": compared, "uploads": bound})
    else:
        _print(found, compared, bound)
    is_unknown = any(upload["run"] is None for upload in bound)
    if is_unknown or any(r.problems for r in found) or any(o["problems"] for o in compared):
        raise typer.Exit(AUDIT_BROKEN)


def export_receipts(config: Path, file: Path, *, as_json: bool) -> None:
    """Write all receipts of a data holder to a file that can be handed on."""
    kept, _ = _of_holder(config)
    if file.exists() or file.is_symlink():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    write_bytes(file, write_receipts(kept))
    text = Whole(f"{len(kept)} receipts in {file}")
    answer({"file": str(file), "receipts": len(kept)}, text, as_json=as_json)


def _of_holder(config: Path) -> tuple[Sequence[KeptReceipt], Sequence[LedgerRow]]:
    found = read_store(load_holder(config), lambda store: (store.receipts.all(), store.rows()))
    if found is None:
        raise ConfigError(
            f"CONFIG: {str(config)!r} has no store yet; valid: one whose client has run"
        )
    return found


def _upload(upload: UploadDigest) -> dict[str, Any]:
    return {"round": upload.round_number, "attempt": upload.attempt, "sha256": upload.digest.hex()}


def _print(
    found: Sequence[RunReceipts],
    compared: Sequence[Mapping[str, Any]],
    bound: Sequence[Mapping[str, Any]],
) -> None:
    rows = []
    for run in found:
        spent = [epsilon(run.epsilons[name]) if run.epsilons else "-" for name in ADVERSARIES]
        known = f"{len(run.uploads)} of {run.charged}"
        rows.append((run.run_id, run.count, run.rounds, known, *spent, len(run.problems)))
    console().print(table(None, _NAMES, rows))
    for other in compared:
        console().print(printable(f"{other['file']}: {other['common']} common heads"))
    faults = [f"run {run.run_id}: {problem}" for run in found for problem in run.problems]
    faults += [problem for other in compared for problem in other["problems"]]
    for upload in bound:
        if upload["run"] is None:
            faults.append(f"no receipt is of the upload in {upload['file']}")
        else:
            told = f"round {upload['round']}, attempt {upload['attempt']} of run {upload['run']}"
            console().print(printable(f"{upload['file']}: the upload of {told}"))
    for fault in faults:
        typer.echo(f"error: {printable(fault)}", err=True)
