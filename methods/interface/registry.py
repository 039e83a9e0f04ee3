"""Which methods there are: the file name is the registration.

Every module of the package without a leading underscore is a method. It offers a frozen dataclass
`Config` and a function `build(config, task) -> Method`; nothing else has to be edited to add one.
Only names found by listing the package are ever imported, so a configuration cannot name code.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from methods.errors import UnknownMethod
from methods.interface.method import Method, Task


@dataclass(frozen=True)
class MethodInfo:
    """What can be said of a method without building it."""

    name: str
    title: str
    source: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Registry:
    """The methods of one package.

    Attributes:
        package: Import name of the package whose modules are methods.
    """

    package: str = "methods"

    def available(self) -> tuple[str, ...]:
        """Return names of all methods, sorted."""
        path = importlib.import_module(self.package).__path__
        names = (info.name for info in pkgutil.iter_modules(path) if not info.ispkg)
        return tuple(sorted(name for name in names if not name.startswith("_")))

    def config_type(self, name: str) -> type[Any]:
        """Return the frozen dataclass of the method's options.

        Raises:
            UnknownMethod: If no module of the package has this name.
        """
        return cast("type[Any]", self._module(name).Config)

    def build(self, name: str, config: object, task: Task) -> Method:
        """Build a method from its validated options.

        Raises:
            UnknownMethod: If no module of the package has this name.
        """
        return cast("Method", self._module(name).build(config, task))

    def info(self, name: str) -> MethodInfo:
        """Return title, source and options, from the module's docstring and `Config`.

        Raises:
            UnknownMethod: If no module of the package has this name.
        """
        module = self._module(name)
        title, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        options = {f.name: f"{f.type}" for f in dataclasses.fields(module.Config)}
        return MethodInfo(name, title, rest.partition("\n\n")[0].replace("\n", " "), options)

    def _module(self, name: str) -> ModuleType:
        valid = self.available()
        if name not in valid:
            raise UnknownMethod(f"method.name: {name!r} is unknown; valid: {', '.join(valid)}")
        return importlib.import_module(f"{self.package}.{name}")
