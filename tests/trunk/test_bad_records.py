"""Records that were spoilt, one way after the other: each is named, and nothing is written."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from methods import MethodError
from platform.agreement.statements import unfinished_document
from platform.cli.auditing import audited
from platform.disk.log_files import add_note, log_signer
from platform.errors import PlatformError
from platform.results.reading import agreed_run
from privacy import PrivacyError
from privacy.transparency import Checkpoint, NoteSigner, sign_checkpoint
from storage import StorageError
from tests.trunk._runs import OS, Finished, Storage
from tests.trunk._tampering import execute
from tests.trunk.test_files import contents


def rows_in_another_order(run: Finished) -> None:
    move = "UPDATE audit SET sequence = {} WHERE sequence = {}"
    execute(run.storage.file, *(move.format(*pair) for pair in ((999, 5), (5, 6), (6, 999))))


def a_truncated_tree(run: Finished) -> None:
    execute(run.storage.file, "DELETE FROM leaves WHERE position > 5")


def a_wrong_signature(run: Finished) -> None:
    signer = log_signer(run.storage.file)
    stranger = NoteSigner(signer.name, bytes(32))
    note = sign_checkpoint(Checkpoint(signer.name, 3, bytes(32)), stranger)
    add_note(run.storage.file, note)


def a_flipped_bit_of_a_blob(run: Finished) -> None:
    with closing(sqlite3.connect(run.storage.file, isolation_level=None)) as connection:
        query = "SELECT round_number, blob FROM states ORDER BY round_number DESC LIMIT 1"
        ((number, blob),) = connection.execute(query)
        changed = bytes([*blob[:-1], blob[-1] ^ 1])
        connection.execute("UPDATE states SET blob = ? WHERE round_number = ?", (changed, number))


def a_folder_in_a_files_place(run: Finished) -> None:
    (run.folder / "metrics.csv").unlink()
    (run.folder / "metrics.csv").mkdir()


# Rows that were edited or deleted are those of `test_audit_cli.py` and `test_agreement.py`.
ATTACKS: dict[str, tuple[Callable[[Finished], None], str]] = {
    "rows in another order": (rows_in_another_order, "broken at entry 5"),
    "a truncated tree": (a_truncated_tree, "leaves"),
    "a wrong signature": (a_wrong_signature, "audit.heads: line"),
    "a folder in a file's place": (a_folder_in_a_files_place, "metrics.csv cannot be read"),
    "a flipped bit of a blob": (a_flipped_bit_of_a_blob, "does not fit its digest"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_spoilt_records_are_named_and_left_as_they_are(sotto, own_copy, attack):
    spoil, named = ATTACKS[attack]
    spoil(own_copy)
    before = contents(own_copy.storage.folder)
    answer = sotto("audit", "verify", "--storage", own_copy.storage.url)
    assert answer.code not in (0, 1) and "Traceback" not in answer.err
    assert named in answer.err, answer.err
    assert contents(own_copy.storage.folder) == before


TINY = (
    *("task.clients=3", "secure_aggregation.threshold=2", "rounds=1", "cohort.dropout_rate=0.0"),
    *("task.test_per_class=1", "pool.minimum=2", OS),
)
OURS = (PlatformError, MethodError, PrivacyError, StorageError)
FEW, MANY = 6, 2_500


@pytest.fixture(scope="module")
def tiny(make_storage: Callable[[str], Storage], tmp_path_factory: Any) -> Finished:
    made = make_storage("tiny").run(*TINY)
    folder = tmp_path_factory.mktemp("flips") / "runs"
    shutil.copytree(made.storage.folder, folder)
    return Finished(Storage(folder), made.run_id, made.summary)


def files(run: Finished) -> list[Path]:
    found = (path for path in run.storage.folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path.stat().st_size)


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    data = path.read_bytes()
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(data)


def report(run: Finished) -> str | None:
    """The document that `report` prints, None where it prints a sentence."""
    try:
        agreed = agreed_run(run.run_id, run.storage.url)
    except OURS as error:
        assert str(error) and "\n" not in str(error)
        return None
    document = agreed.summary or unfinished_document(agreed)
    return json.dumps(document, indent=2)


def problems(run: Finished) -> list[str]:
    try:
        found = audited(run.storage.url)
    except OURS as error:
        return [str(error)]
    return [*found["problems"], *(text for one in found["runs"] for text in one["problems"])]


def flip_at_random(run: Finished, flips: int, seed: int) -> tuple[int, list[str]]:
    """How many flips were named, and those that changed what is stated and were not.

    Every second one is uniform over all bytes of all files, the others over the files.
    """
    rng, places = random.Random(seed), files(run)
    sizes, before = [path.stat().st_size for path in places], report(run)
    assert before is not None and problems(run) == []
    named, silent = 0, []
    for index in range(flips):
        (path,) = rng.choices(places, weights=sizes if index % 2 else None)
        bit = rng.randrange(8 * path.stat().st_size)
        with flipped(path, bit):
            stated = report(run)
            # Whatever `audit verify` says, nothing but the truth is stated.
            assert stated in (None, before), f"bit {bit} of {path.name}"
            if problems(run):
                named += 1
            elif stated != before:
                silent.append(f"bit {bit} of {path.name}")
    return named, silent


def test_flipped_bits_are_named_or_harmless(tiny: Finished) -> None:
    named, silent = flip_at_random(tiny, FEW, seed=0)
    assert silent == [] and named > 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_many_flipped_bits_are_named_or_harmless(tiny: Finished) -> None:
    named, silent = flip_at_random(tiny, MANY, seed=1)
    assert silent == [] and named > MANY // 10
