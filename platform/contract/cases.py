"""Which methods are tried: each as its preset has it, and under each variant that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from methods import BrokenMethod, Registry
from platform.config import PACKAGED_CONFIGS, MethodConfig
from platform.experiment.method_building import validate_options

PRESETS: Final = PACKAGED_CONFIGS / "methods"
PIXELS: Final = 16
SMALL: Final[Mapping[str, Any]] = {
    "image_size": PIXELS,
    "channels": [2, 3],
    "feature_width": 8,
    "buckets": 50,
}
"""A network that a test has time for; everything else is as the presets have it."""


@dataclass(frozen=True)
class Case:
    """One method with one set of options.

    Attributes:
        name: Name of the test case.
        method: The method's name.
        registry: Where it is found.
        options: As a configuration gives them.
    """

    name: str
    method: str
    registry: Registry
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def factors(self) -> dict[str, str]:
        """What the drawing of cases pairs with other values: the case, and what it trains."""
        network = {**self.options, **self.options.get("base_options", {})}.get("network")
        return {"case": self.name, "family": network or "prompts"}

    def config(self) -> Any:
        """Return the validated options.

        Raises:
            ConfigError: If they are not valid.
        """
        return validate_options(self.registry, MethodConfig(name=self.method, **self.options))


@dataclass(frozen=True)
class Chosen:
    """The methods that are tried.

    Attributes:
        registry: Where they are found.
        names: Theirs, sorted.
    """

    registry: Registry
    names: tuple[str, ...]


OWN: Final = Registry(installed=False)


def own_methods() -> Chosen:
    """Return all methods of this package."""
    return Chosen(OWN, OWN.available())


def methods_in(folder: Path) -> Chosen:
    """Return the methods of a folder.

    Raises:
        BrokenMethod: If there is none, or two have one name.
    """
    return _beside_ours(Registry(folder=folder, installed=False))


def installed_methods() -> Chosen:
    """Return the methods that installed packages offer.

    Raises:
        BrokenMethod: If there is none, or two have one name.
    """
    chosen = _beside_ours(Registry())
    if not chosen.names:
        raise BrokenMethod(
            "--methods: is not given, and no installed package has an entry point of the group "
            "sotto.methods; valid: a folder with NAME.py and NAME.yaml"
        )
    return chosen


def _beside_ours(registry: Registry) -> Chosen:
    ours = set(OWN.available())
    return Chosen(registry, tuple(name for name in registry.available() if name not in ours))


@cache
def shipped_cases(chosen: Chosen) -> tuple[Case, ...]:
    """Return one case per preset, as it is shipped.

    Raises:
        BrokenMethod: If a method has no preset, or what is there is none.
    """
    return tuple(shipped_case(chosen.registry, name) for name in chosen.names)


def shipped_case(registry: Registry, name: str) -> Case:
    """Return the case of one method, as its preset has it.

    Raises:
        BrokenMethod: If it has no preset, or what is there is none.
    """
    path = registry.preset(name) or PRESETS / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise BrokenMethod(f"preset {str(path)!r}: cannot be read: {reason}") from error
    if not isinstance(tree, dict) or tree.get("name") != name:
        raise BrokenMethod(
            f"preset {str(path)!r}: is not that of {name!r}; valid: `name: {name}` and its options"
        )
    return Case(name, tree.pop("name"), registry, tree)


@cache
def all_cases(chosen: Chosen) -> tuple[Case, ...]:
    """Return one case per preset and one per variant, small networks made smaller.

    Raises:
        BrokenMethod: If a method has no preset, or cannot be used.
    """
    shipped = shipped_cases(chosen)
    cases: list[tuple[str, Case, dict[str, Any]]] = [(case.name, case, {}) for case in shipped]
    cases += [
        (f"{case.name}-{'-'.join(map(str, changed.values()))}", case, dict(changed))
        for case in shipped
        for changed in case.registry.variants(case.method)
    ]
    return tuple(
        Case(name, case.method, case.registry, shrunk(case.options | changed))
        for name, case, changed in cases
    )


def shrunk(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a small network, where they have one."""
    if "base_options" in options:
        return options | {"base_options": {**SMALL, **options["base_options"]}}
    return options | {name: SMALL[name] for name in SMALL if "network" in options}
