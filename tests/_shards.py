"""The slow tests in shards, each of which takes at most ten minutes on two idle cores.

`pytest -m slow --shard 2` runs the second; `--shard commit` runs the one that HEAD's hash draws, so
that CI, which runs one for each commit, comes round to all; `python -m tests._shards` prints which.
`slow_seconds.yaml` says how long tests take. Cases of one test stay together as far as the balance
allows, as they share what they set up; so do all tests of the files that it lists under `together`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SECONDS = Path(__file__).with_name("slow_seconds.yaml")
CORES = 2
LONGEST = 600.0
"""Seconds that a shard may take on so many cores."""
PART = 200.0
"""Seconds of a part of a test's cases, which stays in one shard: some set up an engine."""


@dataclass(frozen=True)
class Durations:
    """How long slow tests take on an idle core."""

    shards: int
    others: float
    tests: Mapping[str, float]
    # Files whose tests share minutes of set-up.
    together: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path = SECONDS) -> Durations:
        """Reads the list."""
        tree = yaml.safe_load(path.read_text("utf-8"))
        tests = {
            f"{file}::{name}": float(seconds)
            for file, tests in tree["tests"].items()
            for name, seconds in tests.items()
        }
        together = frozenset(tree.get("together", ()))
        return cls(int(tree["shards"]), float(tree["others"]), tests, together)

    def of(self, case: str) -> float:
        """Seconds of a case, `FILE::TEST[CASE]`."""
        return self.tests.get(function_of(case), self.others)


def function_of(case: str) -> str:
    """The test, `FILE::TEST`, of a case."""
    return case.partition("[")[0]


def dealt(cases: Iterable[str], durations: Durations) -> list[list[str]]:
    """Deals cases into shards: parts of tests, the longest first, each where there is least.

    Depends on nothing but the cases and the list, so every process finds the same.
    """
    parts = sorted(_parts(sorted(cases), durations), key=lambda part: (-part[0], part[1]))
    shards: list[list[str]] = [[] for _ in range(durations.shards)]
    sums = [0.0] * durations.shards
    for seconds, part in parts:
        least = sums.index(min(sums))
        shards[least] += part
        sums[least] += seconds
    return shards


def _parts(cases: Sequence[str], durations: Durations) -> Iterable[tuple[float, list[str]]]:
    """Yields seconds and cases of each part."""
    groups: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        file = case.partition("::")[0]
        groups[file if file in durations.together else function_of(case)].append(case)
    for name, group in groups.items():
        count = len(group)
        if name not in durations.together:
            count = max(1, int(PART / durations.of(group[0])))
        for start in range(0, len(group), count):
            part = group[start : start + count]
            yield sum(map(durations.of, part)), part


def overfull(shards: Sequence[Sequence[str]], durations: Durations) -> str | None:
    """What is wrong with the shards' lengths, if anything is."""
    for number, shard in enumerate(shards, start=1):
        seconds = sum(map(durations.of, shard)) / CORES
        longest = max(shard, key=durations.of, default=None)
        if longest is not None and durations.of(longest) > LONGEST:
            return f"{longest} takes {durations.of(longest):.0f} s; valid: at most {LONGEST:.0f}"
        if seconds > LONGEST:
            return (
                f"shard {number} of {len(shards)} takes {seconds:.0f} s on {CORES} cores; valid: "
                f"at most {LONGEST:.0f}, with more shards in {SECONDS.name} or shorter tests"
            )
    return None


def chosen(asked: str, shards: int) -> int:
    """The number of the shard that was asked for, from 1."""
    if asked == "commit":
        command = ["git", "rev-parse", "HEAD"]
        said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return int(said.stdout, 16) % shards + 1
    if not (asked.isdecimal() and 1 <= int(asked) <= shards):
        raise pytest.UsageError(f"--shard: {asked} is not valid; valid: 1 to {shards}, commit")
    return int(asked)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    told = "which shard of the slow tests to run: its number, or `commit`"
    parser.addoption("--shard", metavar="K", help=told)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which shard is run."""
    asked = config.getoption("shard")
    if asked is None:
        return None
    durations = Durations.read()
    return f"shard {chosen(asked, durations.shards)} of {durations.shards}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of the shard that was asked for, of those that are left."""
    asked = config.getoption("shard")
    if asked is None:
        return
    if config.option.markexpr != "slow":
        raise pytest.UsageError("--shard: valid with `-m slow`")
    durations = Durations.read()
    shards = dealt((item.nodeid for item in items), durations)
    if (wrong := overfull(shards, durations)) is not None:
        raise pytest.UsageError(wrong)
    kept = set(shards[chosen(asked, len(shards)) - 1])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
    # The files with the longest cases come first, so that no core waits for one of them at the end.
    longest: dict[str, float] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        longest[file] = max(longest.get(file, 0.0), durations.of(item.nodeid))
    items.sort(key=lambda item: -longest[item.nodeid.partition("::")[0]])


if __name__ == "__main__":
    sys.stdout.write(f"{chosen('commit', Durations.read().shards)}\n")
