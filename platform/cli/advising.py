"""`advise`: what a federation of declared numbers gains, by measured cells and without any data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from platform.cli.output import Said, answer, table
from platform.cli.output import epsilon as rounded
from platform.config import RunConfig, Sources, load_config
from platform.data.catalogue import dataset_info
from platform.errors import ConfigError
from platform.results.advice import Advice, Asked, Federation, advise, measured


def advise_command(config: Path | None, *, as_json: bool, **options: Any) -> None:
    """Print what to use, what it gains, when to stay alone, and the cell on which that rests."""
    layers = ({} if config is None else _declared(load_config(config)), options)
    found: dict[str, Any] = {"mechanism": "distributed_noise"}
    found |= {key: one for layer in layers for key, one in layer.items() if one is not None}
    mechanisms, name = Sources().mechanisms, found["mechanism"]
    if name not in mechanisms.names:
        valid = ", ".join(mechanisms.names)
        raise ConfigError(f"--mechanism: {name!r} is not valid; valid: {valid}")
    chosen = mechanisms.named(name)
    if not chosen.facts.claims:
        if options["epsilon"] is not None:
            raise ConfigError(f"--epsilon: does not go with {name}; valid: a --mechanism of noise")
        found["epsilon"] = "inf"
    try:
        usual = {"groups": False, "relation": chosen.relations[0]}
        asked = TypeAdapter(Asked).validate_python(usual | found)
    except ValidationError as error:
        wrong = [str(one["loc"][0]) for one in error.errors()]
        raise ConfigError(*map(partial(_fault, found), wrong)) from error
    advice = advise(asked, chosen.facts, measured())
    answer({"asked": asdict(asked), **asdict(advice)}, _said(asked, advice), as_json=as_json)


def _fault(found: Mapping[str, Any], name: str) -> str:
    value = f"{found[name]!r} is not valid" if name in found else "missing"
    valid = "all or a number" if name == "classes_each" else "a number above 0"
    return f"--{name.replace('_', '-')}: {value}; valid: {valid}, here or in CONFIG"


def _declared(config: RunConfig) -> dict[str, Any]:
    """Return what a configuration says without its data."""
    task, part, claim = config.task, config.task.partition, config.privacy
    classes = "all" if part.kind == "iid" else part.classes_per_client
    known = len(dataset_info(task.dataset, config.plugins).classes)
    of_shots = (task.shots or 0) * (known if classes == "all" else classes or 0)
    return {
        "clients": task.clients,
        "images": part.images_per_client or of_shots or None,
        "classes_each": classes,
        "groups": task.senses == "clients",
        "epsilon": claim.target_epsilon,
        "delta": claim.target_delta,
        "mechanism": claim.mechanism,
        "relation": claim.relation,
    }


def _federation(one: Federation) -> str:
    groups = ", in groups" if one.groups else ""
    return (
        f"{one.clients:,} clients of {one.images:,} images and {one.classes_each} classes each"
        f"{groups}, epsilon {rounded(one.epsilon)}"
    )


def _said(asked: Asked, advice: Advice) -> Iterator[Said]:
    yield f"{_federation(asked)} (delta {asked.delta:g}, {asked.relation}), {asked.mechanism}"
    arm, keys = f" ({advice.alone})" if advice.alone else "", list[str]()
    if advice.use is None:
        yield f"advice: stay alone{arm}: {advice.reason}"
    else:
        yield f"advice: use {advice.use.way}"
        for key, value in advice.settings.items():
            keys += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        yield from [f"by: {shlex.join(keys)}"] if keys else ()
        gain = f"{advice.use.points()} points on all classes of {advice.use.data}"
        yield f"gain: {gain}, over a client alone at its best{arm}"
    own = "not measured"
    if advice.own is not None:
        own = f"{advice.own.points(own=True)} points with {advice.own.way}"
        own += f"; advised is evaluation.at_home: {advice.at_home}"
    yield f"own classes: {own}"
    if advice.fewest_clients is not None:
        yield f"stay alone with fewer than {advice.fewest_clients:,} clients at this epsilon"
    yield from (f"note: {note}" for note in advice.notes)
    if advice.cell:
        head, columns = advice.cell[0], ("way", "accuracy", "gain, all classes", "gain, own")
        rows = [
            (row.way, f"{row.all:.1f}%", row.points(), row.points(own=True)) for row in advice.cell
        ]
        title = f"measured: {head.data}, {_federation(head)}; {head.seeds} seeds, {head.source}"
        yield table(title, columns, rows)
