"""Plug-ins: code from outside this repository, found by kind and name in three ways.

A plug-in is a module. Its kind says what it must have:

    method     `Config`, `build(config, task)`: see `methods.interface.registry`
    dataset    `INFOS`, `load(name, request)`: see `platform.data.catalogue`
    model      `SIZE`, `load() -> nn.Module`: see `methods.clip.own`
    mechanism  `MECHANISM`: see `platform.mechanisms.mechanism`
    transport  `listen`, `send`, `local_addresses`: see `platform.relay.transports`

It can come from

- an entry point of the group `sotto.KINDs`, such as `sotto.datasets`, in an installed package: the
  name is the plug-in's, the value a module;
- a file of a folder that the user names (`--plugins DIR`, else the environment's `SOTTO_PLUGINS`,
  which commands without this option and their child processes read too): `DIR/NAME.py` is a
  method, and `DIR/datasets/NAME.py`, `DIR/models/NAME.py` and so on are the other kinds. A file
  stands alone: it can import nothing else of the folder. Files whose names begin with `_` or
  `test_`, and `conftest.py`, are no plug-ins;
- an object of the program that calls this package, with the members of such a module.

A configuration cannot name code: a name is looked up in these lists, and only what is found there
is imported. A user who names a folder or installs a package runs its code with all rights of the
process. What a plug-in makes is protected, accounted and checked like what this repository makes.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from importlib.abc import SourceLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_loader
from inspect import getattr_static
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from methods.errors import BrokenPlugin

Kind = Literal["method", "dataset", "model", "mechanism", "transport"]


class Door(NamedTuple):
    """A kind of plug-in: the key by which a user names one, and what its module must have."""

    key: str
    members: tuple[str, ...]


DOORS: Final[Mapping[Kind, Door]] = {
    "method": Door("method.name", ("Config", "build")),
    "dataset": Door("task.dataset", ("INFOS", "load")),
    "model": Door("task.model.name", ("SIZE", "load")),
    "mechanism": Door("privacy.mechanism", ("MECHANISM",)),
    "transport": Door("--transport", ("listen", "send", "local_addresses")),
}
_OURS: Final = ("methods", "platform", "privacy", "sotto", "storage")
_ROOT: Final = Path(__file__).resolve().parents[2]
_LONGEST: Final = 240
"""An error message repeats at most this many characters of another."""
_NOT_ALONE: Final = {
    "random operation": "draws at random, as dropout does",
    ".item()": "reads a number out of a tensor, or branches on one",
    "inplace arithmetic": "writes into a tensor that outlives the batch, such as a buffer",
}
"""What code does that `torch.func.vmap` cannot run, by a part of torch's message."""


@dataclass(frozen=True)
class Origin:
    """The code of a plug-in, for a run's records.

    Attributes:
        kind: A file of a folder, a module of an installed package, or an object of the program.
        where: The folder, or the package with its version and the module, or the object's name.
        sha256: Digest of the file, or of what the object says of itself, in hexadecimal.
    """

    kind: Literal["folder", "package", "object"]
    where: str
    sha256: str


@dataclass(frozen=True)
class InstalledModule:
    """A module that an installed package offers.

    All sources have a name and a kind, say in words `where` the plug-in is, `load` its module, and
    know its `origin` and its `file`, if there is one.
    """

    name: str
    value: str
    package: str
    kind: Kind = "method"

    @property
    def where(self) -> str:
        """The package."""
        return f"an entry point of {self.package}"

    def load(self) -> ModuleType:
        """Import the module; `BrokenPlugin` if that fails."""
        try:
            return importlib.import_module(self.value)
        except (Exception, SystemExit) as error:
            raise _unimported(f"{self.value!r}, {self.where},", error) from error

    def origin(self) -> Origin:
        """Return package, version and module, and the digest of the module's file."""
        try:
            digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        except OSError as error:
            raise _unimported(f"{self.value!r}, {self.where},", error) from error
        return Origin("package", f"{self.package}, {self.value}", digest)

    @property
    def file(self) -> Path:
        """The module's file."""
        file = self.load().__file__
        if file is None:
            raise BrokenPlugin(
                f"{DOORS[self.kind].key}: {self.name!r} is {self.where} whose value "
                f"{self.value!r} is a folder; valid is a module"
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
    file: Path
    source: bytes = field(repr=False)
    kind: Kind = "method"

    @property
    def where(self) -> str:
        """The file."""
        return f"--plugins file {str(self.file)!r}"

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.source).hexdigest()

    def load(self) -> ModuleType:
        """Import the file under a name of its own, once for the same bytes, or `BrokenPlugin`."""
        # Dataclasses and type hints look their module up by name.
        name = f"sotto_{self.kind}_{self.name}_{self.digest}"
        if name in sys.modules:
            return sys.modules[name]
        loader = _KeptSource(self.file, self.source)
        spec = spec_from_loader(name, loader, origin=str(self.file))
        if spec is None:
            raise BrokenPlugin(f"--plugins: {str(self.file)!r} is no module; valid is Python code")
        module = sys.modules[name] = module_from_spec(spec)
        try:
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _unimported(self.where, error) from error
        return module

    def origin(self) -> Origin:
        """Return folder and digest."""
        return Origin("folder", str(self.file.parent.absolute()), self.digest)


