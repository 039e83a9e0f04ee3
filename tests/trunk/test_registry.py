"""The registry: a file is a method, and a name is never code."""

from __future__ import annotations

import sys

import pytest

from methods import Registry, Task, UnknownMethod

MODULE = '''"""Title of {name}.

Source of {name},
on two lines.

More.
"""
from dataclasses import dataclass

LOADED.append("{name}")

@dataclass(frozen=True)
class Config:
    """Options."""

    size: int = 3
    name: str = "x"

def build(config, task):
    return ("{name}", config.size, task.population)
'''


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A package of two methods, a private module and a folder; counts what is imported."""
    name = f"package_{tmp_path.name}"
    package = tmp_path / name
    (package / "folder").mkdir(parents=True)
    (package / "folder" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "notes.txt").write_text("")
    for method in ("beta", "alpha", "_private"):
        text = MODULE.replace("{name}", method)
        (package / f"{method}.py").write_text(
            text.replace("LOADED", f"__import__({name!r}).__dict__.setdefault('loaded', [])")
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry(name)


def loaded(registry) -> list[str]:
    return getattr(sys.modules[registry.package], "loaded", [])


def test_files_are_methods(registry):
    assert registry.available() == ("alpha", "beta")
    assert loaded(registry) == []


def test_only_the_named_module_is_imported(registry):
    config = registry.config_type("beta")(size=5)
    assert registry.build("beta", config, Task((), (), 4)) == ("beta", 5, 4)
    assert loaded(registry) == ["beta"]


@pytest.mark.parametrize(
    "name",
    [
        "_private",
        "folder",
        "alpha.py",
        "os",
        "../alpha",
        "ALPHA",
    ],
)
def test_a_name_outside_the_list_is_refused_and_never_imported(registry, name):
    for ask in (registry.config_type, registry.info, lambda n: registry.build(n, None, None)):
        with pytest.raises(UnknownMethod, match=r"method\.name: .* valid: alpha, beta$"):
            ask(name)
    assert loaded(registry) == []


def test_what_can_be_said_without_building(registry):
    info = registry.info("alpha")
    assert (info.name, info.title) == ("alpha", "Title of alpha.")
    assert info.source == "Source of alpha, on two lines."
    assert set(info.options) == {"size", "name"}
