"""Which methods there are: the file name is the registration.

A module that is a method offers a frozen dataclass `Config` and a function
`build(config, task) -> Method`. Its docstring's first paragraph is the method's title, the second
names the paper. It may offer `VARIANTS`, a tuple of options: what to change of the preset so that
something else is sent, kept or admitted; the contract suite tries each. Nothing else has to be
edited to add a method. Where it can lie: `methods.interface.sources`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from methods.errors import BrokenMethod, UnknownMethod
from methods.interface.method import Method, PoolPolicy, Task
from methods.interface.sources import (
    MethodSource,
    Origin,
    OwnModule,
    files_in,
    installed_modules,
)

MEMBERS: Final = tuple(name for name in vars(Method) if not name.startswith("_"))
"""What everything that is built must have."""


@dataclass(frozen=True)
class MethodInfo:
    """What can be said of a method without building it."""

    name: str
    title: str
    source: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Registry:
    """The methods of this package, of installed packages and of one folder, as first read.

    Attributes:
        package: Import name of the package whose modules are methods.
        folder: Where the user has methods of their own, None for nowhere.
        installed: Whether entry points of installed packages count.
    """

    package: str = "methods"
    folder: Path | None = None
    installed: bool = True

    def available(self) -> tuple[str, ...]:
        """Return names of all methods, sorted.

        Raises:
            BrokenMethod: If two have one name, or what was named holds no method.
        """
        return tuple(self._sources)

    def config_type(self, name: str) -> type[Any]:
        """Return the frozen dataclass of the method's options.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used.
        """
        return cast("type[Any]", self._module(name).Config)

    def build(self, name: str, config: object, task: Task) -> Method:
        """Build a method from its validated options.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used, or what it builds is no method.
            MethodError: If the method refuses the options or the task.
        """
        method = self._module(name).build(config, task)
        source = self._source(name)
        missing = [member for member in MEMBERS if not hasattr(method, member)]
        # What this package builds is held to the protocol by its types.
        if missing and not isinstance(source, OwnModule):
            raise BrokenMethod(
                f"method.name: {name!r} is {source.where} and builds something without "
                f"{', '.join(missing)}; valid is a methods.Method"
            )
        return cast("Method", method)

    def info(self, name: str) -> MethodInfo:
        """Return title, source and options, from the module's docstring and `Config`.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used.
        """
        module = self._module(name)
        title, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        options = {f.name: f"{f.type}" for f in dataclasses.fields(module.Config)}
        return MethodInfo(name, title, rest.partition("\n\n")[0].replace("\n", " "), options)

    def variants(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return what to change of a preset so that something else is sent, kept or admitted.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used.
        """
        return tuple(getattr(self._module(name), "VARIANTS", ()))

    def serving(self, name: str, config: object, clients: int) -> PoolPolicy | None:
        """Return how a method's pool will be used, as far as it says so before it is built.

        A module says so as `serving(config, clients)`, whose policy names no tensors of an entry.

        Args:
            name: Of the method.
            config: Its options.
            clients: Of the federation.

        Returns:
            None where there is no pool, or nothing is said of it.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used.
        """
        say = getattr(self._module(name), "serving", None)
        return None if say is None else cast("PoolPolicy", say(config, clients))

    def reading(self, name: str) -> str | None:
        """Return why a method is a reading of its paper by its implementer, None if it is not.

        A module says so as `READING`: what the paper leaves open that the method's numbers hang on.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its module cannot be used, or says so other than in words.
        """
        reading = getattr(self._module(name), "READING", None)
        if reading is not None and not isinstance(reading, str):
            raise BrokenMethod(
                f"method.name: {name!r} is {self._source(name).where} and has a READING of type "
                f"{type(reading).__name__}; valid: words, or none"
            )
        return reading

    def origin(self, name: str) -> Origin | None:
        """Return which code a method from outside is, None for one of this package.

        Raises:
            UnknownMethod: If there is none of this name.
            BrokenMethod: If its file cannot be read.
        """
        return self._source(name).origin()

    def preset(self, name: str) -> Path | None:
        """Return where the preset of a method from outside would be, None for any other name.

        Raises:
            BrokenMethod: If its module cannot be used.
        """
        return self._sources[name].preset() if name in self._sources else None

    # Read once, so that what is recorded of a file is told of the code which runs.
    @cached_property
    def _sources(self) -> Mapping[str, MethodSource]:
        found: dict[str, MethodSource] = {}
        for source in self._listed():
            if source.name in found:
                raise BrokenMethod(
                    f"method.name: {source.name!r} is {found[source.name].where} and "
                    f"{source.where}; valid is another name for the second"
                )
            found[source.name] = source
        return dict(sorted(found.items()))

    def _listed(self) -> Iterator[MethodSource]:
        path = importlib.import_module(self.package).__path__
        for info in pkgutil.iter_modules(path):
            if not info.ispkg and not info.name.startswith("_"):
                yield OwnModule(info.name, self.package)
        if self.installed:
            yield from installed_modules()
        if self.folder is not None:
            yield from files_in(self.folder)

    def _source(self, name: str) -> MethodSource:
        valid = self.available()
        if name not in valid:
            raise UnknownMethod(f"method.name: {name!r} is unknown; valid: {', '.join(valid)}")
        return self._sources[name]

    def _module(self, name: str) -> ModuleType:
        source = self._source(name)
        module = source.load()
        config, builder = getattr(module, "Config", None), getattr(module, "build", None)
        parameters = getattr(config, "__dataclass_params__", None)
        if not isinstance(config, type) or not getattr(parameters, "frozen", False):
            raise BrokenMethod(
                f"method.name: {name!r} is {source.where} and has no frozen dataclass Config; "
                "valid: one, of all its options"
            )
        if not callable(builder):
            raise BrokenMethod(
                f"method.name: {name!r} is {source.where} and has no function build; "
                "valid: build(config, task)"
            )
        return module
