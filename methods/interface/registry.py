"""The registry of methods: a file's name is its registration.

A module that is a method has a frozen dataclass `Config` and a function
`build(config, task) -> Method`. The first paragraph of its docstring is the method's title, the
second names the paper. It may have `VARIANTS`, a tuple of options to change in the preset so that
something else is sent, kept or admitted; the contract suite tries each. Nothing else needs an edit.
A method can come from

- a module of `methods/` without a leading underscore; its preset is in `configs/methods/`;
- an entry point of the group `sotto.methods` in an installed package: the name is the method's,
  the value a module. Its preset is the YAML file beside that module, of the same name;
- an object of the program that calls this package, which has `Config` and `build` as a module has;
- a file `NAME.py` in a folder that the user names on the command line (`--methods DIR`), with
  `NAME.yaml` beside it. It stands alone: it can import nothing else of the folder. Files whose
  names begin with `_` or `test_`, and `conftest.py`, are not methods.

A configuration cannot name code: the registry looks a name up in these lists and imports only what
it finds there. A user who names a folder or installs a package runs its code with all rights of the
process. What such a method trains and sends is protected like any other method's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.abc import SourceLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, cast

from methods.errors import BrokenMethod, MethodError, UnknownMethod
from methods.interface.method import Method, PoolPolicy, Task

GROUP = "sotto.methods"


@dataclass(frozen=True)
class Origin:
    """The code of a method from outside, for a run's records.

    Attributes:
        kind: A file of a folder, a module of an installed package, or an object of the program.
        where: The folder, or the package with its version and the module, or the object's name.
        sha256: Digest of the method's file, or of what the object says of itself, in hexadecimal.
    """

    kind: Literal["folder", "package", "object"]
    where: str
    sha256: str


@dataclass(frozen=True)
class OwnModule:
    """A module of the package whose modules are methods.

    All three kinds of sources have a name, say in words `where` the method is, and `load` its
    module. Sources outside this package know its `origin` and where its `preset` would be.
    """

    name: str
    package: str

    @property
    def where(self) -> str:
        """The package."""
        return f"a module of {self.package}"

    def load(self) -> ModuleType:
        """Import the module. An error in it is a mistake of ours, so it is raised as it is."""
        return importlib.import_module(f"{self.package}.{self.name}")


@dataclass(frozen=True)
class InstalledModule:
    """A module that an installed package offers as a method."""

    name: str
    value: str
    package: str

    @property
    def where(self) -> str:
        """The package."""
        return f"an entry point of {self.package}"

    def load(self) -> ModuleType:
        """Import the module; `BrokenMethod` if that fails."""
        try:
            return importlib.import_module(self.value)
        except (Exception, SystemExit) as error:
            raise _broken(f"{self.value!r}, {self.where},", error) from error

    def origin(self) -> Origin:
        """Return package, version and module, and the digest of the module's file."""
        try:
            digest = hashlib.sha256(self._file().read_bytes()).hexdigest()
        except OSError as error:
            raise _broken(f"{self.value!r}, {self.where},", error) from error
        return Origin("package", f"{self.package}, {self.value}", digest)

    def preset(self) -> Path:
        """Return the YAML file beside the module."""
        return self._file().with_suffix(".yaml")

    def _file(self) -> Path:
        file = self.load().__file__
        if file is None:
            raise BrokenMethod(
                f"method.name: {self.name!r} is {self.where} whose value {self.value!r} is a "
                "folder; valid is a module"
            )
        return Path(file)


class _KeptSource(SourceLoader):
    """Loads bytes that were read before, so that the digest belongs to the running code."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, fullname: str) -> str:
        """Return the file, for traces."""
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        """Return the file's bytes as they were read."""
        return self._source


@dataclass(frozen=True)
class FileInFolder:
    """A file of a folder that the user named; `source` holds its bytes, read once."""

    name: str
    path: Path
    source: bytes = field(repr=False)

    @property
    def where(self) -> str:
        """The file."""
        return f"--methods file {str(self.path)!r}"

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.source).hexdigest()

    def load(self) -> ModuleType:
        """Import the file under a name of its own, once for the same bytes, or `BrokenMethod`."""
        # Dataclasses and type hints look their module up by name.
        name = f"sotto_method_{self.name}_{self.digest}"
        if name in sys.modules:
            return sys.modules[name]
        loader = _KeptSource(self.path, self.source)
        spec = spec_from_loader(name, loader, origin=str(self.path))
        if spec is None:
            raise BrokenMethod(f"--methods: {str(self.path)!r} is no module; valid is Python code")
        module = sys.modules[name] = module_from_spec(spec)
        try:
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _broken(self.where, error) from error
        return module

    def origin(self) -> Origin:
        """Return folder and digest."""
        return Origin("folder", str(self.path.parent.absolute()), self.digest)

    def preset(self) -> Path:
        """Return the YAML file beside it."""
        return self.path.with_suffix(".yaml")


