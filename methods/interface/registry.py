"""The registry of methods: a file's name is its registration.

A module that is a method has a frozen dataclass `Config` and a function
`build(config, task) -> Method`. The first paragraph of its docstring is the method's title, the
second names the paper. It may have `VARIANTS`, a tuple of options to change in the preset so that
something else is sent, kept or admitted; the contract suite tries each. Nothing else needs an edit.
A method is a module of `methods/` without a leading underscore, whose preset is in
`configs/methods/`, or a plug-in (`methods.plugins`), whose preset is the YAML file of the
same name beside it; an object of the program has its defaults in `Config`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from methods.errors import BrokenPlugin, MethodError, UnknownMethod, unknown
from methods.interface.method import Method, PoolPolicy, Task, UpToClients, marks_of
from methods.plugins import Kind, Origin, Outside, Plugins, by_name


@dataclass(frozen=True)
class OwnModule:
    """A module of the package whose modules are methods."""

    name: str
    package: str
    kind: Kind = "method"

    @property
    def where(self) -> str:
        """The package."""
        return f"a module of {self.package}"

    def load(self) -> ModuleType:
        """Import the module. An error in it is a mistake of ours, so it is raised as it is."""
        return importlib.import_module(f"{self.package}.{self.name}")


MethodSource = OwnModule | Outside

MEMBERS: Final = tuple(name for name in vars(Method) if not name.startswith("_"))
"""What every built method must have."""


@dataclass(frozen=True)
class MethodInfo:
    """What the registry can say of a method without building it."""

    name: str
    title: str
    source: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Registry:
    """The methods of this package, and those among the plug-ins.

    A member that takes a name raises `UnknownMethod` where no method has that name, and
    `BrokenPlugin` where its module cannot be used.

    Attributes:
        package: Import name of the package whose modules are methods.
        plugins: All plug-ins.
    """

    package: str = "methods"
    plugins: Plugins = field(default_factory=Plugins)

    def available(self) -> tuple[str, ...]:
        """Return names of all methods, sorted; `BrokenPlugin` if two have one name."""
        return tuple(self._sources)

    def config_type(self, name: str) -> type[Any]:
        """Return the frozen dataclass of the method's options."""
        return cast("type[Any]", self._module(name).Config)

    def build(self, name: str, config: object, task: Task) -> Method:
        """Build a method from its validated options; the method may refuse these or the task.

        `UnknownMethod` says that there is no such name, `BrokenPlugin` that its module cannot be
        used.
        """
        method = self._module(name).build(config, task)
        source = self._source(name)
        missing = [member for member in MEMBERS if not hasattr(method, member)]
        # The types hold what this package builds to the protocol.
        if missing and not isinstance(source, OwnModule):
            raise BrokenPlugin(
                f"method.name: {name!r} is {source.where} and builds something without "
                f"{', '.join(missing)}; valid is a methods.Method"
            )
        for key, most in self.most(name, task.population).items():
            if (value := getattr(config, key)) is not None and value > most:
                raise MethodError(
                    f"method.{key}: {value} is not valid; valid: 1 to {most} with "
                    f"task.clients = {task.population}"
                )
        return cast("Method", method)

    def info(self, name: str) -> MethodInfo:
        """Return title, source and options, from the module's docstring and `Config`."""
        module = self._module(name)
        title, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        options = {f.name: f"{f.type}" for f in dataclasses.fields(module.Config)}
        return MethodInfo(name, title, rest.partition("\n\n")[0].replace("\n", " "), options)

    def variants(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return changes to a preset so that something else is sent, kept or admitted."""
        return tuple(getattr(self._module(name), "VARIANTS", ()))

    def serving(self, name: str, config: object, clients: int) -> PoolPolicy | None:
        """Return how a method will use a pool; None without a pool, or where it does not say.

        A module says so as `serving(config, clients)`, whose policy names no tensors of an entry.
        `clients` is the number of clients in the federation.
        """
        say = getattr(self._module(name), "serving", None)
        return None if say is None else cast("PoolPolicy", say(config, clients))

    def most(self, name: str, clients: int) -> dict[str, int]:
        """Return the largest valid value of each option that the number of clients bounds."""
        marks = marks_of(self.config_type(name))
        return {key: clients - mark.others for key, mark in marks if isinstance(mark, UpToClients)}

    def sends_nothing(self, name: str) -> bool:
        """Return whether clients upload nothing, whatever the options (`SENDS_NOTHING`)."""
        return bool(getattr(self._module(name), "SENDS_NOTHING", False))

    def reading(self, name: str) -> str | None:
        """Return what the paper leaves open and the numbers depend on (`READING`), or None."""
        reading = getattr(self._module(name), "READING", None)
        if reading is not None and not isinstance(reading, str):
            raise BrokenPlugin(
                f"method.name: {name!r} is {self._source(name).where} and has a READING of type "
                f"{type(reading).__name__}; valid: text, or no READING"
            )
        return reading

    def origin(self, name: str) -> Origin | None:
        """Return which code a method from outside is; None for a method of this package."""
        source = self._source(name)
        return None if isinstance(source, OwnModule) else source.origin()

    def preset(self, name: str) -> Path | None:
        """Return where the preset of a method from outside would be; None for any other name."""
        file = getattr(self._sources.get(name), "file", None)
        return None if file is None else Path(file).with_suffix(".yaml")

    def outside(self, name: str) -> Outside | None:
        """Return the plug-in that a method is; None for a method of this package."""
        return self.plugins.of("method").get(name)

    @cached_property
    def _sources(self) -> Mapping[str, MethodSource]:
        return by_name(self._listed())

    def _listed(self) -> Iterator[MethodSource]:
        path = importlib.import_module(self.package).__path__
        for info in pkgutil.iter_modules(path):
            if not info.ispkg and not info.name.startswith("_"):
                yield OwnModule(info.name, self.package)
        yield from self.plugins.of("method").values()

    def _source(self, name: str) -> MethodSource:
        valid = self.available()
        if name not in valid:
            raise UnknownMethod(unknown("method.name", name, valid))
        return self._sources[name]

    def _module(self, name: str) -> ModuleType:
        source = self._source(name)
        module = source.load()
        config, builder = getattr(module, "Config", None), getattr(module, "build", None)
        parameters = getattr(config, "__dataclass_params__", None)
        if not isinstance(config, type) or not getattr(parameters, "frozen", False):
            raise BrokenPlugin(
                f"method.name: {name!r} is {source.where} and has no frozen dataclass Config; "
                "valid: a frozen dataclass of all its options"
            )
        if not callable(builder):
            raise BrokenPlugin(
                f"method.name: {name!r} is {source.where} and has no function build; "
                "valid: build(config, task)"
            )
        return module


BUILT_IN_METHODS: Final = Registry(plugins=Plugins(installed=False))
"""The methods of this package alone, without installed ones and folders."""


def options_of(name: str, options: object) -> Any:
    """Return the `Config` of a method of this package: as given, or from options by name."""
    return (
        BUILT_IN_METHODS.config_type(name)(**options) if isinstance(options, Mapping) else options
    )