@dataclass(frozen=True)
class InProgram:
    """A plug-in that the calling program made.

    Attributes:
        name: Its name in configurations.
        module: Has the members of a module of its kind.
        digest: SHA-256 of what tells it from others, in hexadecimal.
    """

    name: str
    module: Any = field(repr=False, compare=False)
    digest: str
    kind: Kind = "method"
    file: None = field(default=None, init=False)

    @property
    def where(self) -> str:
        """The program."""
        return "an object of this program"

    def load(self) -> ModuleType:
        """Return the object."""
        return cast("ModuleType", self.module)

    def origin(self) -> Origin:
        """Return name and digest."""
        return Origin("object", self.name, self.digest)


Outside = InstalledModule | FileInFolder | InProgram


@dataclass(frozen=True)
class Plugins:
    """The plug-ins of installed packages, of one folder and of the program, as first read.

    Attributes:
        folder: The folder that the user named; None for that of the environment.
        installed: Whether entry points of installed packages and the environment count.
        objects: Plug-ins of the calling program.
    """

    folder: Path | None = None
    installed: bool = True
    objects: tuple[InProgram, ...] = ()
    _found: dict[Kind, Mapping[str, Outside]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def of(self, kind: Kind) -> Mapping[str, Outside]:
        """Return all of one kind by name; none is imported, and two of one name are refused."""
        # Read once, so that the records of a file tell of the running code.
        if kind not in self._found:
            self._found[kind] = by_name(self._listed(kind))
        return self._found[kind]

    def load(self, kind: Kind, name: str) -> ModuleType:
        """Import a plug-in that `of` lists; `BrokenPlugin` without the members of its kind."""
        source = self.of(kind)[name]
        module = source.load()
        missing = [member for member in DOORS[kind].members if not hasattr(module, member)]
        if missing:
            raise BrokenPlugin(
                f"{DOORS[kind].key}: {name!r} is {source.where} and has no {missing[0]}; valid: a "
                f"{kind} has {' and '.join(DOORS[kind].members)}"
            )
        return module

    def origin(self, kind: Kind, name: str) -> Origin | None:
        """Return which code a plug-in is; None if `of` does not list the name."""
        source = self.of(kind).get(name)
        return None if source is None else source.origin()

    def _listed(self, kind: Kind) -> Iterator[Outside]:
        if self.installed:
            yield from installed_modules(kind)
        named = os.environ.get("SOTTO_PLUGINS") if self.installed else None
        folder = Path(named) if self.folder is None and named else self.folder
        if folder is not None:
            yield from files_in(folder, kind)
        yield from (one for one in self.objects if one.kind == kind)


Named = TypeVar("Named", bound=Any)


def by_name(sources: Iterator[Named]) -> Mapping[str, Named]:
    """Return sources by name, sorted; `BrokenPlugin` if two have one name."""
    found: dict[str, Named] = {}
    for source in sources:
        if source.name in found:
            raise BrokenPlugin(
                f"{DOORS[source.kind].key}: {source.name!r} is {found[source.name].where} and "
                f"{source.where}; valid is another name for the second"
            )
        found[source.name] = source
    return dict(sorted(found.items()))


def installed_modules(kind: Kind) -> Iterator[InstalledModule]:
    """Yield the plug-ins that installed packages have, without importing them."""
    for point in _entry_points(tuple(sys.path)):
        if point.group != f"sotto.{kind}s":
            continue
        package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        if point.attr or not point.module or not point.name.isidentifier():
            raise BrokenPlugin(
                f"entry point {point.group}: {point.name!r} = {point.value!r} of {package} is not "
                f"valid; it must be the name of a {kind} and the name of a module"
            )
        yield InstalledModule(point.name, point.module, package, kind)


@lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Kept by the path that Python finds packages on: reading all their files takes milliseconds.
    found = entry_points()
    return tuple(point for kind in DOORS for point in found.select(group=f"sotto.{kind}s"))


def folder_of(folder: Path, kind: Kind) -> Path:
    """Return where a folder of plug-ins has those of a kind."""
    return folder if kind == "method" else folder / f"{kind}s"


def files_in(folder: Path, kind: Kind) -> Iterator[FileInFolder]:
    """Yield a folder's plug-ins; `BrokenPlugin` if it has none of any kind, or an unfit file."""
    if not folder.is_dir():
        raise BrokenPlugin(f"--plugins: {str(folder)!r} is no folder; valid: a folder of plug-ins")
    found = {
        each: [
            path
            for path in sorted(folder_of(folder, each).glob("*.py"))
            if not path.stem.startswith(("_", "test_")) and path.stem != "conftest"
        ]
        for each in DOORS
    }
    if not any(found.values()):
        others = ", ".join(f"{each}s/NAME.py" for each in DOORS if each != "method")
        raise BrokenPlugin(
            f"--plugins: {str(folder)!r} holds no plug-in; valid: methods NAME.py, {others}"
        )
    for path in found[kind]:
        if not path.stem.isidentifier():
            raise BrokenPlugin(
                f"--plugins: {path.name!r} is no name of a {kind}; valid: letters, digits and _"
            )
        try:
            yield FileInFolder(path.stem, path, path.read_bytes(), kind)
        except OSError as error:
            raise _unimported(f"--plugins file {str(path)!r}", error) from error


def _unimported(what: str, error: BaseException) -> BrokenPlugin:
    return BrokenPlugin(f"{what} cannot be imported: {_shown(error)}")


def _shown(error: BaseException) -> str:
    reason = " ".join(str(error).split()) or "no reason given"
    shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
    return f"{type(error).__name__}: {shown}"


@contextmanager
def calling(source: Outside, function: str) -> Iterator[None]:
    """Turn an error in a plug-in's function into one sentence; our own errors pass."""
    try:
        yield
    except Exception as error:
        if any(kind.__module__.partition(".")[0] in _OURS for kind in type(error).__mro__):
            raise
        raise BrokenPlugin(
            f"{DOORS[source.kind].key}: {source.name!r} is {source.where}, and its {function} "
            f"{_failing(source, error)}"
        ) from error


def _failing(source: Outside, error: Exception) -> str:
    """Return what failed, and where to look: the innermost line of the plug-in, else no library."""
    frames = list(traceback.walk_tb(error.__traceback__))
    library = (sysconfig.get_paths()["stdlib"], *map(str, (_ROOT / name for name in _OURS)))
    remedy = f"a library raised it after the {source.kind}'s own lines, so correct what it names"
    for frame, line in reversed(frames):
        path = frame.f_code.co_filename
        is_other = "-packages" in path or path.startswith((*library, "<frozen"))
        if path == str(source.file) or (source.file is None and not is_other):
            remedy = f"correct {frame.f_code.co_name}, line {line} of {Path(path).name}"
            break
    if not any(frame.f_code.co_filename.endswith("vmap.py") for frame, _ in frames):
        return f"raised {_shown(error)}; {remedy}"
    reasons = [reason for part, reason in _NOT_ALONE.items() if part in str(error)]
    if not reasons:
        return f"raised {_shown(error)}; {remedy}, which runs on one image at a time"
    selves = [type(frame.f_locals.get("self")) for frame, _ in frames]
    layers = [kind.__name__ for kind in selves if hasattr(kind, "named_modules")]
    return (
        f"gives no gradient of each image alone, which privacy.per_sample_clipping_norm bounds: "
        f"{layers[-1] if layers else 'it'} {reasons[0]}; {remedy}, or take a mechanism that clips "
        "uploads alone, such as upload_noise"
    )


class Guarded:
    """An object of a plug-in whose functions raise `BrokenPlugin` instead of their own errors."""

    def __init__(self, inner: object, source: Outside) -> None:
        self._inner, self._source = inner, source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if getattr_static(self._inner, name, None) is None and not hasattr(self._inner, name):
            # So that `hasattr` answers as for the object itself.
            raise AttributeError(name)
        with calling(self._source, name):
            found = getattr(self._inner, name)
        return guarded_function(found, self._source, name) if callable(found) else found


Function = TypeVar("Function", bound=Callable[..., Any])


def guarded_function(function: Function, source: Outside, name: str) -> Function:
    """Return a function of a plug-in that raises `BrokenPlugin` instead of its own errors."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with calling(source, name):
            return function(*args, **options)

    return cast("Function", called)
