"""`datasets`: the list, who would have what, with its picture, and faults of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import typer

from platform.cli.ending import FAILED
from platform.cli.output import console, print_json, progress_bar, table
from platform.config import RunConfig, load_config
from platform.config.rules import OWN
from platform.config.sections import Layout
from platform.data.catalogue import DataRequest, Draws, Hints, dataset_infos, user_path
from platform.data.checking import FEW, Findings, FolderReport, check_folder, counts
from platform.data.dataset import Dataset
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
from platform.errors import ConfigError
from platform.pictures.canvas import (
    ALARM,
    SHADES,
    add_legend,
    fitted,
    look,
    new_figure,
    require_drawable,
    wrapped,
    write_picture,
)

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
RENDERED = (16, 60)
"""Training and test images of each class and domain, where a check has nothing but to render."""


@dataclass(frozen=True, kw_only=True)
class DatasetsQuestion:
    """What `datasets` is asked; None where it was not given.

    Attributes:
        show: Configuration whose clients are shown.
        overrides: Overrides of it.
        plot: Where their picture goes.
        check: Name of the data set whose folder is checked.
        root: What `task.root` would say.
        layout: What `task.layout` would say.
        class_names: What `task.class_names` would say.
    """

    show: Path | None = None
    overrides: tuple[str, ...] = ()
    plot: Path | None = None
    check: str | None = None
    root: Path | None = None
    layout: str | None = None
    class_names: Path | None = None


def datasets_command(question: DatasetsQuestion, *, as_json: bool) -> None:
    """List the data sets, show who would have what, or check a folder.

    Raises:
        ConfigError: If options do not go together, a name is unknown, or a configuration cannot be
            dealt out.
        typer.Exit: With code 1, if a checked folder has faults.
    """
    _require_together(question)
    if question.show is not None:
        _show(question.show, question, as_json=as_json)
    elif question.check is not None:
        _require_no_folder(question.check)
        root = user_path(str(question.root or "data"), "--root")
        _check(question.check, root, _hints(question), as_json=as_json)
    else:
        _list(as_json=as_json)


def _require_together(question: DatasetsQuestion) -> None:
    if question.show is not None and question.check is not None:
        raise ConfigError("--show: cannot be asked for together with --check; give one of them")
    for option, given in (("--set", question.overrides), ("--plot", question.plot)):
        if given and question.show is None:
            raise ConfigError(f"{option}: needs --show CONFIG, since it is about its clients")
    for option, value in (("--layout", question.layout), ("--class-names", question.class_names)):
        if value is not None and question.check not in OWN:
            raise ConfigError(f"{option}: needs --check {' or '.join(OWN)}, and --root DIR")
    if question.root is not None and question.check is None:
        raise ConfigError("--root: needs --check NAME; with --show use --set task.root=DIR")


def _require_no_folder(name: str) -> None:
    """Tell who gives a folder where a data set's name is due how their own images are checked."""
    if name not in {info.name for info in dataset_infos()} and Path(name).is_dir():
        raise ConfigError(
            f"--check: {name!r} is a folder and no data set; valid for images of one's own: "
            f"--check images --root {name}"
        )


def _hints(question: DatasetsQuestion) -> Hints:
    layout: Layout | None = next((one for one in OWN_LAYOUTS if one == question.layout), None)
    if question.layout is not None and layout is None:
        raise ConfigError(
            f"--layout: {question.layout!r} is not valid; valid: {', '.join(OWN_LAYOUTS)}"
        )
    names = question.class_names
    return Hints(layout, None if names is None else user_path(str(names), "--class-names"))


def _list(*, as_json: bool) -> None:
    infos = dataset_infos()
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [(info.name, info.title, _some(info.classes), _some(info.domains)) for info in infos]
    out = console()
    out.print(table(None, ("data set", "what it is", "classes", "domains"), rows))
    texts = ", ".join(info.name for info in infos if info.modality == "texts")
    out.print(f"texts, which methods that look at images refuse: {texts}")
    out.print("the files that each needs: datasets --check NAME --root DIR")


def _some(names: Sequence[str]) -> str:
    """Return how many and the first few."""
    if not names:
        return "as in the files"
    more = ", ..." if len(names) > FIRST else ""
    return f"{len(names)}: {', '.join(names[:FIRST])}{more}"


