"""`images` and `client_folders`: a user's own images; and one data holder's images.

The loader recognises the layout (`platform.data.own_layouts`) and reports it: the number of images,
their classes and uses, and the role of domains and clients. Images that files keep for testing or
validation are never trained on. Where no file says which are for testing, `seeds.split` sets aside
a fifth of each class (of each domain); copies of an image stay on one side.

Clients are the domains of the data set, in the ASCII order of their names, so that the partition
`domain` gives each client its own images. All images of a held-out domain or client are test
images. The data set `client_folders` is the layout of that name, for a consortium in one folder.

Where the images of a group are a client's own, their use may not depend on another client's images.
Then each image's own bytes and a key say on which side it is (`platform.data.partition`): a file
that is added, removed or renamed moves no other image from one side to another. In a simulation the
key follows from `seeds.split` and the client's name; on the client's own machine the key is a
secret in its store. Where folders split the images, that split holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from platform.config.randomness import key_of, stream
from platform.config.rules import HELD
from platform.data.catalogue import DOMAIN, DataRequest, DatasetInfo, Hints
from platform.data.dataset import Dataset, ImageFiles, image_digests
from platform.data.loaders._files import Row, image_split
from platform.data.own_folders import (
    WORDS,
    Group,
    Listed,
    OwnReading,
    Use,
    conjoined,
    folded,
    number,
    some,
)
from platform.data.own_layouts import OWN_LAYOUTS, recognise_own
from platform.data.partition import TEST_SHARE, ClientIndices, carve, draw_below, draw_tests
from platform.errors import DataError, Faults

_CLIENTS: Final = "client_folders"
_MERGED: Final = ("shared_ratio", "hierarchical_dirichlet")
"""Partitions that put training and test images together."""
_MOST_SAID: Final = 10
"""The report describes this many domains or clients and counts the others."""

INFOS = (
    DatasetInfo(
        name="images",
        title="A folder of the user's own images, task.root being that folder; see --check",
        classes=(),
        domains=(),
        source="the images are the user's own",
        layout=tuple(f"{name}: {text}" for name, text in OWN_LAYOUTS.items()),
    ),
    DatasetInfo(
        name=_CLIENTS,
        title="One folder a client, task.root holding them; needs the partition domain",
        classes=(),
        domains=(),
        source="the images are the clients' own",
        layout=(
            "CLIENT/CLASS/IMAGE",
            "or CLIENT/train/CLASS/IMAGE with CLIENT/test/CLASS/IMAGE or CLIENT/val/CLASS/IMAGE",
        ),
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Recognise a folder, and list its images, with all faults of the folder.

    The loader opens files in two cases only: where copies may be among images that are set aside
    for testing, and where a client's files do not say which images are for testing.
    """
    faults = Faults()
    with faults:
        return replace(_load(name, request, faults), faults=tuple(faults))
    raise DataError(*faults)


def _load(name: str, request: DataRequest, faults: Faults) -> Dataset:
    hints = request.hints if name == "images" else replace(request.hints, layout=_CLIENTS)
    reading = recognise_own(request.root, hints, faults)
    kind, says_tests = hints.partition, any(g.says_tests for g in reading.groups.values())
    if reading.owners == "clients" and kind not in (None, "domain"):
        raise DataError(
            f"task.partition.kind: {kind} does not fit task.dataset: {name} with "
            f"{len(reading.groups)} clients, whose images are dealt out already; valid: domain, "
            f"with no other key of task.partition, and task.clients: {len(reading.groups)}"
        )
    if kind in _MERGED and says_tests:
        raise DataError(
            f"task.partition.kind: {kind} deals out test images for training, and the files of "
            f"task.dataset: {name} say which images are held out; valid: another kind"
        )
    known = tuple(reading.groups) if reading.owners != "nobody" else (DOMAIN,)
    domains = request.chosen_domains(name, known)
    groups = {one: reading.groups["" if reading.owners == "nobody" else one] for one in domains}
    # A class that only unchosen domains have is left out, unless a file lists it.
    present = {folded(image.name) for group in groups.values() for image in group.listed}
    chosen = len(groups) < len(reading.groups) and not reading.has_class_list
    kept = [name for name in reading.words if not chosen or folded(name) in present]
    classes = tuple(dict.fromkeys(reading.words[name] for name in kept))
    labels = {name: classes.index(reading.words[name]) for name in kept}
    is_own = reading.owners == "clients" or hints.partition == "domain"
    drawn = frozenset[str]() if is_own else _drawn(groups, request)
    rows: dict[Use, list[Row]] = {use: [] for use in WORDS}
    for index, (domain, group) in enumerate(groups.items()):
        held_out = domain == request.held_out_domain
        if is_own:
            key = key_of(request.split_seed, "split", domain)
            share = 0.0 if held_out else TEST_SHARE
            own = holder_rows(group, labels, test_share=share, key=key, domain=index)
        else:
            own = _by_use(group, labels, drawn, index)
        for use, found in own.items():
            rows["test" if held_out else use] += found
    return _dataset_of(
        name,
        reading,
        {use: sorted(found) for use, found in rows.items()},
        classes=classes,
        groups=groups,
        recognised=_sentences(name, reading, groups, rows, is_own=is_own),
    )


