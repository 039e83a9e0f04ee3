"""`datasets` lists data sets, shows what clients hold, checks a folder; `plot` draws into files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import typer

from methods.plugins import Plugins
from platform.cli.ending import BAD_INPUT
from platform.cli.output import Said, Whole, answer, brief, console, progress_bar, table
from platform.config import RunConfig, load_config
from platform.config.rules import HELD, OWN
from platform.config.sections import Layout
from platform.data.catalogue import DataRequest, Draws, Hints, dataset_infos, user_path
from platform.data.checking import FAULTS, FEW, SHOWN, FolderReport, check_folder, counts
from platform.data.loading import (
    PARTS,
    Holding,
    TaskData,
    holdings,
    holdings_document,
    load_task_data,
    seeds_used,
)
from platform.data.own_layouts import OWN_LAYOUTS
from platform.data.partition import Counts
from platform.errors import ConfigError, UnknownRun, listed
from platform.results.charts import (
    ALARM,
    SHADES,
    SUFFIXES,
    Picture,
    add_legend,
    fitted,
    look,
    new_figure,
    require_drawable,
    wrapped,
)
from platform.results.pictures import ABSENT, files_of, run_pictures, sweep_pictures, write_pictures
from platform.results.reading import SWEEP_FILE, numbers_of, read_runs, read_sweep_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST, LARGEST, MOST_CLASSES = 4, 3, 40
MOST_CLIENTS, CELL, MOST_WIDTH = 40, 7, 75
TITLES = {"train": "training", "validation": "validation", "test": "test"}
FOUND = {
    "damaged": "images that cannot be opened",
    "repeated": "test examples that are also training examples",
    "contradictory": "examples that are also examples of another class",
    "copies": "copies of an example of the same split and class (fine: they count)",
    "slips": "classes whose name is nearly that of a larger one (a slip?)",
    "few": f"classes with fewer than {FEW} training examples (fine: all are taken)",
}
RENDERED = Draws(train_per_class=16, test_per_class=60)
"""Training and test images per class and domain that a check of a rendered data set renders."""


def datasets_command(
    *,
    show: Path | None,
    overrides: Sequence[str] | None,
    plot: Path | None,
    check: str | None,
    root: Path | None,
    layout: str | None,
    class_names: Path | None,
    as_json: bool,
) -> None:
    """List the data sets, show what clients hold, or check a folder (exit code 2 on faults)."""
    if show is not None and check is not None:
        raise ConfigError("--show: cannot be asked for together with --check; give one of them")
    for option, given in (("--set", overrides), ("--plot", plot)):
        if given and show is None:
            raise ConfigError(f"{option}: needs --show CONFIG, since it is about its clients")
    for option, value in (("--layout", layout), ("--class-names", class_names)):
        if value is not None and check not in OWN:
            raise ConfigError(f"{option}: needs --check {' or '.join(OWN)}, and --root DIR")
    if root is not None and check is None:
        raise ConfigError("--root: needs --check NAME; with --show use --set task.root=DIR")
    if show is not None:
        _show(show, overrides or (), plot, as_json=as_json)
        return
    infos = dataset_infos(Plugins())
    if check is not None:
        if check not in {info.name for info in infos} and Path(check).is_dir():
            raise ConfigError(
                f"--check: {check!r} is a folder and not a data set; valid for your own images: "
                f"--check images --root {check}"
            )
        path = user_path(str(root or "data"), "--root")
        known: Layout | None = next((one for one in OWN_LAYOUTS if one == layout), None)
        if layout is not None and known is None:
            raise ConfigError(f"--layout: {layout!r} is not valid; valid: {', '.join(OWN_LAYOUTS)}")
        names = None if class_names is None else user_path(str(class_names), "--class-names")
        _check(check, path, Hints(known, names), as_json=as_json)
        return
    rows = [(info.name, info.title, _some(info.classes), _some(info.domains)) for info in infos]
    texts = ", ".join(info.name for info in infos if info.modality == "texts")
    answer(
        [asdict(info) for info in infos],
        brief(("data set", "what it is", "classes", "domains"), rows),
        f"texts, which methods for images refuse: {texts}",
        "the files of a data set: datasets --check NAME --root DIR",
        as_json=as_json,
    )


def _some(names: Sequence[str]) -> str:
    """Return the number of names and the first few."""
    shown = ", ".join((*names[:FIRST], *["..."] * (len(names) > FIRST)))
    return f"{len(names)}: {shown}" if names else "as in the files"


def _show(config: Path, overrides: Sequence[str], plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        require_drawable(plot)
    run = load_config(config, overrides)
    data = load_task_data(run)
    picture = holdings_picture(run, data)
    held = picture.held
    said: list[Said] = [f"recognised: {sentence}" for sentence in data.dataset.recognised]
    # Each class has a column if that is readable on the width of a file.
    width = sum(max(len(name), CELL) + 3 for name in data.classes)
    full = len(held) <= MOST_CLIENTS and width <= MOST_WIDTH
    domains = data.domain_names if len(data.domain_names) > 1 else ()
    parts = [p for p in PARTS if p != "validation" or any(h.validation.any() for h in held)]
    columns = ["client", *(TITLES[part] for part in parts)]
    what = data.dataset.modality
    columns += ["sense"] if data.senses else []
    columns += list(data.classes) if full else ["classes", f"most {what} of"]
    own = data.dataset.domains_are == "clients"
    columns += ["client's name" if own else "domains"] if domains else []
    rows = []
    for holding in held:
        row: list[Any] = [holding.client, *(int(getattr(holding, part).sum()) for part in parts)]
        row += [holding.sense] if data.senses else []
        if full:
            numbers = zip(*(getattr(holding, part).tolist() for part in parts), strict=True)
            row += ["/".join(map(str, of)) if any(of) else "-" for of in numbers]
        else:
            row += [holding.classes, _most(holding.train, data.classes)]
        rows.append([*row, *([_most(holding.domains, domains)] if domains else [])])
    said.append(table(picture.title, columns, rows))
    if full:
        said.append(f"of each class: {' / '.join(TITLES[part] for part in parts)} {what}")
    if new := sum(holding.is_new for holding in held):
        said.append(f"{new} new clients take part in no round")
    for name, common in data.common.items():
        said.append(f"every client is measured on {len(common.rows)} {name} {what} as well")
    said.append("seeds: " + ", ".join(f"{n} {seed}" for n, seed in seeds_used(run).items()))
    if plot is not None:
        write_pictures([(picture, plot)])
        said.append(Whole(f"picture: {plot}"))
    answer(holdings_document(run, data), said, as_json=as_json)


def _most(numbers: Counts, names: Sequence[str]) -> str:
    """Return the largest numbers; equal ones are in the order of the names."""
    order = [int(place) for place in np.argsort(-numbers, kind="stable") if numbers[place]]
    more = ", ..." if len(order) > LARGEST else ""
    return ", ".join(f"{names[place]} {numbers[place]}" for place in order[:LARGEST]) + more


def _check(name: str, root: Path, hints: Hints, *, as_json: bool) -> None:
    if name in OWN and not root.is_dir():
        raise ConfigError(f"--root: {str(root)!r} is not valid; valid is a folder that is there")
    request = DataRequest(root=root, draws=RENDERED, hints=hints)
    with progress_bar(console(error=True)) as progress:
        task = progress.add_task("images opened", total=None)
        report = check_folder(
            name, request, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if not as_json:
        # In full on every screen; what follows may be cut.
        console().print(*_verdict(report), sep="\n", soft_wrap=True)
    answer(report.document(), _checked(report, root), as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(BAD_INPUT)


def _verdict(report: FolderReport) -> Iterator[str]:
    yield from (f"refused: {line}" for line in (report.refusal or "").split("\n") if line)
    yield from _findings(report, are_faults=True)
    yield "all is well" if report.is_sound else "the folder has faults"


def _checked(report: FolderReport, root: Path) -> Iterator[Said]:
    if report.dataset is not None:
        how = "recognised" if report.is_sound else "read"
        yield from (f"{how}: {sentence}" for sentence in report.dataset.recognised)
        found = counts(report.dataset)
        rows = []
        for side, of in found.items():
            sizes = of["by_class"]
            low, high = min(sizes, key=sizes.get), max(sizes, key=sizes.get)
            spread = (f"{low} ({sizes[low]})", f"{high} ({sizes[high]})")
            rows.append((side, of["total"], len(sizes), *spread))
        yield table(None, ("split", "examples", "classes", "smallest", "largest"), rows)
        train = found["train"]
        shown = (
            [(report.dataset.domains_are.removesuffix("s"), "by_domain")]
            if len(train["by_domain"]) > 1
            else []
        )
        shown += [("class", "by_class")] if len(train["by_class"]) <= MOST_CLASSES else []
        for what, key in shown:
            lines = [(name, *(of[key][name] for of in found.values())) for name in train[key]]
            yield table(None, (what, *found), lines)
    elif report.info.layout:
        yield Whole(f"{report.info.name} is expected below {str(root)!r} as")
        yield from (f"  {line}" for line in report.info.layout)
    yield from _findings(report, are_faults=False)


def _findings(report: FolderReport, *, are_faults: bool) -> Iterator[Whole]:
    for kind, what in FOUND.items():
        if (found := report.found.get(kind, ())) and (kind in FAULTS) == are_faults:
            yield Whole(f"{len(found)} {what}:")
            yield from (Whole(f"  {line}") for line in found[:SHOWN])
            yield from [Whole(f"  and {len(found) - SHOWN} more")] * (len(found) > SHOWN)


MOST_NAMES: Final = 40
"""Most names along an axis; more would overlap, so some are left out."""
_SMALL: Final = 7.0
_NAME: Final = 1.8
"""Inches for the name of a class."""


@dataclass(frozen=True, kw_only=True)
class HoldingsPicture(Picture):
    """What each client, of at least one, holds of the classes that are dealt out."""

    name: str = "holdings"
    held: Sequence[Holding] = field(repr=False)
    classes: Sequence[str]

    def figure(self) -> Figure:
        """Return the figure."""
        rows, columns = min(len(self.held), 60), min(len(self.classes), 60)
        width, height = max(7.0, 4.2 + 0.2 * columns), max(3.2, 1.8 + 0.18 * rows)
        figure = new_figure(width, height)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _draw_classes(left, self.held, self.classes)
        start, handles = np.zeros(len(self.held)), dict[str, Any]()
        for index, part in enumerate(PARTS):
            counts = np.array([float(getattr(holding, part).sum()) for holding in self.held])
            if counts.any():
                style = look(index)
                handles[f"{part} examples"] = right.barh(
                    *(range(len(self.held)), counts),
                    left=start,
                    color=style.colour,
                    hatch=style.hatch,
                    edgecolor="white",
                    linewidth=0.4,
                )
            start += counts
        right.set_xlabel("examples")
        right.tick_params(axis="y", labelleft=False)
        add_legend(figure, handles)
        figure.suptitle(wrapped(self.title, width - 0.6, 10.0), fontsize=10.0)
        least = max(0.14 * min(len(self.held), MOST_NAMES), 1.5)
        across = max(0.13 * min(len(self.classes), MOST_NAMES), 1.5)
        return fitted(figure, {left: (across, least), right: (1.0, least)})


def holdings_picture(run: RunConfig, data: TaskData) -> HoldingsPicture:
    """Return the picture of what clients hold of a configuration's data."""
    return HoldingsPicture(
        held=holdings(data), classes=data.classes, title=f"{data.dataset.name}: {run.task.dealt}"
    )


