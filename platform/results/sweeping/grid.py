"""The grid of a sweep: configurations x methods x seeds x the lists of values of `--set`.

Every cell is a whole configuration, checked before the first run starts. The sweep stores nothing
about a cell: it finds the run again by the run's configuration (`identity`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from methods import MethodInfo, PoolPolicy
from methods.plugins import Plugins
from platform.config import RunConfig, Sources, StorageConfig, load_config
from platform.config.files import read_preset
from platform.config.loading import validate_options
from platform.config.run import code_of, identity, origins_of
from platform.errors import ConfigError, Faults
from platform.experiment.environment import with_absolute_paths
from platform.protection.building import generations_to_serve, require_serving
from platform.results.numbers import SENDS_NOTHING, Axes

OWN_OPTIONS: Final = {
    "method.name": "--method",
    "seed": "--seed",
    "device": "--device",
    "storage.url": "--storage",
}
OPENING, CLOSING, QUOTES = "[{(", "]})", "\"'"


@dataclass(frozen=True)
class Axis:
    """What the cells of a grid differ in.

    Attributes:
        key: A key of the configuration, or a word for what several keys set together.
        values: Each value as tables show it, with the settings `key=value` that it stands for. A
            single value is the same for all cells, and no axis of tables.
        once: The settings of methods that send nothing, which have no other cell on this axis;
            empty if they take all values.
    """

    key: str
    values: Mapping[str, tuple[str, ...]]
    once: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The request for a sweep.

    Attributes:
        configs: Files, or names of packaged configurations.
        methods: Names of methods; empty for each configuration's own.
        settings: `key=value` or `key=value,value,...`; more than one value makes an axis.
        method_settings: `method:key=value`, for cells of that method only.
        axes: Axes beside those of `settings`; their cells come first.
        fills: Whether settings are filled in for single methods (`_filled_in`).
        device: The device of all cells, None for the configurations' own.
        folder: The user's folder of own methods, None without one.
    """

    configs: tuple[str, ...]
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    method_settings: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    fills: bool = False
    device: str | None = None
    folder: Path | None = None
    storage: str = StorageConfig().url


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the grid.

    Attributes:
        title: The method's name in its paper.
        run: The whole configuration, paths absolute.
        code: SHA-256 of the file of a method from outside, else None.
        reading: Why the method is its implementer's reading of a paper; None for other methods.
        filled: The settings that were filled in for its method.
    """

    config: str
    method: str
    title: str
    axes: Axes
    run: RunConfig = field(repr=False)
    code: str | None = None
    reading: str | None = None
    filled: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.run.seed

    @property
    def identity(self) -> str:
        """The key by which a later sweep finds the run of this cell."""
        return identity(self.run.model_dump(mode="json"), self.code)

    def __str__(self) -> str:
        return describe(self.config, self.method, self.seed, self.axes)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All cells in the order configuration, axes, method, seed, and all their values."""

    configs: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    cells: tuple[Cell, ...]

    @property
    def digest(self) -> str:
        """Hexadecimal digest of the identities of all cells."""
        return hashlib.sha256("".join(cell.identity for cell in self.cells).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder of results, which the same request finds again."""
        return f"{Path(self.configs[0]).stem}-{self.digest[:8]}"

    @property
    def unequal(self) -> tuple[str, ...]:
        """A line with the options of one name that differ between methods; empty if none do."""
        found: dict[str, dict[str, str]] = {}
        for method, key in {(c.method, key): None for c in self.cells for key in c.options}:
            values = (cell.options[key] for cell in self.cells if cell.method == method)
            texts = dict.fromkeys(json.dumps(value, default=str) for value in values)
            found.setdefault(key, {})[method] = " or ".join(texts)
        named = [
            f"{key}: {', '.join(map(' '.join, of.items()))}"
            for key, of in found.items()
            if len(set(of.values())) > 1
        ]
        return (f"options that differ: {'; '.join(named)}",) if named else ()


def describe(config: str, method: str, seed: int, axes: Axes) -> str:
    """Return a cell in words."""
    values = "".join(f", {key}={value}" for key, value in axes)
    return f"{config}, {method}, seed {seed}{values}"


def for_one_alone(problem: str) -> str:
    """Return a hint at `--for` for a sentence about a method's option; empty for others."""
    key = problem.partition(":")[0]
    if not key.startswith("method.") or key == "method.name":
        return ""
    return f"; of one method alone: --for METHOD:{key}=VALUE"


def build_grid(request: SweepRequest, sources: Sources | None = None) -> Grid:
    """Return all cells of a sweep, each of them checked; an error names the cell."""
    for name, given in (("CONFIG", request.configs), ("--method", request.methods)):
        require_distinct(name, given)
    require_distinct("--seed", request.seeds)
    faults, settings = Faults(), list(request.axes)
    for text in request.settings:
        with faults:
            settings.append(_setting(text))
    faults.require_none(ConfigError)
    require_distinct("--set", [axis.key for axis in settings])
    axes = tuple((axis.key, tuple(axis.values)) for axis in settings if len(axis.values) > 1)
    own = _own_settings(request.method_settings, [key for key, _ in axes])
    sources = sources or Sources.of(Plugins(request.folder))
    problems: dict[str, list[str]] = {}
    cells = tuple(_cells(request, settings, own, problems, sources=sources))
    require_none(problems)
    found: dict[str, Cell] = {}
    for cell in cells:
        # One run in two rows would look like two results that agree.
        if (other := found.setdefault(cell.identity, cell)) is not cell:
            raise ConfigError(
                f"cells ({other}) and ({cell}) are one and the same run; valid are cells that "
                "differ in more than how their values are written"
            )
    methods = tuple(dict.fromkeys(cell.method for cell in cells))
    if len({cell.title for cell in cells}) < len(methods):
        cells = tuple(replace(cell, title=cell.method) for cell in cells)
    for name in own:
        if name not in methods:
            raise ConfigError(
                f"--for: {name!r} is no method of this sweep; valid: {', '.join(methods)}"
            )
    configs = tuple(dict.fromkeys(cell.config for cell in cells))
    seeds = tuple(dict.fromkeys(cell.seed for cell in cells))
    return Grid(configs=configs, methods=methods, seeds=seeds, axes=axes, cells=cells)


def keep(error: Exception, where: str, problems: dict[str, list[str]]) -> None:
    """Keep each sentence of an error, with the cell that it is about."""
    for sentence in error.faults if isinstance(error, ConfigError) else (str(error),):
        problems.setdefault(sentence, []).append(where)


def require_none(problems: Mapping[str, Sequence[str]]) -> None:
    """Refuse all at once, a line each: sentences with the cells that they are about."""
    if problems:
        lines = []
        for sentence, (first, *others) in problems.items():
            more = f" and {len(others)} more" if others else ""
            lines.append(f"cell ({first}){more}: {sentence}{for_one_alone(sentence)}")
        raise ConfigError(*lines)


def split_values(text: str) -> tuple[str, ...]:
    """Return the values between commas, except commas in brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        else:
            depth += (character in OPENING) - (character in CLOSING)
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return seeds between commas, whole numbers from 0."""
    for part in (parts := split_values(text)):
        if not (part.isascii() and part.isdigit()):
            raise ConfigError(f"--seed: {text!r} is not valid; it must be numbers such as 0,1,2")
    return tuple(int(part) for part in parts)


def parse_names(text: str) -> tuple[str, ...]:
    """Return names of methods between commas."""
    if not all(parts := split_values(text)):
        raise ConfigError(f"--method: {text!r} is not valid; it must be names such as coop,fedpgp")
    return parts


def _cells(
    request: SweepRequest,
    settings: Sequence[Axis],
    own: Mapping[str, Sequence[str]],
    problems: dict[str, list[str]],
    *,
    sources: Sources,
) -> Iterator[Cell]:
    """Yield all cells that are valid, in order; add what is wrong with others to `problems`."""
    registry = sources.registry
    # The first value of every setting, because a file may lack keys that a sweep sets.
    first = [text for axis in settings for text in next(iter(axis.values.values()))]
    bases = {c: load_config(Path(c), first, sources) for c in request.configs}
    counts = Counter(base.name for base in bases.values())
    lengths = {axis.key: len(axis.values) for axis in settings}
    of_value = {
        (axis.key, value): texts for axis in settings for value, texts in axis.values.items()
    }
    of_value |= {(axis.key, SENDS_NOTHING): axis.once for axis in settings}
    once = [axis.key for axis in settings if axis.once]
    points = list(combinations([(axis.key, tuple(axis.values)) for axis in settings]))
    always = [f"storage.url={absolute_storage(request.storage)}"]
    if request.device is not None:
        always.append(f"device={request.device}")
    for source, base in bases.items():
        # Two configurations of one name are called by their paths.
        name = base.name if counts[base.name] == 1 else source
        methods, seeds = request.methods or (base.method.name,), request.seeds or (base.seed,)
        silent = [m for m in methods if m in registry.available() and registry.sends_nothing(m)]
        wanted = dict.fromkeys(
            (
                tuple((k, SENDS_NOTHING if k in once and m in silent else v) for k, v in point),
                m,
                seed,
            )
            for point, m, seed in itertools.product(points, methods, seeds)
        )
        for point, method, seed in wanted:
            axes = tuple((key, value) for key, value in point if lengths[key] > 1)
            where = describe(name, method, seed, axes)
            # The configuration's own method keeps its section: its paper's values.
            changes = [] if method == base.method.name else [f"method.name={method}"]
            changes += [f"seed={seed}", *(text for pair in point for text in of_value[pair])]
            changes += [*always, *own.get(method, ())]
            try:
                filled = _filled_in(source, changes, base, sources) if request.fills else []
                run, options, policy = _read(source, [*changes, *filled], sources)
                if policy is not None:
                    require_serving(run, policy)
                if run.method.name != method:
                    raise ConfigError(
                        f"a setting makes its method {run.method.name!r}; use --method"
                    )
            except ConfigError as error:
                keep(error, where, problems)
                continue
            yield Cell(
                config=name,
                method=method,
                title=_title(registry.info(method)),
                axes=axes,
                run=run,
                code=code_of(origins_of(run.model_dump(mode="json"), registry.plugins)),
                reading=registry.reading(method),
                filled=tuple(filled),
                options=asdict(options) | {"server_optimizer": run.method.server_optimizer},
            )


def _read(
    source: str, changes: Sequence[str], sources: Sources
) -> tuple[RunConfig, Any, PoolPolicy | None]:
    """Return a cell's configuration, its method's options, and how these will use a pool."""
    run = with_absolute_paths(load_config(Path(source), changes, sources))
    options = validate_options(sources.registry, run.method)
    policy = sources.registry.serving(run.method.name, options, run.task.clients)
    return run, options, None if run.pool.kind == "groups" else policy


def _filled_in(source: str, changes: Sequence[str], base: RunConfig, sources: Sources) -> list[str]:
    """Return what a study fills in for a cell's method, unless its changes set it.

    Options that the configuration `base` has otherwise than the preset of its own method hold for
    all methods; a number that the number of clients bounds is made valid; and entries of a pool
    stay for as many rounds as the method needs.
    """
    run, options, _ = _read(source, changes, sources)
    given = {text.partition("=")[0] for text in changes}
    known, wanted = asdict(options), dict[str, Any]()
    if run.method.name != base.method.name:
        preset = read_preset(base.method.name, sources)
        own = base.method.options.items()
        wanted = {key: v for key, v in own if key in known and v != preset.get(key)}
    for key, most in sources.registry.most(run.method.name, run.task.clients).items():
        value = wanted.get(key, known[key])
        if isinstance(value, int) and value > most > 0:
            wanted[key] = most
    filled = [
        f"method.{key}={json.dumps(value)}"
        for key, value in wanted.items()
        if value != known[key] and f"method.{key}" not in given
    ]
    run, _, policy = _read(source, [*changes, *filled], sources)
    needed = 0 if policy is None else generations_to_serve(run, policy)
    if run.pool.generations < needed < run.rounds and "pool.generations" not in given:
        filled.append(f"pool.generations={needed}")
    return filled


def _title(info: MethodInfo) -> str:
    """Return a method's name in its paper, which its title begins with, before a colon."""
    name, colon, _ = info.title.partition(":")
    return name if colon else info.name


def _own_settings(texts: Sequence[str], axes: Sequence[str]) -> dict[str, list[str]]:
    """Return the settings of single methods, by method."""
    found: dict[str, list[str]] = {}
    for text in texts:
        method, colon, setting = text.partition(":")
        key, equals, _ = setting.partition("=")
        if not (method and colon and key and equals):
            raise ConfigError(f"--for: {text!r} is not valid; it must be METHOD:KEY=VALUE")
        _require_no_option("--for", key)
        if any(_is_within(axis, key) or _is_within(key, axis) for axis in axes):
            # Its column would state a value that this method did not have.
            raise ConfigError(f"--for: {key!r} is an axis already; valid is one or the other")
        found.setdefault(method, []).append(setting)
    return found


def absolute_storage(url: str) -> str:
    """Return the URL with an absolute path, which holds in any working folder."""
    prefix, name = "sqlite:///", url.removeprefix("sqlite:///")
    return url if name in (url, "", ":memory:") else f"{prefix}{Path(name).absolute()}"


def _setting(text: str) -> Axis:
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set: {text!r} is not valid; it must be section.key=value")
    _require_no_option("--set", key)
    values = split_values(value)
    if len(values) == 1:
        return Axis(key, {value: (text,)})
    if not all(values):
        raise ConfigError(f"--set: {text!r} has an empty value; valid are values between commas")
    require_distinct(f"--set {key}", values)
    return Axis(key, {one: (f"{key}={one}",) for one in values})


def _require_no_option(option: str, key: str) -> None:
    if key == "name":
        raise ConfigError(f"{option}: 'name' is not set this way; valid is the configuration's own")
    for own, instead in OWN_OPTIONS.items():
        if _is_within(own, key):
            raise ConfigError(f"{option}: {key!r} is not set this way; use {instead}")


def _is_within(key: str, section: str) -> bool:
    """Return whether setting the section sets the key as well."""
    return key == section or key.startswith(f"{section}.")


def require_distinct(option: str, values: Sequence[object]) -> None:
    """Refuse a value that is given twice."""
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ConfigError(f"{option}: {twice[0]!r} is given twice; valid is once")


def combinations(axes: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Axes]:
    """Yield all points of these axes."""
    yield from itertools.product(*([(key, value) for value in values] for key, values in axes))
