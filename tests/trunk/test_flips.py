"""One flipped bit anywhere in a run's files is named, or changes nothing that is stated."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from methods import MethodError
from platform.agreement.statements import unfinished_document
from platform.cli.auditing import audited
from platform.errors import PlatformError
from platform.results.reading import agreed_run
from privacy import PrivacyError
from storage import StorageError
from tests.trunk._runs import OS, Finished, Storage

TINY = (
    *("task.clients=3", "secure_aggregation.threshold=2", "rounds=2", "cohort.dropout_rate=0.0"),
    *("evaluation.local_twins=false", "task.test_per_class=2", "pool.minimum=2", OS),
)
OURS = (PlatformError, MethodError, PrivacyError, StorageError)
FEW, MANY = 40, 2_500


@pytest.fixture(scope="module")
def tiny(make_storage: Callable[[str], Storage], tmp_path_factory: Any) -> Finished:
    """A small finished run, whose files are this module's own."""
    made = make_storage("tiny").run(*TINY)
    folder = tmp_path_factory.mktemp("flips") / "runs"
    shutil.copytree(made.storage.folder, folder)
    return Finished(Storage(folder), made.run_id, made.summary)


def files(run: Finished) -> list[Path]:
    """Everything that lies where the run does: databases, stores, reports and cached features."""
    found = (path for path in run.storage.folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path.stat().st_size)


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """One bit of a file is the other one."""
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
    """What `audit verify` says."""
    try:
        found = audited(run.storage.url)
    except OURS as error:
        return [str(error)]
    return [*found["problems"], *(text for one in found["runs"] for text in one["problems"])]


def flip_at_random(run: Finished, flips: int, seed: int) -> tuple[int, list[str]]:
    """Flips bits one at a time, every second one in a file that is small beside the others.

    The first, third, ... is uniform over all bytes of all files, the others over the files.

    Returns:
        How many were named, and the flips that changed what is stated and were not named.
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
