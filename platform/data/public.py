"""Images that are declared public: of the task's classes, and none of those that clients hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from platform.config import PublicDataConfig, RunConfig
from platform.config.randomness import stream
from platform.data.catalogue import DataRequest, Draws, Hints, load_dataset, user_path
from platform.data.checking import require_sound
from platform.data.dataset import Dataset, ImageFiles, Indices, Split, image_digests
from platform.data.homonyms import BY_CLIENT, SENSES
from platform.data.loading import TaskData, hints_of
from platform.data.shapes import Stream
from platform.errors import ConfigError

RENDERED: Final = ("homonyms", "shapes")
"""Data sets of which public images are rendered, in a stream of their own."""


@dataclass(frozen=True)
class PublicRows:
    """Images declared public that are taken.

    Attributes:
        split: Where they lie.
        rows: Which of them, ascending.
    """

    split: Split
    rows: Indices


def public_rows(config: RunConfig, data: TaskData) -> PublicRows:
    """Return the images of `public_data`: of the classes that are dealt out, as many of each.

    Under `task.senses: clients` the images of a class have all senses in turn. Those of a held-out
    domain are left out.

    Args:
        config: The run's, with such a section.
        data: The federation's, which they must be apart from.

    Raises:
        ConfigError: If they cannot be read, have other classes, are the federation's own, or fewer
            than there are to be directions.
    """
    section, task = config.public_data or PublicDataConfig(), config.task
    name = section.dataset or task.dataset
    if name == task.dataset and section.root is None and name not in RENDERED:
        raise ConfigError(
            f"public_data.root: null is where the federation's own {name} lies, of which nothing "
            "is public; valid: another folder, or public_data.dataset"
        )
    request = DataRequest(
        root=user_path(section.root or task.root, "public_data.root"),
        draws=Draws(section.seed, Stream.PUBLIC, section.per_class, 1),
        split_seed=section.seed,
        domains=task.domains if name == task.dataset else None,
        held_out_domain=task.held_out_domain,
        senses=task.senses if name == task.dataset else None,
        hints=hints_of(task, dealt=False) if name == task.dataset else Hints(),
    )
    public = load_public(name, request, data.dataset)
    if task.senses == BY_CLIENT:
        # A sense for each row, (domains, rows of one), in turn within each class.
        domains, classes = len(public.domains), len(public.classes)
        counts = [part.num_examples // domains // classes for part in (public.train, public.test)]
        train, test = (
            (np.tile(np.arange(count), classes) + np.arange(domains)[:, None]) % len(SENSES)
            for count in counts
        )
        public = load_dataset(name, replace(request, senses=(train, test)))
    split, rng = public.train, stream(section.seed, "public images")
    seen = np.ones(split.num_examples, np.bool_)
    if task.held_out_domain in public.domains:
        seen = split.domains != public.domains.index(str(task.held_out_domain))
    taken = []
    for label, of_class in enumerate(data.classes):
        rows = np.flatnonzero(seen & (split.labels == label))
        if not len(rows):
            raise ConfigError(
                f"public_data.root: {name} there has no image of {of_class!r}; valid: at least one "
                "of each class"
            )
        taken.append(rng.permutation(rows)[: section.per_class])
    found, rank = np.sort(np.concatenate(taken)), config.privacy.rank or 0
    if len(found) < rank:
        raise ConfigError(
            f"privacy.rank: {rank} is more than the {len(found)} images declared public, whose "
            f"gradients have no more directions; valid: 1 to {len(found)}"
        )
    return PublicRows(split, found)


def load_public(
    name: str, request: DataRequest, own: Dataset, field: str = "public_data"
) -> Dataset:
    """Read what is declared public.

    Args:
        name: Of the data set.
        request: Where it is, and what is rendered of it.
        own: What the federation's images are of.
        field: Where the public data set is named, for errors.

    Raises:
        ConfigError: If it cannot be read, has other classes, or is the federation's own.
    """
    try:
        public = load_dataset(name, request)
        require_sound(public)
    except ConfigError as error:
        text = str(error)
        for key in ("root", "dataset"):
            if text.startswith(f"task.{key}:"):
                raise ConfigError(f"{field}.{key}:{text.partition(':')[2]}") from error
        raise
    if public.classes != own.classes:
        difference = f"{len(public.classes)} and not {len(own.classes)}"
        for label, (one, other) in enumerate(zip(public.classes, own.classes, strict=False)):
            if one != other:
                difference = f"label {label} is {one!r} and not {other!r}"
                break
        raise ConfigError(
            f"{field}.dataset: {public.name} has other classes than the task's {own.name} "
            f"({difference}); valid: one with exactly its "
            f"{len(own.classes)} classes in the same order"
        )
    if public.name not in RENDERED and any(
        _share(one, other) for one in (public.train, public.test) for other in (own.train, own.test)
    ):
        raise ConfigError(
            f"{field}.root: {public.name} there is the federation's own data, of which nothing is "
            "public; valid: another folder, of images that are no client's"
        )
    return public


def _share(one: Split, other: Split) -> bool:
    """Return whether two splits share a file, or in memory an example."""
    if one.texts is not None or other.texts is not None:
        return not set(one.texts or ()).isdisjoint(other.texts or ())
    mine, theirs = one.images, other.images
    if isinstance(mine, ImageFiles) and isinstance(theirs, ImageFiles):
        # A link to a file is the same file; one that is not there is refused where it is read.
        found = ({files.place_of(row) for row in range(len(files))} for files in (mine, theirs))
        return bool(set.intersection(*found) - {None})
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        # By content, as a split by another seed has the same images elsewhere.
        digests = (set(image_digests(part, np.arange(len(part)))) for part in (mine, theirs))
        return not set.isdisjoint(*digests)
    return False