def load_holding(
    root: Path, classes: Sequence[str], *, test_share: float, key: bytes, hints: Hints | None = None
) -> tuple[Dataset, tuple[str, ...]]:
    """Return one data holder's images, which stay in their files, and say which are left out.

    A class folder that is not one of the federation's classes is left out alone, and so is a file
    that cannot be read: a fault of one image changes nothing for the others. Where no folder says
    the use of the images, `test_share` is the chance of each to be for testing, and the key, always
    the same secret of the holder, decides.
    """
    faults = Faults()
    reading = recognise_own(root, hints or Hints(), faults, one_holder=True)
    faults.require_none()
    (group,) = reading.groups.values()
    labels, left_out = dict[str, int](), Faults()
    for name, called in reading.words.items():
        with left_out:
            labels |= labels_of(reading.root, {name: called}, classes)
    known = [image for image in group.listed if image.name in labels]
    files, readable = group.files(group.root, tuple(image.path for image in known)), []
    for row, image in enumerate(known):
        with left_out:
            files.bytes_of(row)
            readable.append(image)
    group = replace(group, listed=tuple(readable))
    dataset = _dataset_of(
        HELD,
        reading,
        holder_rows(group, labels, test_share=test_share, key=key),
        classes=tuple(classes),
        groups={DOMAIN: group},
        recognised=(f"{str(reading.root)!r}: {group.sentence}", *reading.remarks),
    )
    return dataset, tuple(left_out)


def only_client(
    dataset: Dataset, *, validation_share: float = 0.0, key: bytes = b""
) -> ClientIndices:
    """Return all rows of a data set, as those of the one client that owns it.

    Where the client has no folder for validation, the share is the chance of each training image to
    be for validation. The key decides; it is a secret of the holder, always the same.
    """
    train = np.arange(dataset.train.num_examples)
    client = ClientIndices(
        np.setdiff1d(train, dataset.validation),
        np.arange(dataset.test.num_examples),
        dataset.validation,
    )
    if not validation_share or dataset.holds_back:
        return client
    return carve(client, dataset.train, validation_share, key)


def labels_of(root: Path, words: Mapping[str, str], classes: Sequence[str]) -> dict[str, int]:
    """Return the federation's label of each class in a holder's files, by the words of each class.

    Names match but for capitals and "_", "-" or spaces.
    """
    labels: dict[str, int] = {}
    for folder, called in words.items():
        exact = [label for label, name in enumerate(classes) if name in (folder, called)]
        alike = [label for label, name in enumerate(classes) if folded(name) == folded(called)]
        fitting = exact or alike
        if len(fitting) != 1:
            which = "no class" if not fitting else "more than one class"
            what = f"has a class folder {folder!r}, which is {which} of the federation"
            raise DataError.at(root, what, ", ".join(map(repr, classes)))
        labels[folder] = fitting[0]
    return labels


def holder_rows(
    group: Group, labels: Mapping[str, int], *, test_share: float, key: bytes, domain: int = 0
) -> dict[Use, list[Row]]:
    """Return one owner's images by their use, by label and path; see `load_holding`."""
    drawn: frozenset[str] = frozenset()
    if not group.says_tests:
        # Each image is drawn by its own bytes alone.
        left = tuple(image.path for image in group.listed if image.use != "validation")
        digests = image_digests(group.files(group.root, left), np.arange(len(left)))
        drawn = draw_below(test_share, left, digests, key)
    return {use: sorted(found) for use, found in _by_use(group, labels, drawn, domain).items()}


def _by_use(
    group: Group, labels: Mapping[str, int], drawn: frozenset[str], domain: int
) -> dict[Use, list[Row]]:
    rows: dict[Use, list[Row]] = {use: [] for use in WORDS}
    for image in group.listed:
        use: Use = "test" if image.path in drawn else image.use or "train"
        rows[use].append((domain, labels[image.name], image.path))
    return rows


