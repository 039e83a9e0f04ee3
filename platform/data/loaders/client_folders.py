"""`client_folders`: a consortium in one folder, each client's images in a folder of its own.

What a client's folder looks like is recognised folder by folder (`platform.data.holder_folder`), as
it is on the machine of a data holder. Clients are the domains of the data set, in the ASCII order
of their folders, so that the partition `domain` gives each client what is its own; a held-out
client's images are all test images.

Classes are the class folders of all clients together, in ASCII order; capitals, "_" and "-" make no
difference between two clients. A client need not have images of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.holder_folder import (
    FolderReading,
    Use,
    folded,
    recognise,
    require_no_split_folders,
)
from platform.data.holder_images import TEST_SHARE, Row, dataset_of, holder_rows
from platform.data.loaders._files import LONGEST_NAME, is_there, subfolders
from platform.data.loaders._raw_files import class_words
from platform.errors import DataError

INFOS = (
    DatasetInfo(
        name="client_folders",
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
    """Recognise every client's folder, and list its images.

    Files are read where no folder says which images are for testing.

    Raises:
        ConfigError: If a client's folder is refused, has nothing to train on or to test, or a
            client is unknown; or if what lies in `task.root` are no clients.
    """
    (info,) = INFOS
    if not is_there(request.root, folder=True):
        raise DataError(info.missing(request.root, request.root))
    root = request.root.resolve()
    clients = request.chosen_domains(name, _clients(info, root))
    readings = {client: recognise(root / client) for client in clients}
    classes, labels = _classes(readings.values(), root)
    rows: dict[Use, list[Row]] = {"train": [], "validation": [], "test": []}
    for index, (client, reading) in enumerate(readings.items()):
        own = holder_rows(
            reading,
            {folder: labels[folded(folder)] for folder in reading.classes},
            test_share=TEST_SHARE,
            seed=request.split_seed,
            domain=index,
            above=f"{client}/",
        )
        _require_tests(own, reading)
        for use, found in own.items():
            rows["test" if client == request.held_out_domain else use] += found
    recognised = tuple(f"{client!r}: {of.sentence}" for client, of in readings.items())
    return dataset_of(name, root, rows, classes=classes, domains=clients, recognised=recognised)


def _clients(info: DatasetInfo, root: Path) -> tuple[str, ...]:
    clients = subfolders(root, root)
    if not clients:
        raise DataError(info.missing(root / "CLIENT", root))
    require_no_split_folders(clients, root, "CLIENT")
    for client in clients:
        if len(client) > LONGEST_NAME or not client.isprintable():
            raise DataError(
                f"task.root: {str(root)!r} has a client's folder {client[:80]!r}; valid are 1 to "
                f"{LONGEST_NAME} printable characters"
            )
    return clients


def _classes(
    readings: Iterable[FolderReading], root: Path
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Return all clients' classes by label, and the label of each as `folded` spells it.

    Where two clients spell one class in two ways, the first spelling in ASCII order is its name.
    """
    folders = sorted({name for reading in readings for name in reading.classes})
    firsts: dict[str, str] = {}
    for folder in folders:
        firsts.setdefault(folded(folder), folder)
    names = class_words(list(firsts.values()), root)
    return names, {spelling: label for label, spelling in enumerate(firsts)}


def _require_tests(own: Mapping[Use, list[Row]], reading: FolderReading) -> None:
    if not own["test"]:
        raise DataError(
            f"task.root: {str(reading.root)!r} has no test image, as all of its "
            f"{len(own['train'])} images are drawn for training; valid are more images, train/ "
            "and test/ folders, or another seeds.split"
        )
