"""Which methods are tried, as presets and variants have them; which cases a quick run draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
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
        BrokenMethod: If a method has no preset, or its preset is not valid.
    """
    return tuple(shipped_case(chosen.registry, name) for name in chosen.names)


def shipped_case(registry: Registry, name: str) -> Case:
    """Return the case of one method, as its preset has it.

    Raises:
        BrokenMethod: If it has no preset, or its preset is not valid.
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


Pair = tuple[tuple[str, str], ...]
APART: Final = ({"case", "asked"},)
"""Factors that need not meet value by value: that would be the whole product again."""
BY_FAMILY: Final = frozenset(
    {
        # What they claim is the protocol's, and the same for all methods of a kind.
        "test_a_masked_sum_is_the_plain_sum",
        "test_upload_noise_and_masks",
        "test_a_client_keeps_its_personal_state",
        "test_central_noise_is_divided_by_the_planned_size[bare]",
        "test_one_loss_more_than_the_threshold_allows_aborts",
        "test_an_update_that_does_not_fit_is_refused_and_its_tensor_named",
        "test_noise_is_that_of_the_ledger",
        # Of our own methods these are read at review as well.
        "test_a_method_keeps_nothing_between_calls",
        "test_a_method_draws_no_noise",
        "test_personal_state_does_not_leave_in_what_is_trained",
    }
)
"""Tests that draw each kind of method, not each method: `NAME`, or `NAME[FACTOR]`.

With a factor in brackets each method is still drawn once, with whichever value of the factor.
"""


def draw(demands: Sequence[frozenset[Pair]]) -> list[bool]:
    """Return which rows to take so that the taken rows meet all demands.

    Greedy and without chance: the rows that meet most that is new go first, in their order.
    """
    taken, met = [False] * len(demands), set[Pair]()
    for gain in range(max(map(len, demands), default=0), 0, -1):
        for index, demand in enumerate(demands):
            if not taken[index] and len(demand - met) >= gain:
                taken[index] = True
                met |= demand
    return taken


def factors_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a case: of a parameter its own factors, if it says them, else itself."""
    found: dict[str, str] = {}
    for name, value in params.items():
        own = getattr(value, "factors", None)
        found |= {name: repr(value)} if own is None else own
    return found


def demanded(test: str, row: Mapping[str, str]) -> frozenset[Pair]:
    """Return the values and pairs of values of a row that must be met in this test."""
    values = dict(row)
    if test in BY_FAMILY:
        values.pop("case", None)
    # A test without parameters has one case, which must be drawn as well.
    singles: set[Pair] = {(("test", test),)}
    singles |= {((name, value),) for name, value in values.items()}
    spared = {name for name in values if f"{test}[{name}]" in BY_FAMILY}
    apart = [*APART, *({"case", name} for name in spared)]
    pairs: set[Pair] = {
        (one, other)
        for one, other in combinations(sorted(values.items()), 2)
        if {one[0], other[0]} not in apart
    }
    return frozenset(singles | pairs)


def drawn(test: str, cases: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return which of a test's cases, given by their parameters, a quick run has."""
    return draw([demanded(test, factors_of(params)) for params in cases])


def mark_undrawn(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of these tests as slow that a quick run does not draw."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        # Tests that are slow anyway represent nothing in a quick run.
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        params = [item.callspec.params if hasattr(item, "callspec") else {} for item in cases]
        for item, is_drawn in zip(cases, drawn(cases[0].originalname, params), strict=True):
            if not is_drawn:
                item.add_marker(pytest.mark.slow)