def _draw_classes(axes: Axes, held: Sequence[Holding], classes: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = np.stack([holding.train for holding in held]).astype(float)
    # A count of zero stays white, so that a single example is seen.
    shown = np.ma.masked_equal(counts, 0.0)
    image = axes.imshow(
        shown,
        aspect="auto",
        cmap=SHADES,
        interpolation="nearest",
        vmin=0.0,
        vmax=max(float(counts.max()), 1.0),
    )
    bar = axes.figure.colorbar(image, ax=axes, location="left", shrink=0.8, pad=0.02)
    bar.set_ticks(MaxNLocator(nbins=6, integer=True))
    bar.set_label("training examples", fontsize=8)
    names = []
    for holding in held:
        kind, _, number = holding.client.partition("-")
        names.append(f"{'new' if holding.is_new else kind} {int(number)}")
    axes.set_yticks(*_ticks(names), fontsize=_SMALL)
    axes.set_xticks(*_ticks(list(classes)), fontsize=_SMALL, rotation=90)
    old = sum(not holding.is_new for holding in held)
    if old < len(held):
        axes.axhline(old - 0.5, color=ALARM, linewidth=1.2, linestyle="--")


def _ticks(names: list[str]) -> tuple[list[int], list[str]]:
    step = -(-len(names) // MOST_NAMES)
    places = list(range(0, len(names), step))
    return places, [wrapped(names[place], _NAME, _SMALL) for place in places]


HOLDINGS: Final = "holdings"
OUTPUTS: Final = Path("pictures")
OF_RUN: Final = ("curves", "tradeoff", "clients", "experts", HOLDINGS)
OF_SWEEP: Final = tuple(kind for kind in ABSENT if kind != "experts")
_DEALT: Final = "its runs deal out images in {} ways; valid for holdings is one RUN of them"


def plot_command(
    name: str,
    storage: str,
    *,
    kinds: Sequence[str] | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw a run or a sweep; nothing is written if an option is refused or a file exists."""
    kinds = kinds or ()
    of_sweep = (Path(name) / SWEEP_FILE).is_file()
    valid = OF_SWEEP if of_sweep else OF_RUN
    for kind in kinds:
        if kind not in valid:
            raise ConfigError(f"--kind: {kind!r} is not valid here; valid: {', '.join(valid)}")
    draws_holdings = HOLDINGS in (kinds or valid)
    missing: dict[str, str] = {}
    if of_sweep:
        folder = Path(name).resolve().name
        whose = f"sweep {folder}"
        runs, not_begun = read_sweep_runs(Path(name), storage)
        numbers = [run for run, _ in runs]
        found = sweep_pictures(numbers)
        # One configuration for each way in which images are dealt out.
        dealings: dict[str, RunConfig] = {}
        for _, agreed in runs:
            config = agreed.config
            task = config.task.model_dump_json(exclude={"model"})
            dealings.setdefault(f"{task} {config.seed} {config.seeds.model_dump_json()}", config)
        configs = list(dealings.values())
        if len(configs) > 1:
            missing[HOLDINGS] = _DEALT.format(len(configs))
        open_runs, remark = sum(not run.finished for run in numbers), ""
        if open_runs or not_begun:
            remark = (
                f"of {len(numbers) + not_begun} runs {open_runs} have not finished and {not_begun} "
                "not begun; drawn as far as they have come"
            )
    else:
        try:
            (agreed,) = read_runs(storage, [name])
        except UnknownRun as error:
            if not Path(name).is_dir():
                raise
            raise UnknownRun(
                f"{error}; as SWEEP: the folder {name!r} has no sweep.json, which the "
                "`sweep` command that made it writes anew"
            ) from error
        run = numbers_of(agreed)
        folder, whose, configs = run.run_id, f"run {run.run_id}", [agreed.config]
        found = run_pictures(run)
        remark = "" if run.finished else "the run has not finished; drawn as far as it has come"
    found[HOLDINGS] = ()
    if draws_holdings and len(configs) == 1 and configs[0].task.dataset != HELD:
        found[HOLDINGS] = (holdings_picture(configs[0], load_task_data(configs[0])),)
    missing = {kind: ABSENT[kind] for kind in valid if not found.get(kind)} | missing
    there = [kind for kind, made in found.items() if made]
    for kind in kinds:
        if kind not in there:
            raise ConfigError(
                f"--kind: {whose} has no {kind} ({missing[kind]}); valid: {listed(there)}"
            )
    pictures = [one for kind in dict.fromkeys(kinds or there) for one in found[kind]]
    if not pictures:
        raise ConfigError(f"RUN|SWEEP: {whose} has nothing to draw yet; valid is a later one")
    files = _files(output, OUTPUTS / folder, pictures, force=force)
    written = write_pictures(files, whose)
    left_out = {} if kinds else missing
    answer(
        {"files": [str(path) for path in written], "missing": left_out},
        *(Whole(f"picture: {path}") for path in written),
        *(f"no {kind}: {why}" for kind, why in left_out.items()),
        *([f"note: {remark}"] if remark else []),
        as_json=as_json,
    )


def _files(
    output: Path | None, folder: Path, pictures: Sequence[Picture], *, force: bool
) -> list[tuple[Picture, Path]]:
    """Return each picture with its file, before anything is drawn.

    `ConfigError` if several pictures would go into one file, its suffix is not valid, or a file
    exists or lies below a file.
    """
    if output is None or not output.suffix or output.is_dir():
        files = files_of(pictures, output or folder)
    elif output.suffix not in SUFFIXES:
        raise ConfigError(
            f"--output: {str(output)!r} is not valid; it must end in .svg, .png or .pdf, or be a "
            "folder whose name has no dot"
        )
    elif len(pictures) > 1:
        names = ", ".join(picture.name for picture in pictures)
        raise ConfigError(
            f"--output: {str(output)!r} takes one picture, and there are {len(pictures)} "
            f"({names}); valid is a folder, or one of them as --kind"
        )
    else:
        files = [(pictures[0], output)]
    for _, path in files:
        if path.is_dir():
            raise ConfigError(f"--output: {str(path)!r} is a folder; valid is a file's path")
        if os.path.lexists(path) and not force:
            raise ConfigError(
                f"--output: {str(path)!r} exists already; valid is another place, or --force to "
                "write over it"
            )
    for parent in {parent for _, path in files for parent in path.parents}:
        if os.path.lexists(parent) and not parent.is_dir():
            raise ConfigError(f"--output: {str(parent)!r} is not a folder; valid is a folder")
    return files
