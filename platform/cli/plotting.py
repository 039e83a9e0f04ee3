"""`plot`: draws a run or a sweep into files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform.cli.datasets import HoldingsPicture, title_of
from platform.cli.output import console, print_json
from platform.config import RunConfig
from platform.config.rules import HELD
from platform.data.loading import holdings, load_task_data
from platform.errors import ConfigError, UnknownRun, listed
from platform.pictures.canvas import SUFFIXES, Picture
from platform.results.comparisons import sweep_pictures
from platform.results.reading import is_sweep, numbers_of, read_runs, read_sweep_runs
from platform.results.run_pictures import ABSENT, files_of, run_pictures, write_pictures

HOLDINGS: Final = "holdings"
OUTPUTS: Final = Path("pictures")
OF_RUN: Final = ("curves", "tradeoff", "clients", "experts", HOLDINGS)
OF_SWEEP: Final = ("curves", "tradeoff", "final", "clients", "experts", "axes", HOLDINGS)
_DEALT: Final = "its runs deal out images in {} ways; valid for holdings is one RUN of them"

Pictures = Mapping[str, tuple[Picture, ...]]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The pictures of a run or a sweep.

    Attributes:
        whose: The run or the sweep, in words.
        folder: Default name of the folder.
        pictures: Pictures by kind.
        missing: Why a kind has no picture, in words, by kind.
        remark: A note on all pictures; empty without one.
    """

    whose: str
    folder: str
    pictures: Pictures
    missing: Mapping[str, str]
    remark: str = ""


