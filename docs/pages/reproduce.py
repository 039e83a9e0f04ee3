"""The page of the papers' tables: what is written of them, with commands and numbers filled in.

`docs/papers/*.md` hold the words. A `sweep` block in them stands for commands, and a line that is a
link to a file of numbers for its table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.pages.markdown import merged, table
from methods import BUILT_IN_METHODS
from platform.config import PACKAGED_CONFIGS, RunConfig, load_config
from platform.data.catalogue import dataset_info
from platform.results.sweeping.tables import OURS

PAPERS = Path(__file__).resolve().parents[1] / "papers"
ORDER = ("pfedmoap", "fedpgp", "trip", "pm-moe")
CONFIGS = PACKAGED_CONFIGS / "papers"
DATA = PAPERS / "data.csv"
HELD_OUT = "task.held_out_domain"
SWEEP = re.compile(r"```sweep\n(.*?)```", re.DOTALL)
METHOD = re.compile(r"`(\w+)`")
NUMBERS = re.compile(r"^\[[^\]]*\]\(([^)]*\.csv)\)\n", re.MULTILINE)


def page(folder: Path) -> str:
    """Return the whole page, as it is to lie in a folder."""
    files = [PAPERS / "README.md", *(PAPERS / f"{paper}.md" for paper in ORDER)]
    return merged(files, folder, filled) + "\n## All configurations\n\n" + table(_configurations())


def filled(path: Path) -> str:
    """Return a file's words with commands and numbers in their places."""
    text = SWEEP.sub(lambda block: _block(block[1], path.stem), path.read_text("utf-8"))
    return NUMBERS.sub(lambda link: table(_numbers(path.parent / link[1])), text)


def _block(text: str, paper: str) -> str:
    commands = (line for part in text.strip().split("\n\n") for line in _commands(part, paper))
    return "```bash\n" + "\n".join(commands) + "\n```"


def _commands(part: str, paper: str) -> Iterator[str]:
    """Yield the commands of lines `NAME: CONFIG...` that share the options below them."""
    lines = part.splitlines()
    named = [line.split(": ", 1) for line in lines if not line.startswith("--")]
    options = [line for line in lines if line.startswith("--")]
    for name, patterns in named:
        configs = [name for pattern in patterns.split() for name in _matching(paper, pattern)]
        yield " \\\n    ".join(
            (
                f"sotto sweep {' '.join(configs)}",
                *_in_order(options, configs),
                f"--output sweeps/{paper}-{name}",
            )
        )


def _in_order(options: Sequence[str], configs: Sequence[str]) -> Iterator[str]:
    """Yield a command's options with what goes without saying."""
    yield from (option for option in options if option.startswith("--method"))
    if not any(option.startswith("--seed") for option in options):
        yield "--seed 0,1,2"
    task = load_config(Path(configs[0])).task
    if task.held_out_domain is not None:
        yield f"--set {HELD_OUT}={','.join(dataset_info(task.dataset).domains)}"
    yield from (option for option in options if not option.startswith("--method"))


def _matching(paper: str, pattern: str) -> list[str]:
    found = [path.stem for path in (CONFIGS / paper).glob(f"{pattern}.yaml")]
    if not found:
        raise ValueError(f"docs/papers/{paper}.md: no configuration is named {pattern}")
    order = [row[1] for row in _rows(DATA)]
    found.sort(key=lambda name: order.index(_data_of(name)))
    return [f"papers/{paper}/{name}" for name in found]


def _data_of(name: str) -> str:
    """Return the data set in a file's name, `table-1-dtd`."""
    return name.split("-", 2)[2]


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


def _numbers(path: Path) -> Iterator[Sequence[str]]:
    """Yield a table of a paper, with an empty column for our number beside each of its."""
    if path == DATA:
        yield from _data_sets()
        return
    head, *rows = _rows(path)
    yield head[0], *(cell for column in head[1:] for cell in (column, "ours"))
    for row in rows:
        yield marked(row[0]), *(cell for number in row[1:] for cell in (number, ""))


def marked(row: str) -> str:
    """Return a row's name with a mark where its method here is our reading of what a paper says."""
    names = (name for name in METHOD.findall(row) if name in BUILT_IN_METHODS.available())
    return f"{row} {OURS}" if any(map(BUILT_IN_METHODS.reading, names)) else row


def _data_sets() -> Iterator[Sequence[str]]:
    head, *rows = _rows(DATA)
    yield *head, "tables"
    for title, name, *sizes in rows:
        yield title, f"`{name}`", *sizes, "; ".join(_tables_on(name))


def _tables_on(data: str) -> Iterator[str]:
    for paper in ORDER:
        names = [path.stem for path in (CONFIGS / paper).glob(f"table-*-{data}.yaml")]
        numbers = sorted(int(name.split("-")[1]) for name in names)
        if numbers:
            title = (PAPERS / f"{paper}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")
            yield f"{title} {', '.join(map(str, numbers))}"


def _configurations() -> Iterator[Sequence[str]]:
    yield "configuration", "model", "clients a round", "rounds", "training", "method"
    for paper in ORDER:
        for path in sorted((CONFIGS / paper).glob("*.yaml"), key=_natural):
            name = path.relative_to(PACKAGED_CONFIGS).with_suffix("").as_posix()
            yield f"`{name}`", *_settings(load_config(Path(name)))


def _natural(path: Path) -> tuple[int, str]:
    return int(path.stem.split("-")[1]), path.stem


def _settings(config: RunConfig) -> Iterator[str]:
    task, training, method = config.task, config.training, config.method
    yield task.model.name if task.model else "none"
    yield f"{config.cohort_size} of {task.clients}"
    yield str(config.rounds)
    epochs = f"{training.local_epochs} epoch{'s' * (training.local_epochs != 1)}"
    yield f"{epochs}, {training.batch_size} a step, {training.optimizer} {training.learning_rate:g}"
    options = ", ".join(f"{key} {value}" for key, value in method.options.items())
    yield f"{method.name}: {options}"