def _dataset_of(
    name: str,
    reading: OwnReading,
    rows: Mapping[Use, Sequence[Row]],
    *,
    classes: tuple[str, ...],
    groups: Mapping[str, Group],
    recognised: tuple[str, ...],
) -> Dataset:
    """Return images by their use as a data set; validation rows follow training rows."""
    root, trained = next(iter(groups.values())).root, len(rows["train"])
    return Dataset(
        domains_are="clients" if reading.owners == "clients" else "domains",
        name=name,
        classes=classes,
        domains=tuple(groups),
        train=image_split(root, [*rows["train"], *rows["validation"]], reading.files),
        test=image_split(root, rows["test"], reading.files),
        validation=np.arange(trained, trained + len(rows["validation"])),
        holds_back=tuple(i for i, of in enumerate(groups.values()) if "validation" in of.parts),
        recognised=recognised,
    )


def _drawn(groups: Mapping[str, Group], request: DataRequest) -> frozenset[str]:
    """Return a fifth of each group's images of a class, where the group does not say its tests.

    Copies of an image stay together, under the class of the first. Each class of each group has a
    stream of its own, so that its draw does not depend on other folders. Validation images and a
    held-out domain's images are not drawn.
    """
    found: list[tuple[str, Group, Listed]] = [
        (domain, group, image)
        for domain, group in groups.items()
        if not group.says_tests and domain != request.held_out_domain
        for image in group.listed
        if image.use != "validation"
    ]
    if not found:
        return frozenset()
    first = found[0][1]
    files: ImageFiles = first.files(first.root, tuple(image.path for _, _, image in found))
    sizes = [files.size_of(row) for row in range(len(files))]
    same = np.unique(sizes, return_inverse=True, return_counts=True)
    copies: dict[bytes, list[str]] = {}
    pieces: dict[tuple[str, str], list[list[str]]] = {}
    for row, (domain, _, image) in enumerate(found):
        piece = [image.path]
        # Only files of equal size can be copies.
        if same[2][same[1][row]] > 1:
            (digest,) = image_digests(files, np.array([row]))
            if digest in copies:
                copies[digest].append(image.path)
                continue
            copies[digest] = piece
        pieces.setdefault((domain, image.name), []).append(piece)
    return frozenset(
        path
        for place, of_class in pieces.items()
        for path in draw_tests(of_class, stream(request.split_seed, "own test images", *place))
    )


def _sentences(
    name: str,
    reading: OwnReading,
    groups: Mapping[str, Group],
    rows: Mapping[Use, Sequence[Row]],
    *,
    is_own: bool,
) -> tuple[str, ...]:
    """Return what was recognised and what follows from it."""
    each = [f"{group!r}: {of.sentence}" for group, of in groups.items()]
    if name == _CLIENTS:
        return tuple(each)
    lines = []
    if reading.owners == "nobody":
        (only,) = groups.values()
        lines.append(f"{str(reading.root)!r} as {reading.layout}: {only.sentence}")
        owners = "no domains or clients in it: task.partition deals the images out to task.clients"
    else:
        names = number(len(groups), reading.owners[:-1], reading.owners)
        lines.append(f"{str(reading.root)!r} as {reading.layout}: {names}")
        lines += each[:_MOST_SAID]
        if len(groups) > _MOST_SAID:
            lines.append(f"and {len(groups) - _MOST_SAID} {reading.owners} more")
        owners = {
            "domains": "domains are no clients: task.partition deals their images out",
            "clients": (
                "each client holds its own images, and nothing is dealt out: a run says so with "
                f"task.clients: {len(groups)}, task.partition: {{kind: domain}} and, for all of "
                "them, task.shots: null"
            ),
        }[reading.owners]
    how, unsaid = "as the files say", [one for one, of in groups.items() if not of.says_tests]
    if unsaid:
        which = "" if len(unsaid) == len(groups) else f" of {some(unsaid)}"
        share = "about a fifth, each drawn by its bytes and"
        if not is_own:
            share = "a fifth of each class, drawn by"
        how = (
            f"the test images{which} being {share} seeds.split and never trained on, as no file "
            "says which are"
        )
    images = conjoined([f"{len(rows[use]):,} {WORDS[use]}" for use in WORDS])
    return (*lines, f"in all {images} images, {how}", owners, *reading.remarks)