def _show(config: Path, question: DatasetsQuestion, *, as_json: bool) -> None:
    if question.plot is not None:
        require_drawable(question.plot)
    run = load_config(config, question.overrides)
    data = load_task_data(run)
    held = holdings(data)
    title = title_of(run, data)
    if question.plot is not None:
        draw_holdings(held, data.classes, question.plot, title=title)
    if as_json:
        print_json(holdings_document(run, data))
        return
    _print_recognised(data.dataset)
    _print_clients(held, data, title)
    out = console()
    for name, common in data.common.items():
        count = f"{len(common.rows)} {name} {data.dataset.modality}"
        out.print(f"every client is measured on {count} as well")
    out.print("seeds: " + ", ".join(f"{n} {seed}" for n, seed in seeds_used(run).items()))
    if question.plot is not None:
        out.print(f"picture: {question.plot}", soft_wrap=True)


def title_of(run: RunConfig, data: TaskData) -> str:
    """Return how a data set is dealt out, in words."""
    section = run.task.partition
    given = section.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
    options = "".join(f", {name} {value:g}" for name, value in given.items())
    shots = f", {run.task.shots} shots"
    if run.task.shots is None:
        shots = "" if section.images_per_client is not None else f", all {data.dataset.modality}"
    senses = "" if run.task.senses is None else f", senses: {run.task.senses}"
    return f"{data.dataset.name}: {section.kind}{options}{shots}{senses}"


def _print_clients(held: Sequence[Holding], data: TaskData, title: str) -> None:
    full = _fits(held, data.classes)
    domains = data.domain_names if len(data.domain_names) > 1 else ()
    parts = [part for part in PARTS if part != "validation" or _validates(held)]
    columns = ["client", *(TITLES[part] for part in parts)]
    what = data.dataset.modality
    columns += ["sense"] if data.senses else []
    columns += list(data.classes) if full else ["classes", f"most {what} of"]
    rows = []
    for holding in held:
        row: list[Any] = [holding.client, *(int(getattr(holding, part).sum()) for part in parts)]
        row += [holding.sense] if data.senses else []
        row += _by_class(holding, parts) if full else _largest(holding, data.classes)
        rows.append([*row, *([_most(holding.domains, domains)] if domains else [])])
    out = console()
    out.print(table(title, [*columns, *(["domains"] if domains else [])], rows))
    if full:
        out.print(f"of each class: {' / '.join(TITLES[part] for part in parts)} {what}")
    new = sum(holding.is_new for holding in held)
    if new:
        out.print(f"{new} new clients never take part in a round")


def _fits(held: Sequence[Holding], classes: Sequence[str]) -> bool:
    """Return whether a column for each class is readable, on the width of a file."""
    width = sum(max(len(name), CELL) + 3 for name in classes)
    return len(held) <= MOST_CLIENTS and width <= MOST_WIDTH


def _validates(held: Sequence[Holding]) -> bool:
    return any(holding.validation.any() for holding in held)


def _by_class(holding: Holding, parts: Sequence[str]) -> list[str]:
    counts = [getattr(holding, part).tolist() for part in parts]
    return ["/".join(map(str, of)) if any(of) else "-" for of in zip(*counts, strict=True)]


def _largest(holding: Holding, classes: Sequence[str]) -> list[Any]:
    return [holding.classes, _most(holding.train, classes)]


def _most(numbers: Counts, names: Sequence[str]) -> str:
    """Return the largest ones, in the order of the names where they are equal."""
    order = [int(place) for place in np.argsort(-numbers, kind="stable") if numbers[place]]
    more = ", ..." if len(order) > LARGEST else ""
    return ", ".join(f"{names[place]} {numbers[place]}" for place in order[:LARGEST]) + more


