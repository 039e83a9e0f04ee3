"""The data sets by name: the facts known without files, and the module that reads each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from methods import BrokenPlugin, MethodError
from methods.errors import unknown
from methods.plugins import Plugins, calling
from platform.config.sections import Layout
from platform.data.dataset import Dataset, Indices, Modality
from platform.data.shapes import Stream
from platform.errors import ConfigError, DataError

FAMILIES: Final = (
    "embedded",
    "coop_splits",
    "domain_folders",
    "handwriting",
    "own_images",
    "published",
)
"""Modules of `platform.data.loaders`."""
_NEEDS: Final[Mapping[Modality, frozenset[str]]] = {
    "images": frozenset({"features", "tokens", "pixels"}),
    "texts": frozenset({"text"}),
}
"""The needs of a method that examples of each kind can meet."""
BY_CLIENT: Final = "clients"
"""The value of `task.senses` that gives clients the senses of a data set in turn."""
DOMAIN: Final = "own"
"""The one domain of a client's own images: a method does not learn whose images these are."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The facts about a data set that are known without its files.

    Attributes:
        name: Name as in `task.dataset`.
        title: A description in one line.
        classes: Class names in label order; empty where only the files tell.
        domains: Domain names in index order; empty where only the files tell.
        source: Where its files come from, in words.
        layout: The files below `task.root` that are read, one line each; empty without files.
        modality: The kind of its examples.
        senses: Ways to draw its images, of which each holder may have one.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    source: str
    layout: tuple[str, ...] = ()
    modality: Modality = "images"
    senses: tuple[str, ...] = ()

    def missing(self, path: Path, root: Path) -> str:
        """Return the sentence for a missing file or folder; `root` is the value of `task.root`."""
        return (
            f"task.root: {self.name} needs {str(path)!r}, which is not there; expected below "
            f"{str(root)!r}: {'; '.join(self.layout)}; {self.source}"
        )


@dataclass(frozen=True)
class Draws:
    """Seed, stream (the purpose of the images) and number of rendered images of each class."""

    seed: int = 0
    stream: Stream = Stream.FEDERATION
    train_per_class: int = 0
    test_per_class: int = 0


@dataclass(frozen=True)
class Hints:
    """A user's statements about a folder of own images.

    Attributes:
        layout: The layout; None to recognise it.
        class_names: File of words for the classes; None for one beside the images, if any.
        partition: The kind of partition that deals the images out; None without a partition.
    """

    layout: Layout | None = None
    class_names: Path | None = None
    partition: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A run's request for a data set.

    Attributes:
        root: Folder that holds the data sets' own folders.
        draws: Seed and number of rendered images.
        split_seed: Seed of the split into training and test images where no file tells it.
        domains: The domains that are used, None for all.
        held_out_domain: The domain whose images are all test images where no file tells, if any.
        senses: `task.senses`, or the senses of all training and of all test rows, as indices.
        hints: Statements about a folder of the user's own images.
        plugins: Where data sets from outside are found.
    """

    root: Path
    draws: Draws = Draws()
    split_seed: int = 0
    domains: tuple[str, ...] | None = None
    held_out_domain: str | None = None
    senses: str | tuple[Indices, Indices] | None = None
    hints: Hints = Hints()
    plugins: Plugins = field(default_factory=Plugins, repr=False)

    def chosen_domains(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """Return the used domains in the order asked for; `ConfigError` if one is unknown."""
        for domain in self.domains or ():
            if domain not in known:
                raise ConfigError(
                    f"task.domains: {domain!r} is unknown in {name}; valid: {', '.join(known)}"
                )
        return self.domains or tuple(known)


class Loader(Protocol):
    """A module of `platform.data.loaders`, or a plug-in, whose one data set has the file's name."""

    INFOS: tuple[DatasetInfo, ...]

    def load(self, name: str, request: DataRequest) -> Dataset:
        """Read a data set of the family.

        Raises:
            ConfigError: If the layout is not met or a domain is unknown.
        """
        ...


