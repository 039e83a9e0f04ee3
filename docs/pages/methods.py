"""Build the page of methods from their docstrings, options and declared properties."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.pages.markdown import begun, table
from methods import BUILT_IN_METHODS, Method, Registry, Task, Visibility
from methods.clip.adapter import load_backbone
from platform.config import PACKAGED_CONFIGS, MethodConfig
from platform.config.loading import validate_options
from platform.data.shapes import CLASSES, DOMAINS
from platform.experiment.method_building import is_admitted
from platform.mechanisms import BUILT_IN
from platform.results.sweeping.tables import OURS

BESIDE = Path(__file__).resolve().parents[1] / "methods.md"
HEAD = ("name", "shared", "numbers", "data", "mechanisms", "notes")
CLIENTS = 10


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    registry = BUILT_IN_METHODS
    task = Task(CLASSES, DOMAINS, CLIENTS, load_backbone("sotto-tiny"))
    names = registry.available()
    return "\n".join(
        (
            begun("Methods", BESIDE, "explains mechanisms and ablations.", folder),
            table([HEAD, *(row(registry, name, task) for name in names)]),
            "*Numbers* is how many numbers a client shares in a round, with the options of the "
            "preset and the tiny CLIP that ships (token width 128); with ViT-B/16 a context of 16 "
            "tokens has 8,192. *Centralised*: one party holds all data. *Personal*: each client "
            "keeps a part of its model. *Averaged*: any server optimiser may be used.\n",
            f"{OURS} Our reading of a paper that leaves the method open or that we did not have. "
            "Its numbers are not those of the paper's method.\n",
            *(section(registry, name) for name in names),
        )
    )


def row(registry: Registry, name: str, task: Task) -> tuple[str, ...]:
    """Return the line of the table for a method with its preset."""
    config = validate_options(registry, MethodConfig(name=name, **preset(name)))
    method = registry.build(name, config, task)
    # A network has many layers, so the line names its parts.
    shared = list(dict.fromkeys(tensor.split(".")[0] for tensor in method.shared_spec()))
    if method.pool_policy() is not None:
        shared.append("pool entry")
    if method.visibility is Visibility.PER_CLIENT:
        shared.append("seen one by one")
    return (
        f"[`{name}`](#{name})" + (f" {OURS}" if registry.reading(name) else ""),
        ", ".join(shared) or ("nothing (centralised)" if method.centralised else "nothing"),
        str(sum(math.prod(spec.shape) for spec in method.shared_spec().values())),
        ", ".join(sorted(method.needs)),
        mechanisms(method),
        ", ".join(notes(method)) or "-",
    )


def notes(method: Method) -> Iterator[str]:
    """Yield whether clients keep a part, and whether a server optimiser may be used."""
    if method.has_personal_state:
        yield "personal"
    if method.averaged:
        yield "averaged"


def mechanisms(method: Method) -> str:
    """Return the mechanisms that a method admits, in few words."""
    admitted = {found.name for found in BUILT_IN if is_admitted(method, found)}
    if admitted == set(BUILT_IN.names):
        return "all"
    refused = sorted(set(BUILT_IN.names) - admitted)
    if len(refused) == 1:
        return f"all but `{refused[0]}`"
    return ", ".join(f"`{name}`" for name in sorted(admitted))


def section(registry: Registry, name: str) -> str:
    """Return the docstring of a method and the table of its options."""
    module = importlib.import_module(f"{registry.package}.{name}")
    said, values = inspect.getdoc(module) or "", preset(name)
    meanings = meanings_of(registry.config_type(name))
    lines = [
        (f"`{key}`", f"`{shown(values[key])}`", meanings.get(key, "").replace("|", "\\|"))
        for key in values
    ]
    options = table([("option", "preset", "meaning"), *lines]) if lines else "No options.\n"
    return f"## {name}\n\n{said}\n\n{options}"


def preset(name: str) -> dict[str, Any]:
    """Return the options of a method's preset."""
    text = (PACKAGED_CONFIGS / "methods" / f"{name}.yaml").read_text(encoding="utf-8")
    return {key: value for key, value in yaml.safe_load(text).items() if key != "name"}


def shown(value: object) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def meanings_of(config: type[Any]) -> Mapping[str, str]:
    """Return the meaning of each option, from the docstrings of a dataclass and its bases."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if dataclasses.is_dataclass(kind):
            found |= dict(attributes(inspect.getdoc(kind) or ""))
    return found


def attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and meanings in the section `Attributes` of a docstring."""
    _, _, rest = docstring.partition("Attributes:\n")
    for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", rest, re.MULTILINE):
        yield name, " ".join(meaning.split())