def _check(name: str, root: Path, hints: Hints, *, as_json: bool) -> None:
    train, test = RENDERED
    draws = Draws(train_per_class=train, test_per_class=test)
    request = DataRequest(root=root, draws=draws, hints=hints)
    progress = progress_bar(console(error=True))
    with progress:
        task = progress.add_task("images opened", total=None)
        report = check_folder(
            name, request, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(report.document())
    else:
        _print_report(report, root)
    if not report.is_sound:
        raise typer.Exit(FAILED)


def _print_report(report: FolderReport, root: Path) -> None:
    out = console()
    if report.info.layout:
        out.print(f"{report.info.name} is expected below {str(root)!r} as", soft_wrap=True)
        for line in report.info.layout:
            out.print(f"  {line}")
    if report.refusal is not None:
        out.print(f"refused: {report.refusal}")
    if report.dataset is not None:
        _print_recognised(report.dataset)
        _print_counts(counts(report.dataset))
    for kind, what in FOUND.items():
        _print_findings(report.of(kind), what)
    out.print("all is well" if report.is_sound else "the folder has faults")


def _print_recognised(dataset: Dataset) -> None:
    for sentence in dataset.recognised:
        console().print(f"recognised: {sentence}")


def _print_counts(found: Mapping[str, Any]) -> None:
    out, rows = console(), []
    for side, of in found.items():
        sizes = of["by_class"]
        low, high = min(sizes, key=sizes.get), max(sizes, key=sizes.get)
        spread = (f"{low} ({sizes[low]})", f"{high} ({sizes[high]})")
        rows.append((side, of["total"], len(sizes), *spread))
    out.print(table(None, ("split", "examples", "classes", "smallest", "largest"), rows))
    by_domain = {side: of["by_domain"] for side, of in found.items()}
    if len(by_domain["train"]) > 1:
        lines = [(name, *(of[name] for of in by_domain.values())) for name in by_domain["train"]]
        out.print(table(None, ("domain", *by_domain), lines))
    if len(found["train"]["by_class"]) <= MOST_CLASSES:
        by_class = {side: of["by_class"] for side, of in found.items()}
        lines = [(name, *(of[name] for of in by_class.values())) for name in by_class["train"]]
        out.print(table(None, ("class", *by_class), lines))


def _print_findings(found: Findings, what: str) -> None:
    if not found.number:
        return
    out = console()
    out.print(f"{found.number} {what}:")
    for line in found.first:
        out.print(f"  {line}", soft_wrap=True)
    if found.number > len(found.first):
        out.print(f"  and {found.number - len(found.first)} more")


__all__ = ["HoldingsPicture", "draw_holdings", "require_drawable"]

MOST_NAMES: Final = 40
"""More names along an axis than this would overlap; every so many is written then."""
_SMALL: Final = 7.0
_NAME: Final = 1.8
"""Inches for the name of a class."""


@dataclass(frozen=True, kw_only=True)
class HoldingsPicture:
    """Who has what.

    Attributes:
        held: At least one client.
        classes: Names of the classes that are dealt out.
        title: What stands above.
        name: Of the file, without a suffix.
    """

    held: Sequence[Holding] = field(repr=False)
    classes: Sequence[str]
    title: str
    name: str = "holdings"

    def figure(self) -> Figure:
        """Return the figure."""
        rows, columns = min(len(self.held), 60), min(len(self.classes), 60)
        width, height = max(7.0, 4.2 + 0.2 * columns), max(3.2, 1.8 + 0.18 * rows)
        figure = new_figure(width, height)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _draw_classes(left, self.held, self.classes)
        add_legend(figure, _draw_totals(right, self.held))
        figure.suptitle(wrapped(self.title, width - 0.6, 10.0), fontsize=10.0)
        least = max(0.14 * min(len(self.held), MOST_NAMES), 1.5)
        across = max(0.13 * min(len(self.classes), MOST_NAMES), 1.5)
        return fitted(figure, {left: (across, least), right: (1.0, least)})


def draw_holdings(
    held: Sequence[Holding], classes: Sequence[str], path: Path, *, title: str
) -> None:
    """Draw the counts into a file.

    Args:
        held: At least one client.
        classes: Names of the classes that are dealt out.
        path: Ends in .svg or .png.
        title: What stands above.

    Raises:
        ConfigError: If it cannot be written.
    """
    write_picture(HoldingsPicture(held=held, classes=classes, title=title), path)


def _draw_classes(axes: Axes, held: Sequence[Holding], classes: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = np.stack([holding.train for holding in held]).astype(float)
    # What nobody has stays white, so that a single example is seen.
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
    names = [_short(holding) for holding in held]
    axes.set_yticks(*_ticks(names), fontsize=_SMALL)
    axes.set_xticks(*_ticks(list(classes)), fontsize=_SMALL, rotation=90)
    old = sum(not holding.is_new for holding in held)
    if old < len(held):
        axes.axhline(old - 0.5, color=ALARM, linewidth=1.2, linestyle="--")


def _draw_totals(axes: Axes, held: Sequence[Holding]) -> dict[str, Any]:
    start, handles = np.zeros(len(held)), dict[str, Any]()
    for index, part in enumerate(PARTS):
        counts = np.array([float(getattr(holding, part).sum()) for holding in held])
        if counts.any():
            style = look(index)
            drawn = axes.barh(
                *(range(len(held)), counts),
                left=start,
                color=style.colour,
                hatch=style.hatch,
                edgecolor="white",
                linewidth=0.4,
            )
            handles[f"{part} examples"] = drawn
        start += counts
    axes.set_xlabel("examples")
    axes.tick_params(axis="y", labelleft=False)
    return handles


def _ticks(names: list[str]) -> tuple[list[int], list[str]]:
    step = -(-len(names) // MOST_NAMES)
    places = list(range(0, len(names), step))
    return places, [wrapped(names[place], _NAME, _SMALL) for place in places]


def _short(holding: Holding) -> str:
    kind, _, number = holding.client.partition("-")
    return f"new {int(number)}" if holding.is_new else f"{kind} {int(number)}"