def plot_command(
    name: str,
    storage: str,
    *,
    kinds: Sequence[str],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw a run or a sweep.

    Args:
        name: A run's id, `latest`, or the folder of a sweep.
        storage: The coordinator's database.
        kinds: Kinds of pictures; empty for all kinds that have data.
        output: A file or a folder, None for the default folder.
        force: Whether existing files are written over.
        as_json: Print JSON.

    Raises:
        ConfigError: If an option is not valid, a kind has no data, or a file exists; nothing is
            written then.
        UnknownRun: If there is no such run or sweep.
        RunStopped: If records do not agree; nothing is written then.
        AuditChainBroken: If an audit log was changed; nothing is written then.
        Unwritable: If a file cannot be written.
    """
    of_sweep = is_sweep(Path(name))
    valid = OF_SWEEP if of_sweep else OF_RUN
    for kind in kinds:
        if kind not in valid:
            raise ConfigError(f"--kind: {kind!r} is not valid here; valid: {', '.join(valid)}")
    draws_holdings = HOLDINGS in (kinds or valid)
    drawn = (_of_sweep if of_sweep else _of_run)(name, storage, draws_holdings)
    there = [kind for kind, found in drawn.pictures.items() if found]
    for kind in kinds:
        if kind not in there:
            raise ConfigError(
                f"--kind: {drawn.whose} has no {kind} ({drawn.missing[kind]}); valid: "
                f"{listed(there)}"
            )
    pictures = [one for kind in dict.fromkeys(kinds or there) for one in drawn.pictures[kind]]
    if not pictures:
        raise ConfigError(f"RUN|SWEEP: {drawn.whose} has nothing to draw yet; valid is a later one")
    files = _files(output, OUTPUTS / drawn.folder, pictures)
    _require_free(files, force=force)
    written = write_pictures(files, drawn.whose)
    left_out = {} if kinds else drawn.missing
    if as_json:
        print_json({"files": [str(path) for path in written], "missing": dict(left_out)})
        return
    out = console()
    for path in written:
        out.print(f"picture: {path}", soft_wrap=True)
    for kind, why in left_out.items():
        out.print(f"no {kind}: {why}")
    if drawn.remark:
        out.print(f"note: {drawn.remark}")


def _of_run(name: str, storage: str, draws_holdings: bool) -> Drawn:
    try:
        (agreed,) = read_runs(storage, [name])
    except UnknownRun as error:
        if Path(name).is_dir():
            raise UnknownRun(
                f"{error}; as SWEEP: the folder {name!r} has no sweep.json, which the "
                "`sweep` command that made it writes anew"
            ) from error
        raise
    numbers = numbers_of(agreed)
    found = run_pictures(numbers)
    found[HOLDINGS] = _holdings(agreed.config) if draws_holdings else ()
    return Drawn(
        whose=f"run {numbers.run_id}",
        folder=numbers.run_id,
        pictures=found,
        missing=_missing(found, OF_RUN),
        remark="" if numbers.finished else "the run has not finished; drawn as far as it has come",
    )


def _of_sweep(name: str, storage: str, draws_holdings: bool) -> Drawn:
    runs, not_begun = read_sweep_runs(Path(name), storage)
    numbers = [run for run, _ in runs]
    found = sweep_pictures(numbers)
    # One configuration for each way in which images are dealt out.
    dealings: dict[str, RunConfig] = {}
    for _, agreed in runs:
        config = agreed.config
        task = config.task.model_dump_json(exclude={"model"})
        dealings.setdefault(f"{task} {config.seed} {config.seeds.model_dump_json()}", config)
    is_one = len(dealings) == 1
    found[HOLDINGS] = _holdings(*dealings.values()) if draws_holdings and is_one else ()
    missing = _missing(found, OF_SWEEP)
    if len(dealings) > 1:
        missing[HOLDINGS] = _DEALT.format(len(dealings))
    open_runs, remark = sum(not run.finished for run in numbers), ""
    if open_runs or not_begun:
        remark = (
            f"of {len(numbers) + not_begun} runs {open_runs} have not finished and {not_begun} not "
            "begun; drawn as far as they have come"
        )
    folder = Path(name).resolve().name
    return Drawn(
        whose=f"sweep {folder}", folder=folder, pictures=found, missing=missing, remark=remark
    )


def _missing(found: Pictures, kinds: Sequence[str]) -> dict[str, str]:
    return {kind: ABSENT[kind] for kind in kinds if not found.get(kind)}


def _holdings(config: RunConfig) -> tuple[Picture, ...]:
    """Return the picture of who has what, dealt out anew from the configuration."""
    if config.task.dataset == HELD:
        return ()
    data = load_task_data(config)
    title = title_of(config, data)
    return (HoldingsPicture(held=holdings(data), classes=data.classes, title=title),)


def _files(
    output: Path | None, folder: Path, pictures: Sequence[Picture]
) -> list[tuple[Picture, Path]]:
    """Return each picture with its file.

    Raises:
        ConfigError: If several pictures would go into one file, or its suffix is not valid.
    """
    if output is None or not output.suffix or output.is_dir():
        return files_of(pictures, output or folder)
    if output.suffix not in SUFFIXES:
        raise ConfigError(
            f"--output: {str(output)!r} is not valid; it must end in .svg or .png, or be a folder "
            "whose name has no dot"
        )
    if len(pictures) > 1:
        names = ", ".join(picture.name for picture in pictures)
        raise ConfigError(
            f"--output: {str(output)!r} takes one picture, and there are {len(pictures)} "
            f"({names}); valid is a folder, or one of them as --kind"
        )
    return [(pictures[0], output)]


def _require_free(files: Sequence[tuple[Picture, Path]], *, force: bool) -> None:
    """Refuse existing files, and paths below a file, before anything is drawn."""
    for _, path in files:
        if path.is_dir():
            raise ConfigError(f"--output: {str(path)!r} is a folder; valid is a file's path")
        if os.path.lexists(path) and not force:
            raise ConfigError(
                f"--output: {str(path)!r} exists already; valid is another place, or --force to "
                "write over it"
            )
    for folder in {parent for _, path in files for parent in path.parents}:
        if os.path.lexists(folder) and not folder.is_dir():
            raise ConfigError(f"--output: {str(folder)!r} is no folder; valid is a folder's path")
