"""What a method says of itself before it is built: its options, its preset, its words."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from methods import CountsUpTo, CountsWith
from platform.config import MethodConfig
from platform.config.run import known_keys
from platform.contract.cases import Case
from platform.errors import ConfigError
from platform.experiment.method_building import marks_of, validate_options


def test_a_preset_states_every_option(case: Case) -> None:
    """The preset, NAME.yaml, states every option of `Config` and no other."""
    fields = {f.name for f in dataclasses.fields(case.registry.config_type(case.method))}
    assert set(case.options) == fields


def test_the_configuration_is_frozen(case: Case) -> None:
    """`Config` is a frozen dataclass."""
    kind = case.registry.config_type(case.method)
    config = case.config()
    assert isinstance(config, kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.anything = None


def test_what_is_said_of_an_option_names_others_that_there_are(case: Case) -> None:
    """A mark of an option names another option, or a key of the run, with values it may have."""
    kind = case.registry.config_type(case.method)
    options, run = case.config(), {one.name for one in known_keys()}
    for key, mark in marks_of(kind):
        if isinstance(mark, CountsUpTo):
            assert mark.key in run, f"{key} is held against {mark.key}"
        if isinstance(mark, CountsWith):
            assert mark.option in run or hasattr(options, mark.option), f"{key}: {mark.option}"


def test_an_unknown_option_is_refused_by_name(case: Case) -> None:
    """An unknown option is refused, and the refusal names it."""
    config = MethodConfig(name=case.method, **{**case.options, "unheard_of": 1})
    with pytest.raises(ConfigError, match=r"method\.unheard_of: .*valid: "):
        validate_options(case.registry, config)


@pytest.mark.parametrize("value", [{}, 1.5, True])
def test_an_option_of_a_wrong_type_is_refused_by_name(case: Case, value: object) -> None:
    """An option of a wrong type is refused, and the refusal names it."""
    kind = case.registry.config_type(case.method)
    known = dataclasses.fields(kind)
    if not known or type(value) in kinds(get_type_hints(kind)[known[0].name]):
        return
    name = known[0].name
    config = MethodConfig(name=case.method, **{**case.options, name: value})
    with pytest.raises(ConfigError, match=rf"method\.{name}: "):
        validate_options(case.registry, config)


def kinds(hint: object) -> set[object]:
    """Return all types that a hint has in it."""
    return {hint}.union(*map(kinds, get_args(hint)))


def test_the_method_says_what_it_is(case: Case) -> None:
    """The module's docstring has a title and, in a second paragraph, its source."""
    info = case.registry.info(case.method)
    assert info.name == case.method
    assert info.title
    assert info.source
    assert set(info.options) == {
        f.name for f in dataclasses.fields(case.registry.config_type(case.method))
    }


def test_the_method_is_one_file(case: Case) -> None:
    """A method is one file, and its preset has the same name."""
    preset = case.registry.preset(case.method)
    if preset is not None:
        assert preset.is_file()
        assert preset.with_suffix(".py").is_file()
        return
    folders = [Path(p) for p in importlib.import_module(case.registry.package).__path__]
    assert sum((folder / f"{case.method}.py").is_file() for folder in folders) == 1
