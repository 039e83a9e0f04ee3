"""No number of a configuration is without an end: the tree is walked, the methods' options too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from methods import Registry
from methods.interface import server_optimizers
from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.config import RunConfig
from platform.holder.settings import HolderSettings
from tests.trunk._runs import Command

REGISTRY = Registry()


def numbers(kind: Any, path: str, marks: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every number below a type, with what bounds it."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        yield from numbers(inner, path, (*marks, *more))
    elif origin in (Union, UnionType, tuple, list):
        for each in get_args(kind):
            yield from numbers(each, path, marks)
    elif isinstance(kind, type) and origin is None:
        if issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                yield from numbers(field.annotation, f"{path}.{name}", tuple(field.metadata))
        elif dataclasses.is_dataclass(kind):
            for name, hint in get_type_hints(kind, include_extras=True).items():
                yield from numbers(hint, f"{path}.{name}")
        elif kind in (int, float):
            yield path, marks
    else:
        assert origin is Literal or kind in (Any, ...) or origin is dict, (path, kind)


def bounds(marks: tuple[Any, ...]) -> tuple[float | None, float | None]:
    """The lowest and the highest value that is valid, as far as one is stated."""
    low: float | None = None
    high: float | None = None
    for mark in marks:
        for each in mark.metadata if isinstance(mark, FieldInfo) else [mark]:
            if isinstance(each, (Ge, Gt)):
                low = each.ge if isinstance(each, Ge) else each.gt
            if isinstance(each, (Le, Lt)):
                high = each.le if isinstance(each, Le) else each.lt
            assert not isinstance(each, Interval)
    return low, high


TREES = {
    "": RunConfig,
    "client": HolderSettings,
    **{f"method {name}": REGISTRY.config_type(name) for name in REGISTRY.available()},
    **{
        f"method.server_optimizer {name}": getattr(server_optimizers, name)
        for name in ("ServerSGD", "ServerAdagrad", "ServerAdam", "ServerYogi")
    },
}


@pytest.mark.parametrize("name", TREES)
def test_every_number_has_two_ends(name: str) -> None:
    found = dict(numbers(TREES[name], name))
    loose = [path for path, marks in found.items() if None in bounds(marks)]
    assert loose == []
    for path, marks in found.items():
        low, high = bounds(marks)
        assert math.isfinite(low) and math.isfinite(high) and low <= high, path


def test_the_walk_sees_numbers_and_bounds() -> None:
    paths = [path for path, _ in numbers(RunConfig, "")]
    assert {".rounds", ".task.clients", ".pool.generations", ".seeds.cohort"} <= set(paths)
    assert len(paths) > 60
    assert bounds((Ge(1),)) == (1, None)
    assert dict(numbers(Annotated[int, Ge(1)] | None, "x")) == {"x": (Ge(1),)}
    assert dict(numbers(float, "x")) == {"x": ()}


def options(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from options(each, f"{path} {name}")
    for parameter in command.params:
        if parameter.type.name in ("integer", "float", "integer range", "float range"):
            yield f"{path} {parameter.name}", parameter.type


@pytest.mark.parametrize("program", [app, client_app], ids=["coordinator", "client"])
def test_every_number_of_a_command_line_has_two_ends(program: typer.Typer) -> None:
    found = dict(options(typer.main.get_command(program)))
    # Bounded elsewhere: the first is the key `seed`, the others are the log's and the plan's own.
    elsewhere = (
        *(" run seed", " audit query round_number", " audit query limit"),
        *(" secagg-plan corrupt_rate", " secagg-plan dropout_rate"),
    )
    loose = [
        path
        for path, kind in found.items()
        if None in (getattr(kind, "min", None), getattr(kind, "max", None))
        and path not in elsewhere
    ]
    assert loose == []


HUGE = {
    "rounds": ("100000000000000", "rounds"),
    "threads": ("100000", "threads"),
    "task.clients": ("1000000000", "task.clients"),
    "training.batch_size": ("1000000000", "training.batch_size"),
    "training.local_steps": ("9000000000000", "training.local_steps"),
    "pool.generations": ("1000000000", "pool.generations"),
    "pool.minimum": ("1000000000", "pool.minimum"),
    "privacy.rank": ("1000000000", "privacy.rank"),
    "seed": ("9223372036854775807000", "--set"),
    "seeds.cohort": ("-1", "seeds.cohort"),
    "method.experts": ("1000000000", "method.experts"),
    "training.learning_rate": (".nan", "training.learning_rate"),
    "privacy.clipping_norm": ("1e300", "privacy.clipping_norm"),
    "task.test_per_class": ("100000000", "task.test_per_class"),
    "cohort.retries": ("1e9", "cohort.retries"),
    "evaluation.every": ("99999999999", "evaluation.every"),
    "secure_aggregation.corrupt": ("99999999999", "secure_aggregation.corrupt"),
    "storage.cache_gib": (".inf", "storage.cache_gib"),
}


@pytest.mark.parametrize("key", HUGE)
def test_a_huge_value_is_refused_at_once(sotto: Command, key: str) -> None:
    value, field = HUGE[key]
    answer = sotto("run", "quickstart", "--set", f"{key}={value}")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {field}: ") and answer.err.count("\n") == 1, answer.err


@pytest.mark.parametrize("key", ["name", "task.dataset", "task.senses", "device", "method.name"])
def test_a_huge_text_does_not_fill_the_screen(sotto: Command, key: str) -> None:
    answer = sotto("run", "quickstart", "--set", f"{key}={'x' * 100_000}")
    assert answer.code == 2 and len(answer.err) < 2_000, len(answer.err)
