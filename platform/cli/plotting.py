"""`plot`: which pictures of a run or a sweep there are, and into which files they go."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform.agreement import Agreed
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
class PlotQuestion:
    """What is to be drawn.

    Attributes:
        name: A run's id, `latest`, or the folder of a sweep.
        kinds: Which pictures; none for all that there is data for.
        output: A file or a folder, None for the default one.
        force: Whether files that are there are written over.
    """

    name: str
    kinds: tuple[str, ...] = ()
    output: Path | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What there is to draw.

    Attributes:
        whose: The run or the sweep, in words.
        folder: Default name of the folder.
        pictures: By kind.
        missing: Why there is none of a kind, in words.
        remark: What must be said of all of them; empty without.
    """

    whose: str
    folder: str
    pictures: Pictures
    missing: Mapping[str, str]
    remark: str = ""


def plot_command(question: PlotQuestion, storage: str, *, as_json: bool) -> None:
    """Draw what is asked for.

    Raises:
        ConfigError: If the question is not valid, a kind has no data, or a file is there already;
            nothing is written then.
        UnknownRun: If there is no such run or sweep.
        RunStopped: If records do not agree; nothing is written then.
        AuditChainBroken: If an audit log was changed; likewise.
        Unwritable: If a file cannot be written.
    """
    folder = Path(question.name)
    of_sweep = is_sweep(folder)
    _require_kinds(question, OF_SWEEP if of_sweep else OF_RUN)
    drawn = _of_sweep(folder, storage, question) if of_sweep else _of_run(question, storage)
    pictures = _chosen(question, drawn)
    files = _files(question, drawn, pictures)
    _require_free(files, force=question.force)
    written = write_pictures(files, drawn.whose)
    left_out = {} if question.kinds else drawn.missing
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


def _require_kinds(question: PlotQuestion, valid: Sequence[str]) -> None:
    for kind in question.kinds:
        if kind not in valid:
            raise ConfigError(f"--kind: {kind!r} is not valid here; valid: {', '.join(valid)}")


def _of_run(question: PlotQuestion, storage: str) -> Drawn:
    try:
        (agreed,) = read_runs(storage, [question.name])
    except UnknownRun as error:
        if Path(question.name).is_dir():
            raise UnknownRun(
                f"{error}; as SWEEP: the folder {question.name!r} has no sweep.json, which the "
                "`sweep` command that made it writes anew"
            ) from error
        raise
    numbers = numbers_of(agreed)
    found = run_pictures(numbers)
    wanted = question.kinds or OF_RUN
    found[HOLDINGS] = _holdings([agreed.config]) if HOLDINGS in wanted else ()
    return Drawn(
        whose=f"run {numbers.run_id}",
        folder=numbers.run_id,
        pictures=found,
        missing=_missing(found, OF_RUN),
        remark="" if numbers.finished else "the run has not finished; drawn as far as it has come",
    )


def _of_sweep(folder: Path, storage: str, question: PlotQuestion) -> Drawn:
    runs, not_begun = read_sweep_runs(folder, storage)
    numbers = [run for run, _ in runs]
    found = sweep_pictures(numbers)
    configs = _dealings([agreed for _, agreed in runs])
    wanted = HOLDINGS in (question.kinds or OF_SWEEP)
    found[HOLDINGS] = _holdings(configs) if wanted and len(configs) == 1 else ()
    missing = _missing(found, OF_SWEEP)
    if len(configs) > 1:
        missing[HOLDINGS] = _DEALT.format(len(configs))
    open_runs = sum(not run.finished for run in numbers)
    return Drawn(
        whose=f"sweep {folder.resolve().name}",
        folder=folder.resolve().name,
        pictures=found,
        missing=missing,
        remark=_unfinished(len(numbers) + not_begun, open_runs, not_begun),
    )


def _unfinished(all_runs: int, open_runs: int, not_begun: int) -> str:
    if not open_runs and not not_begun:
        return ""
    return (
        f"of {all_runs} runs {open_runs} have not finished and {not_begun} not begun; drawn as far "
        "as they have come"
    )


def _missing(found: Pictures, kinds: Sequence[str]) -> dict[str, str]:
    return {kind: ABSENT[kind] for kind in kinds if not found.get(kind)}


def _dealings(runs: Sequence[Agreed]) -> list[RunConfig]:
    """Return a configuration for each way in which images are dealt out."""
    found: dict[str, RunConfig] = {}
    for agreed in runs:
        config = agreed.config
        task = config.task.model_dump_json(exclude={"model"})
        found.setdefault(f"{task} {config.seed} {config.seeds.model_dump_json()}", config)
    return list(found.values())


def _holdings(configs: Sequence[RunConfig]) -> tuple[Picture, ...]:
    """Return who has what, dealt out anew from the configuration."""
    (config,) = configs
    if config.task.dataset == HELD:
        return ()
    data = load_task_data(config)
    title = title_of(config, data)
    return (HoldingsPicture(held=holdings(data), classes=data.classes, title=title),)


def _chosen(question: PlotQuestion, drawn: Drawn) -> list[Picture]:
    """Return the pictures that are asked for.

    Raises:
        ConfigError: If there is none of a kind that is asked for, or none at all.
    """
    there = [kind for kind, found in drawn.pictures.items() if found]
    for kind in question.kinds:
        if kind not in there:
            raise ConfigError(
                f"--kind: {drawn.whose} has no {kind} ({drawn.missing[kind]}); valid: "
                f"{listed(there)}"
            )
    wanted = dict.fromkeys(question.kinds or there)
    pictures = [picture for kind in wanted for picture in drawn.pictures[kind]]
    if not pictures:
        raise ConfigError(f"RUN|SWEEP: {drawn.whose} has nothing to draw yet; valid is a later one")
    return pictures


def _files(
    question: PlotQuestion, drawn: Drawn, pictures: Sequence[Picture]
) -> list[tuple[Picture, Path]]:
    """Return which picture goes where.

    Raises:
        ConfigError: If one file is to take several pictures, or its suffix is none that is drawn.
    """
    output = question.output or OUTPUTS / drawn.folder
    if question.output is None or not output.suffix or output.is_dir():
        return files_of(pictures, output)
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
    """Refuse what is there already, and what is no place for files, before anything is drawn."""
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
