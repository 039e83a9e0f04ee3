"""`images`: a folder of the user's own images, in any layout that is recognised.

The loader recognises the layout (`platform.data.own_layouts`) and reports it: the number of images,
their classes and uses, and the role of domains and clients. Images that files keep for testing or
validation are never trained on. Where no file says which are for testing, a fifth of each class (of
each domain) is set aside by `seeds.split`; copies of an image stay on one side.

Clients are the domains of the data set, in the ASCII order of their names, so that the partition
`domain` gives each client what is its own. A held-out domain's or client's images are all test
images. The data set `client_folders` is the layout of that name, for a consortium in one folder.

Where the images of a group are a client's own, their use may not depend on another client's
images. Whether an image is for testing follows from its bytes, `seeds.split` and the client's name;
on the client's own machine it follows from a secret in its store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from platform.config.randomness import key_of, stream
from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset, image_digests
from platform.data.holder_images import (
    DOMAIN,
    TEST_SHARE,
    Row,
    dataset_of,
    holder_rows,
)
from platform.data.loaders._files import is_there
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
from platform.errors import DataError

_CLIENTS: Final = "client_folders"
_MERGED: Final = ("shared_ratio", "hierarchical_dirichlet")
"""Partitions that put training and test images together."""
_MOST_SAID: Final = 10
"""Of more domains or clients the first ones are said."""

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
    """Recognise a folder, and list its images.

    Files are read where copies may be among images that are set aside for testing, and all of a
    client's where its files do not say which are.

    Raises:
        ConfigError: If the folder is refused, has nothing to train on or to test, a domain or
            client is unknown, or the partition does not fit what was recognised.
    """
    info = {info.name: info for info in INFOS}[name]
    if not is_there(request.root):
        raise DataError(info.missing(request.root, request.root))
    hints = request.hints if name == "images" else replace(request.hints, layout=_CLIENTS)
    reading = recognise_own(request.root, hints)
    _require_partition(name, reading, hints.partition)
    known = tuple(reading.groups) if reading.owners != "nobody" else (DOMAIN,)
    domains = request.chosen_domains(name, known)
    groups = [reading.groups["" if reading.owners == "nobody" else one] for one in domains]
    classes, labels = _classes(reading, groups)
    rows: dict[Use, list[Row]] = {"train": [], "validation": [], "test": []}
    is_own = reading.owners == "clients" or hints.partition == "domain"
    splitting = _split_by_bytes if is_own else _split
    for index, own in enumerate(splitting(groups, domains, labels, request)):
        for use, found in own.items():
            rows["test" if domains[index] == request.held_out_domain else use] += found
    return dataset_of(
        name,
        groups[0].root,
        {use: sorted(found) for use, found in rows.items()},
        classes=classes,
        domains=domains,
        recognised=_sentences(
            name, reading, dict(zip(domains, groups, strict=True)), rows, is_own=is_own
        ),
        files=reading.files,
        holds_back=tuple(i for i, group in enumerate(groups) if "validation" in group.parts),
    )


def _require_partition(name: str, reading: OwnReading, kind: str | None) -> None:
    if reading.owners == "clients" and kind not in (None, "domain"):
        raise DataError(
            f"task.partition.kind: {kind} does not fit task.dataset: {name} with "
            f"{len(reading.groups)} clients, whose images are dealt out already; valid: domain, "
            f"with no other key of task.partition, and task.clients: {len(reading.groups)}"
        )
    if kind in _MERGED and any(group.says_tests for group in reading.groups.values()):
        raise DataError(
            f"task.partition.kind: {kind} deals out test images for training, and the files of "
            f"task.dataset: {name} say which images are held out; valid: another kind"
        )


def _classes(
    reading: OwnReading, groups: Sequence[Group]
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Return the words of the classes by label, and the label of each name in the files.

    A class that only unchosen domains have is left out, unless a file lists it.
    """
    present = {folded(image.name) for group in groups for image in group.listed}
    chosen = len(groups) < len(reading.groups) and not reading.has_class_list
    kept = [name for name in reading.words if not chosen or folded(name) in present]
    classes = tuple(dict.fromkeys(reading.words[name] for name in kept))
    return classes, {name: classes.index(reading.words[name]) for name in kept}


def _split_by_bytes(
    groups: Sequence[Group],
    domains: Sequence[str],
    labels: Mapping[str, int],
    request: DataRequest,
) -> Iterator[dict[Use, list[Row]]]:
    """Yield each client's images by their use, independent of the other clients."""
    for index, (domain, group) in enumerate(zip(domains, groups, strict=True)):
        share = 0.0 if domain == request.held_out_domain else TEST_SHARE
        key = key_of(request.split_seed, "split", domain)
        yield holder_rows(group, labels, test_share=share, key=key, domain=index)


