"""The methods that the suite tests, with presets and variants; the cases of a quick run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any, Final

import pytest
import yaml

from methods import BrokenPlugin, Registry
from methods.interface.registry import BUILT_IN_METHODS
from methods.plugins import DOORS, Kind, Plugins
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
"""A network that is small enough for a test; the presets set all other options."""


@dataclass(frozen=True)
class Case:
    """One method, by the name that its registry knows, with options as a configuration gives them.

    `name` is the name of the test case.
    """

    name: str
    method: str
    registry: Registry
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def factors(self) -> dict[str, str]:
        """The case, the method, and the values that the draw of cases pairs with others."""
        network = {**self.options, **self.options.get("base_options", {})}.get("network")
        return {
            "case": self.name,
            "method": self.method,
            "family": network or "prompts",
            "pool": pool_of(self),
        }

    def config(self) -> Any:
        """Return the validated options; `ConfigError` if they are not valid."""
        return validate_options(self.registry, MethodConfig(name=self.method, **self.options))


@cache
def pool_of(case: Case) -> str:
    """Return when clients fill the method's pool, as the method says before it is built."""
    try:
        policy = case.registry.serving(case.method, case.config(), 10)
    except Exception:  # somebody's own code: a test says what is wrong with it
        return "none"
    if policy is None:
        return "none"
    return policy.when if policy.fixed else "in rounds"


@dataclass(frozen=True)
class Chosen:
    """The methods that the suite tests: sorted names, and the registry that knows them."""

    registry: Registry
    names: tuple[str, ...]


def own_methods() -> Chosen:
    """Return all methods of this package."""
    return Chosen(BUILT_IN_METHODS, BUILT_IN_METHODS.available())


def methods_of(plugins: Plugins) -> Chosen:
    """Return the methods among plug-ins; `BrokenPlugin` if two have the same name."""
    registry, ours = Registry(plugins=plugins), set(BUILT_IN_METHODS.available())
    return Chosen(registry, tuple(name for name in registry.available() if name not in ours))


def require_some(plugins: Plugins) -> None:
    """Refuse to test nothing, which would look like a pass; a folder without any is refused too."""
    if not any(plugins.of(kind) for kind in DOORS):
        raise BrokenPlugin(
            "--plugins: is not given, and no installed package has an entry point of a group such "
            "as sotto.methods; valid: a folder of plug-ins"
        )


@dataclass(frozen=True)
class Plugin:
    """One plug-in that is no method."""

    kind: Kind
    name: str
    plugins: Plugins


def plugins_of_kind(plugins: Plugins, kind: Kind) -> tuple[Plugin, ...]:
    """Return one case per plug-in of a kind."""
    return tuple(Plugin(kind, name, plugins) for name in plugins.of(kind))


@cache
def shipped_cases(chosen: Chosen) -> tuple[Case, ...]:
    """Return one case per preset, unchanged."""
    return tuple(shipped_case(chosen.registry, name) for name in chosen.names)


def shipped_case(registry: Registry, name: str) -> Case:
    """Return a method with its preset's options; `BrokenPlugin` without a valid preset."""
    path = registry.preset(name) or PRESETS / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise BrokenPlugin(f"preset {str(path)!r}: cannot be read: {reason}") from error
    if not isinstance(tree, dict) or tree.get("name") != name:
        raise BrokenPlugin(
            f"preset {str(path)!r}: is not that of {name!r}; valid: `name: {name}` and its options"
        )
    return Case(name, tree.pop("name"), registry, tree)


@cache
def all_cases(chosen: Chosen) -> tuple[Case, ...]:
    """Return one case per preset and one per variant, with even smaller networks."""
    shipped = shipped_cases(chosen)
    cases = [replace(case, options=shrunk(case.options)) for case in shipped]
    for case in shipped:
        for changed in case.registry.variants(case.method):
            name = f"{case.name}-{'-'.join(map(str, changed.values()))}"
            cases.append(replace(case, name=name, options=shrunk(case.options | dict(changed))))
    return tuple(cases)


def shrunk(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; if they have a network, make it small."""
    if "base_options" in options:
        return options | {"base_options": {**SMALL, **options["base_options"]}}
    return options | {name: SMALL[name] for name in SMALL if "network" in options}


Pair = tuple[tuple[str, str], ...]
LISTED: Final = frozenset({"case", "method"})
"""Factors whose values need not meet those of others: that would be the full product again."""
EACH_CASE: Final = frozenset(
    {
        "test_the_interface",
        "test_the_update_is_what_was_announced",
        "test_a_client_without_shared_tensors_or_pool_releases_nothing",
        "test_the_server_state_keeps_its_shape",
    }
)
"""Tests that draw each case, also each variant of a method; the others draw each method once."""
BY_FAMILY: Final = frozenset(
    {
        # These test the protocol, which is the same for all methods of a kind.
        "test_a_masked_sum_is_the_plain_sum",
        "test_upload_noise_and_masks",
        "test_a_client_keeps_its_personal_state",
        "test_central_noise_is_divided_by_the_planned_size",
        "test_a_pool_that_is_made_once_is_collected",
        "test_pool_entries_are_the_survivors",
        "test_one_loss_more_than_the_threshold_allows_aborts",
        "test_an_update_that_does_not_fit_is_refused_and_its_tensor_named",
        "test_noise_is_that_of_the_ledger",
        "test_plain_steps_are_the_methods_own_to_the_bit",
        # For our own methods, reviewers check these rules as well.
        "test_a_method_keeps_nothing_between_calls",
        "test_a_method_draws_no_noise",
        "test_personal_state_does_not_leave_in_what_is_trained",
    }
)
"""Tests that draw each kind of method, by what it trains and its pool, not each method."""


def draw(demands: Sequence[frozenset[Pair]]) -> list[bool]:
    """Return which rows to take, greedily, so that they meet all demands together."""
    taken, met = [False] * len(demands), set[Pair]()
    for gain in range(max(map(len, demands), default=0), 0, -1):
        for index, demand in enumerate(demands):
            if not taken[index] and len(demand - met) >= gain:
                taken[index] = True
                met |= demand
    return taken


def factors_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the factors of a case: a parameter's own `factors` if it has them, else its value."""
    found: dict[str, str] = {}
    for name, value in params.items():
        own = getattr(value, "factors", None)
        found |= {name: repr(value)} if own is None else own
    return found


def demanded(test: str, row: Mapping[str, str]) -> frozenset[Pair]:
    """Return the values and pairs of values in a row that this test must meet."""
    values = dict(row)
    if test in BY_FAMILY:
        values.pop("method", None)
    if test not in EACH_CASE:
        values.pop("case", None)
    # A test without parameters has one case; this entry makes sure that it is drawn.
    singles: set[Pair] = {(("test", test),)}
    singles |= {((name, value),) for name, value in values.items()}
    paired = sorted((name, value) for name, value in values.items() if name not in LISTED)
    return frozenset(singles | set(combinations(paired, 2)))


def drawn(test: str, cases: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return which of a test's cases (given by their parameters) a quick run includes."""
    return draw([demanded(test, factors_of(params)) for params in cases])


def mark_undrawn(items: Iterable[pytest.Item]) -> None:
    """Mark those cases as slow that a quick run does not draw."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        # A quick run leaves out tests that are slow already, so they cover nothing in it.
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        params = [item.callspec.params if hasattr(item, "callspec") else {} for item in cases]
        for item, is_drawn in zip(cases, drawn(cases[0].originalname, params), strict=True):
            if not is_drawn:
                item.add_marker(pytest.mark.slow)
