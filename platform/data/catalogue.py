"""The data sets by name: what is known of each, and who reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from platform.config.sections import Layout
from platform.data.dataset import Dataset, Indices, Modality
from platform.data.shapes import Stream
from platform.errors import ConfigError

FAMILIES: Final = (
    "embedded",
    "coop_splits",
    "domain_folders",
    "own_images",
    "published",
    "site_lists",
)
"""Modules of `platform.data.loaders`."""
_NEEDS: Final[Mapping[Modality, frozenset[str]]] = {
    "images": frozenset({"features", "tokens", "pixels"}),
    "texts": frozenset({"text"}),
}
"""What a method asks for that is made of examples of a kind."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known of a data set without its files.

    Attributes:
        name: Name as in `task.dataset`.
        title: What it is, in a line.
        classes: Class names in label order; empty where only the files tell.
        domains: Domain names in index order; empty where only the files tell.
        source: Where its files come from, in words.
        layout: The files below `task.root` that are read, one line each; none where none are.
        modality: What its examples are.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    source: str
    layout: tuple[str, ...] = ()
    modality: Modality = "images"

    def missing(self, path: Path, root: Path) -> str:
        """Return the sentence for a file that is not there.

        Args:
            path: The file or folder.
            root: What `task.root` says.
        """
        return (
            f"task.root: {self.name} needs {str(path)!r}, which is not there; expected below "
            f"{str(root)!r}: {'; '.join(self.layout)}; {self.source}"
        )


@dataclass(frozen=True)
class Draws:
    """By what images are rendered, and how many; files hold what they hold.

    Attributes:
        seed: Seed of all of them.
        stream: Who they are for.
        train_per_class: Training images of each class.
        test_per_class: Test images of each class.
    """

    seed: int = 0
    stream: Stream = Stream.FEDERATION
    train_per_class: int = 0
    test_per_class: int = 0


@dataclass(frozen=True)
class Hints:
    """What its user says of a folder of images of their own.

    Attributes:
        layout: Which layout is meant; None to recognise it.
        class_names: File of words for the classes; None for one beside the images, if any.
        partition: The kind of partition that deals the images out; None where nothing does.
    """

    layout: Layout | None = None
    class_names: Path | None = None
    partition: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """What a run asks of a data set.

    Attributes:
        root: Folder that holds the data sets' own folders.
        draws: By what images are rendered, where they are.
        split_seed: Seed of the split into training and test images where no file tells it.
        domains: The domains that are used, None for all.
        held_out_domain: The domain whose images are all test images where no file tells, if any.
        senses: What `task.senses` says, of a data set whose names have senses; or those of training
            and of test rows.
    """

    root: Path
    draws: Draws = Draws()
    split_seed: int = 0
    domains: tuple[str, ...] | None = None
    held_out_domain: str | None = None
    senses: str | tuple[Indices, Indices] | None = None
    hints: Hints = Hints()

    def chosen_domains(self, name: str, known: Sequence[str]) -> tuple[str, ...]:
        """Return the domains that are used, in the order asked for.

        Raises:
            ConfigError: If one is unknown.
        """
        for domain in self.domains or ():
            if domain not in known:
                raise ConfigError(
                    f"task.domains: {domain!r} is unknown in {name}; valid: {', '.join(known)}"
                )
        return self.domains or tuple(known)


class Loader(Protocol):
    """A module of `platform.data.loaders`."""

    INFOS: tuple[DatasetInfo, ...]

    def load(self, name: str, request: DataRequest) -> Dataset:
        """Read a data set of the family.

        Raises:
            ConfigError: If the layout is not met or a domain is unknown.
        """
        ...


def user_path(text: str, field: str = "task.root") -> Path:
    """Return a path as its user means it, "~" being the home folder.

    Args:
        text: As it was given.
        field: Where, for errors.

    Raises:
        ConfigError: If it can be no path, or there is no such home folder.
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


def dataset_infos() -> tuple[DatasetInfo, ...]:
    """Return all data sets, by name."""
    infos = [info for family in FAMILIES for info in _module(family).INFOS]
    return tuple(sorted(infos, key=lambda info: info.name))


def dataset_info(name: str) -> DatasetInfo:
    """Return what is known of a data set.

    Raises:
        ConfigError: If there is none of this name.
    """
    return _find(name)[0]


def load_dataset(name: str, request: DataRequest) -> Dataset:
    """Read a data set; images stay in their files.

    Raises:
        ConfigError: If the name is unknown, or its files are not as its layout says.
    """
    _, loader = _find(name)
    return loader.load(name, request)


def require_modality(
    dataset: Dataset, method: str, needs: Collection[str], options: Collection[str] = ()
) -> None:
    """Refuse texts where a method looks at images, and images where it reads texts.

    Args:
        dataset: What the run is on.
        method: The method's name.
        needs: What the method asks the data layer for.
        options: Names of the method's options.

    Raises:
        ConfigError: If its examples are not what the method needs.
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


def _find(name: str) -> tuple[DatasetInfo, Loader]:
    for family in FAMILIES:
        loader = _module(family)
        for info in loader.INFOS:
            if info.name == name:
                return info, loader
    valid = ", ".join(info.name for info in dataset_infos())
    raise ConfigError(f"task.dataset: {name!r} is unknown; valid: {valid}")


def _module(family: str) -> Loader:
    # The names are those of `FAMILIES`; nothing from a configuration is imported.
    module: Loader = import_module(f"platform.data.loaders.{family}")
    return module
