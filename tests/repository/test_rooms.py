"""The rooms of the trunk: who stands above whom, and that no import climbs.

A room is a direct child of `platform/`, a file or a folder; an arrow is one room importing another.
A room may import rooms on lower floors and what lies within itself, and files never in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.repository._source import ROOT, module_name, python_files
from tests.repository.test_layering import STANDARD_LIBRARY_ONLY, imported

pytestmark = pytest.mark.lint

# From the ground up. Rooms of one floor do not know each other.
FLOORS = (
    {"errors", "mechanisms"},
    {"config", "disk", "wire"},
    {"protection", "relay"},
    {"data", "parties", "rounds"},
    {"agreement"},
    {"holder"},
    {"experiment"},
    {"contract", "results"},
    {"cli"},
    {"client", "coordinator"},
)
# What is reached, and ADR 27 says the same: who raises one number lowers another.
MOST_ROOMS, MOST_ARROWS, MOST_WITHIN = 18, 74, 60
# The package's own face imports nothing of it, and stands below all rooms.
FACE = STANDARD_LIBRARY_ONLY


def trunk(root: Path) -> dict[str, Path]:
    """Every module of the trunk by its name."""
    files = {module_name(path, root): path for path in python_files(root)}
    return {name: path for name, path in files.items() if name.partition(".")[0] == "platform"}


@cache
def links(root: Path) -> dict[str, set[str]]:
    """Which modules of the trunk each of them imports, names that are modules followed."""
    modules = trunk(root)
    return {
        name: {target for target in _targets(path, root, modules) if target != name}
        for name, path in modules.items()
    }


def _targets(path: Path, root: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for _, target, names in imported(path, root):
        yield from _known(target, modules)
        yield from (f"{target}.{name}" for name in names if f"{target}.{name}" in modules)


def _known(name: str, modules: Mapping[str, Path]) -> Iterator[str]:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    if name and name != "platform":
        yield name


def room(module: str) -> str:
    """The room in which a module lies."""
    return module.split(".")[1]


def ends(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the rooms of both ends of every import, which may be one room."""
    for name, targets in links(root).items():
        if name not in FACE:
            yield from ((room(name), room(target)) for target in targets if target not in FACE)


def arrows(root: Path) -> set[tuple[str, str]]:
    """Which room imports which."""
    return {(one, other) for one, other in ends(root) if one != other}


def within(root: Path) -> Counter[str]:
    """How many imports each room has between its own files."""
    return Counter(one for one, other in ends(root) if one == other)


def climbing(root: Path) -> list[str]:
    """Arrows that do not lead to a lower floor."""
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    return sorted(
        f"{one} -> {other}"
        for one, other in arrows(root)
        if floor.get(one, -1) <= floor.get(other, len(FLOORS))
    )


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that are left once all that import nothing of the rest are taken away."""
    left = {name: set(targets) for name, targets in graph.items()}
    while ends := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in ends:
            del left[name]
    return sorted(left)


def test_no_import_climbs():
    assert climbing(ROOT) == []


def test_every_room_has_its_floor():
    rooms = {room(name) for name in trunk(ROOT) if name not in FACE}
    assert rooms == set().union(*FLOORS)


def test_the_rooms_are_few_and_so_are_the_arrows():
    assert len(set().union(*FLOORS)) <= MOST_ROOMS
    # The contract is a suite of tests that ships: it looks into every room, and no run has it.
    assert len([arrow for arrow in arrows(ROOT) if arrow[0] != "contract"]) <= MOST_ARROWS
    assert max(within(ROOT).values()) <= MOST_WITHIN


def test_the_decision_record_says_the_same_numbers():
    (record,) = (ROOT / "docs" / "adr").glob("0027-*.md")
    said = " ".join(record.read_text("utf-8").split())
    assert f"at most {MOST_ROOMS} rooms, {MOST_ARROWS} arrows between them" in said
    assert f"{MOST_WITHIN} imports between the files of any one room" in said
    for number, rooms in enumerate(FLOORS, start=1):
        assert f"| {number} | {', '.join(f'`{name}`' for name in sorted(rooms))} |" in said


def test_no_files_import_each_other_in_a_circle():
    assert circle(links(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("platform/wire/one.py", "import platform.protection.uploads"),
        ("platform/parties/one.py", "from platform.data import loading"),
        ("platform/errors.py", "def inner():\n    from platform.wire import codec"),
        ("platform/loose.py", "from platform.errors import ConfigError"),
        ("platform/disk/one.py", "from platform import experiment"),
    ],
)
def test_a_climbing_arrow_is_found(tmp_path, file, line):
    others = ("errors", "experiment", "data/loading", "protection/uploads", "wire/codec")
    for name in (*(f"platform/{other}.py" for other in others), file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{line}\n" if name == file else "")
    (found,) = climbing(tmp_path)
    assert found.startswith(f"{room(module_name(tmp_path / file, tmp_path))} -> ")


def test_a_circle_of_files_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    assert circle(graph) == ["a", "b", "c"]
