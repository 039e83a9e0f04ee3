"""One of pFedMoAP's tables at the paper's size: `sotto run` with ViT-B/16 for two rounds.

    python benchmarks/full_size.py [--table pfedmoap/table-4-office_caltech10] [--each 12]

The weights are random and the photographs are drawn, with mixed sizes, because neither changes the
cost. The table's own numbers hold for all but rounds and images: clients, cohort, experts, tokens,
epochs and batch are the paper's. `--each` images of each class and site are drawn for training, and
a third of that for the test. The command runs in a terminal of its own, as a person would start it,
so that its bar is shown; what the bar said of its progress and of the time left is printed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import pty
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _sizes import ROOT, SMALLEST, sized
from feature_cache import MODEL, draw_images, save_random_weights

from platform.config import load_config

SITES = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer"),
    *("monitor", "mouse", "mug", "projector"),
)
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
"""What moves and colours a terminal's text."""


def draw_office(root: Path, each: int) -> int:
    """Draw photographs in the folders and lists of Office-Caltech10; return their number."""
    package, tests = root / "office_caltech_10", max(each // 3, 1)
    count = len(SITES) * len(CLASSES) * (each + tests)
    draw_images(package, count)
    drawn = iter(sorted(package.glob("*.jpg")))
    for site in SITES:
        lists: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
        for name in CLASSES:
            folder = package / site / name
            folder.mkdir(parents=True)
            for number in range(each + tests):
                place = next(drawn).rename(folder / f"{number}.jpg")
                part = "train" if number < each else "test"
                lists[part].append((str(place.relative_to(root)), name))
        for part, lines in lists.items():
            pair = tuple(np.array(column) for column in zip(*lines, strict=True))
            (package / f"{site}_{part}.pkl").write_bytes(pickle.dumps(pair))
    return count


def settings(root: Path, rounds: int) -> Iterator[str]:
    """What differs from the table's own configuration."""
    yield f"rounds={rounds}"
    yield f"task.root={root}"
    if SMALLEST:
        yield from ("task.model={name: sotto-tiny}", "task.clients=4", "cohort.size=2")
        yield from ("training.local_epochs=1", "method.experts=1", "method.context_tokens=4")
    else:
        yield f"task.model={{name: {MODEL}-quickgelu, pretrained: {root / 'random.pt'}}}"


def watched(command: list[str], folder: Path) -> tuple[list[tuple[float, str]], int]:
    """Run a command in a terminal of its own; return what it showed, by seconds, and its code."""
    reading, writing = pty.openpty()
    shown: list[tuple[float, str]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "COLUMNS": "120", "TERM": "xterm"}
    started = time.monotonic()
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=writing, stdout=writing, stderr=writing
    )
    os.close(writing)
    rest = ""
    while True:
        try:
            data = os.read(reading, 65536)
        except OSError:  # The terminal closes with its last process.
            break
        rest += data.decode("utf-8", "replace")
        *lines, rest = re.split(r"[\r\n]+", rest)
        for line in lines:
            text = CODES.sub("", line).strip()
            if text and (not shown or shown[-1][1] != text):
                shown.append((time.monotonic() - started, text))
    os.close(reading)
    return shown, child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="pfedmoap/table-4-office_caltech10")
    parser.add_argument("--each", type=int, default=sized(12, 2))
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    name = f"papers/{given.table}"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        count = draw_office(root, given.each)
        if not SMALLEST:
            save_random_weights(root / "random.pt")
        options = [part for text in settings(root, given.rounds) for part in ("--set", text)]
        config = load_config(Path(name), options[1::2])
        cohort = config.cohort.size
        sotto = [str(Path(sys.executable).parent / "sotto"), "run", name, *options]
        print(f"`sotto run {name}`: {count:,} photographs, {config.task.clients} clients,", end=" ")
        print(f"{cohort} in each of {given.rounds} rounds, {config.task.model}")
        started = time.monotonic()
        shown, code = watched([*sotto, "--storage", f"sqlite:///{root}/sotto.db"], ROOT)
        seconds = time.monotonic() - started
    for moment, text in shown:
        print(f"{moment:7.1f} s  {text}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"\n{seconds:.0f} s in all, peak memory {peak:.2f} GiB, exit code {code}")
    if code:
        sys.exit("the run failed")


if __name__ == "__main__":
    main()