def user_path(text: str, field: str = "task.root") -> Path:
    """Return a path as its user means it, "~" being the home folder.

    `ConfigError`, with the key `field`, if it cannot be a path, or there is no such home folder.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{field}: {text!r} is in no known home folder; valid is a folder's path"
        ) from error
    if "\0" in text:
        raise ConfigError(f"{field}: {text!r} has a zero byte; valid is a folder's path")
    return path


def dataset_infos(plugins: Plugins | None = None) -> tuple[DatasetInfo, ...]:
    """Return all data sets, by name; only given plug-ins are imported."""
    infos = [info for family in FAMILIES for info in _module(family).INFOS]
    if plugins is not None:
        infos += [_outside(name, plugins)[0] for name in plugins.of("dataset")]
    return tuple(sorted(infos, key=lambda info: info.name))


def dataset_info(name: str, plugins: Plugins | None = None) -> DatasetInfo:
    """Return the facts about a data set, of a plug-in too; `ConfigError` if it is unknown."""
    return _find(name, plugins or Plugins())[0]


def load_dataset(name: str, request: DataRequest, *, with_faults: bool = False) -> Dataset:
    """Read a data set; images stay in their files. Faults are refused, or returned `with_faults`.

    `ConfigError` if the name is unknown, or its files are not as its layout says.
    """
    plugins = request.plugins
    loader = _find(name, plugins)[1]
    source = plugins.of("dataset").get(name)
    if source is None:
        dataset = loader.load(name, request)
        if dataset.faults and not with_faults:
            raise DataError(*dataset.faults)
        return dataset
    try:
        with calling(source, "load"):
            found: object = loader.load(name, request)
    except MethodError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(found, Dataset) or found.name != name:
        raise ConfigError(
            f"task.dataset: {name!r} is {source.where}, and its load returns no "
            f"platform.data.dataset.Dataset of this name; valid: Dataset(name={name!r}, ...)"
        )
    return found


def require_modality(
    dataset: Dataset, method: str, needs: Collection[str], options: Collection[str] = ()
) -> None:
    """Refuse texts where a method looks at images, and images where it reads texts.

    `needs` are the kinds of arrays that the method takes, and `options` the names of its options.
    """
    for wanted, of_it in _NEEDS.items():
        if wanted == dataset.modality or of_it.isdisjoint(needs):
            continue
        valid = ", ".join(info.name for info in dataset_infos() if info.modality == wanted)
        network = "fasttext" if wanted == "images" else "cnn"
        hint = f", or method.network: {network}" if "network" in options else ""
        raise ConfigError(
            f"task.dataset: {dataset.name} holds {dataset.modality} and {method} needs {wanted}; "
            f"valid: {valid}{hint}"
        )


def _find(name: str, plugins: Plugins) -> tuple[DatasetInfo, Loader]:
    for family in FAMILIES:
        loader = _module(family)
        for info in loader.INFOS:
            if info.name == name:
                return info, loader
    if name in plugins.of("dataset"):
        return _outside(name, plugins)
    valid = (*(info.name for info in dataset_infos()), *plugins.of("dataset"))
    raise ConfigError(unknown("task.dataset", name, valid))


def _outside(name: str, plugins: Plugins) -> tuple[DatasetInfo, Loader]:
    source = plugins.of("dataset")[name]
    try:
        loader = cast("Loader", plugins.load("dataset", name))
        if any(info.name == name for family in FAMILIES for info in _module(family).INFOS):
            raise BrokenPlugin(
                f"task.dataset: {name!r} is a data set of Sotto and {source.where}; valid is "
                "another name for the second"
            )
        infos = loader.INFOS
        if not isinstance(infos, tuple) or [getattr(one, "name", None) for one in infos] != [name]:
            raise BrokenPlugin(
                f"task.dataset: {name!r} is {source.where}, and its INFOS are not valid; valid: "
                f"one DatasetInfo(name={name!r}, ...) in a tuple"
            )
    except MethodError as error:
        raise ConfigError(str(error)) from error
    return infos[0], loader


def _module(family: str) -> Loader:
    # The names are those of `FAMILIES`; nothing from a configuration is imported.
    module: Loader = import_module(f"platform.data.loaders.{family}")
    return module