def _split(
    groups: Sequence[Group],
    domains: Sequence[str],
    labels: Mapping[str, int],
    request: DataRequest,
) -> Iterator[dict[Use, list[Row]]]:
    """Yield each group's images by what they are for."""
    drawn = _drawn(
        {
            domain: group
            for domain, group in zip(domains, groups, strict=True)
            if not group.says_tests and domain != request.held_out_domain
        },
        request.split_seed,
    )
    for index, group in enumerate(groups):
        own: dict[Use, list[Row]] = {use: [] for use in WORDS}
        for image in group.listed:
            use: Use = "test" if image.path in drawn else image.use or "train"
            own[use].append((index, labels[image.name], image.path))
        yield own


def _drawn(groups: Mapping[str, Group], seed: int) -> frozenset[str]:
    """Return the paths of a fifth of each group's images of a class, copies staying together.

    Each class of each group has a stream of its own, so that what it draws does not depend on other
    folders. Images that are for validation are left alone.
    """
    pieces = _pieces(groups)
    by_class: dict[tuple[str, str], list[list[str]]] = {}
    for key, paths in pieces:
        by_class.setdefault(key, []).append(paths)
    drawn: list[str] = []
    for (group, name), of_class in by_class.items():
        count = sum(map(len, of_class))
        # Of two images one is of each side; of a single one nothing can be spared.
        wanted = max(round(TEST_SHARE * count), 1)
        order = stream(seed, "own test images", group, name).permutation(len(of_class))
        for piece in (of_class[i] for i in order[: len(of_class) - 1]):
            if wanted > 0:
                drawn += piece
                wanted -= len(piece)
    return frozenset(drawn)


def _pieces(groups: Mapping[str, Group]) -> list[tuple[tuple[str, str], list[str]]]:
    """Return images that can be drawn, copies of one together under the first one's class."""
    found: list[tuple[str, Group, Listed]] = [
        (domain, group, image)
        for domain, group in groups.items()
        for image in group.listed
        if image.use != "validation"
    ]
    if not found:
        return []
    group = found[0][1]
    files = group.files(group.root, tuple(image.path for _, _, image in found))
    sizes = [files.size_of(row) for row in range(len(files))]
    same = np.unique(sizes, return_inverse=True, return_counts=True)
    digests: dict[bytes, list[str]] = {}
    pieces: list[tuple[tuple[str, str], list[str]]] = []
    for row, (domain, _, image) in enumerate(found):
        piece = [image.path]
        # Only files of equal size can be the same.
        if same[2][same[1][row]] > 1:
            (digest,) = image_digests(files, np.array([row]))
            if digest in digests:
                digests[digest].append(image.path)
                continue
            digests[digest] = piece
        pieces.append(((domain, image.name), piece))
    return pieces


def _sentences(
    name: str,
    reading: OwnReading,
    groups: Mapping[str, Group],
    rows: Mapping[Use, Sequence[Row]],
    *,
    is_own: bool,
) -> tuple[str, ...]:
    """Return what was recognised and what it means."""
    if name == _CLIENTS:
        return tuple(f"{group!r}: {of.sentence}" for group, of in groups.items())
    lines = []
    if reading.owners == "nobody":
        (only,) = groups.values()
        lines.append(f"{str(reading.root)!r} as {reading.layout}: {only.sentence}")
        owners = "no domains or clients in it: task.partition deals the images out to task.clients"
    else:
        names = number(len(groups), reading.owners[:-1], reading.owners)
        lines.append(f"{str(reading.root)!r} as {reading.layout}: {names}")
        lines += [f"{group!r}: {of.sentence}" for group, of in [*groups.items()][:_MOST_SAID]]
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
    images = conjoined([f"{len(rows[use]):,} {WORDS[use]}" for use in WORDS])
    lines.append(f"in all {images} images, {_how(groups, is_own=is_own)}")
    return (*lines, owners, *reading.remarks)


def _how(groups: Mapping[str, Group], *, is_own: bool) -> str:
    """Say how test images were found."""
    unsaid = [name for name, group in groups.items() if not group.says_tests]
    if not unsaid:
        return "as the files say"
    which = "" if len(unsaid) == len(groups) else f" of {some(unsaid)}"
    share = (
        "about a fifth, each drawn by its bytes and"
        if is_own
        else "a fifth of each class, drawn by"
    )
    return (
        f"the test images{which} being {share} seeds.split and never trained on, as no file says "
        "which are"
    )