@dataclass(frozen=True)
class InProgram:
    """A method that the calling program made.

    Attributes:
        name: Its name in configurations.
        module: Has `Config`, `build` and a docstring, as a module has that is a method.
        digest: SHA-256 of what tells it from others, in hexadecimal.
    """

    name: str
    module: Any = field(repr=False, compare=False)
    digest: str

    @property
    def where(self) -> str:
        """The program."""
        return "an object of this program"

    def load(self) -> ModuleType:
        """Return what has `Config` and `build`."""
        return cast("ModuleType", self.module)

    def origin(self) -> Origin:
        """Return name and digest."""
        return Origin("object", self.name, self.digest)


MethodSource = OwnModule | InstalledModule | FileInFolder | InProgram


def installed_modules() -> Iterator[InstalledModule]:
    """Yield the methods that installed packages have, without importing them."""
    for point in _entry_points(tuple(sys.path)):
        package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        if point.attr or not point.module or not point.name.isidentifier():
            raise BrokenMethod(
                f"entry point {GROUP}: {point.name!r} = {point.value!r} of {package} is not valid; "
                "it must be the name of a method and the name of a module"
            )
        yield InstalledModule(point.name, point.module, package)


@lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Kept by the path that Python finds packages on: reading all their files takes milliseconds.
    return tuple(entry_points(group=GROUP))


def files_in(folder: Path) -> Iterator[FileInFolder]:
    """Yield the methods of a folder; `BrokenMethod` if it has none, or an unfit file."""
    if not folder.is_dir():
        raise BrokenMethod(f"--methods: {str(folder)!r} is no folder; valid: a folder of methods")
    found = [
        path
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith(("_", "test_")) and path.stem != "conftest"
    ]
    if not found:
        raise BrokenMethod(f"--methods: {str(folder)!r} holds no method; valid: files NAME.py")
    for path in found:
        if not path.stem.isidentifier():
            raise BrokenMethod(
                f"--methods: {path.name!r} is no name of a method; valid: letters, digits and _"
            )
        try:
            yield FileInFolder(path.stem, path, path.read_bytes())
        except OSError as error:
            raise _broken(f"--methods file {str(path)!r}", error) from error


def _broken(what: str, error: BaseException) -> MethodError:
    reason = " ".join(str(error).split()) or "no reason given"
    return BrokenMethod(f"{what} cannot be imported: {type(error).__name__}: {reason}")


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
    """The methods of this package, of installed packages and of one folder, as first read.

    A member that takes a name raises `UnknownMethod` where no method has that name, and
    `BrokenMethod` where its module cannot be used.

    Attributes:
        package: Import name of the package whose modules are methods.
        folder: Folder with the user's own methods; None for none.
        installed: Whether entry points of installed packages count.
        objects: Methods of the calling program.
    """

    package: str = "methods"
    folder: Path | None = None
    installed: bool = True
    objects: tuple[InProgram, ...] = ()

    def available(self) -> tuple[str, ...]:
        """Return names of all methods, sorted; `BrokenMethod` if two have one name."""
        return tuple(self._sources)

    def config_type(self, name: str) -> type[Any]:
        """Return the frozen dataclass of the method's options."""
        return cast("type[Any]", self._module(name).Config)

    def build(self, name: str, config: object, task: Task) -> Method:
        """Build a method from its validated options; the method may refuse these or the task.

        `UnknownMethod` says that there is no such name, `BrokenMethod` that its module cannot be
        used.
        """
        method = self._module(name).build(config, task)
        source = self._source(name)
        missing = [member for member in MEMBERS if not hasattr(method, member)]
        # The types hold what this package builds to the protocol.
        if missing and not isinstance(source, OwnModule):
            raise BrokenMethod(
                f"method.name: {name!r} is {source.where} and builds something without "
                f"{', '.join(missing)}; valid is a methods.Method"
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

    def reading(self, name: str) -> str | None:
        """Return what the paper leaves open and the numbers depend on (`READING`), or None."""
        reading = getattr(self._module(name), "READING", None)
        if reading is not None and not isinstance(reading, str):
            raise BrokenMethod(
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
        source = self._sources.get(name)
        return source.preset() if isinstance(source, InstalledModule | FileInFolder) else None

    # Read once, so that the records of a file tell of the running code.
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
        yield from self.objects

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
                "valid: a frozen dataclass of all its options"
            )
        if not callable(builder):
            raise BrokenMethod(
                f"method.name: {name!r} is {source.where} and has no function build; "
                "valid: build(config, task)"
            )
        return module


BUILT_IN_METHODS: Final = Registry(installed=False)
"""The methods of this package alone, without installed ones and folders."""


def options_of(name: str, options: object) -> Any:
    """Return the `Config` of a method of this package: as given, or from options by name."""
    return (
        BUILT_IN_METHODS.config_type(name)(**options) if isinstance(options, Mapping) else options
    )
