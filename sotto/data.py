"""One's own images: arrays, a torch data set, or a folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sotto.errors import Error, invalid

NAMES = re.compile(r"[^/\\.\s\x00-\x1f][^/\\\x00-\x1f]{0,99}")
"""Names of classes and clients, which become folders."""


class Data:
    """Images with a class each, and the client that holds each.

    Images in memory are written as PNG files, once for the same data: a run can be resumed, and
    what clients have spent on these data is known in later runs.

    Attributes:
        folder: The folder of the files.
        classes: Names of classes, in the order of their labels; empty for a folder.
        clients: Names of clients; empty where the configuration deals the images out.
    """

    def __init__(
        self,
        images: Any,
        labels: ArrayLike | None = None,
        *,
        clients: Sequence[Any] | NDArray[Any] | None = None,
        classes: Sequence[str] | None = None,
        test: Sequence[bool] | NDArray[np.bool_] | None = None,
        folder: str | Path = "runs/data",
    ) -> None:
        """Take images from memory, or from a folder as it is.

        Args:
            images: A folder, laid out as `sotto datasets` says; or uint8 of shape (n, H, W) or
                (n, H, W, 3); or a list of such images of any size, or of PIL images; or a torch
                data set of pairs of image and label, whose images are one of these, or tensors of
                shape (C, H, W) with values from 0 to 1.
            labels: The class of each image: numbers from 0, or names. None where `images` has them.
            clients: The holder of each image, by any name or number. None: the partition of the
                configuration deals the images out; in a folder of clients' folders it is known.
            classes: A name for each number in `labels`. The model reads these names, so "a photo of
                a 3" needs no more than "3". None: the labels themselves.
            test: Whether each image is for testing. None: the run splits the images.
            folder: Where a folder for these data is made, named by their digest.

        Raises:
            Error: An argument is not valid.
        """
        self.classes: tuple[str, ...] = ()
        self.clients: tuple[str, ...] = ()
        if isinstance(images, str | Path):
            given = (labels, clients, classes, test)
            if not Path(images).is_dir():
                raise invalid("images", str(images), "a folder that is there")
            if any(value is not None for value in given):
                raise invalid("labels", "given", "None, as a folder says all by its layout")
            self.folder = Path(images).resolve()
            self._is_of_clients = _is_of_clients(self.folder)
            return
        if labels is None:
            pairs = [images[index] for index in range(len(images))]
            images, labels = [image for image, _ in pairs], [int(label) for _, label in pairs]
        pictures = [_picture(image) for image in images]
        names = _names("labels", labels, len(pictures), classes)
        self.classes = tuple(classes or sorted(set(names)))
        owners: list[str] = []
        if clients is not None:
            owners = _names("clients", clients, len(pictures), None)
            self.clients = tuple(sorted(set(owners)))
        self._is_of_clients = bool(owners)
        uses = [""] * len(pictures)
        if test is not None:
            if len(test) != len(pictures):
                raise invalid("test", f"{len(test)} values", f"{len(pictures)}, one an image")
            uses = ["test" if one else "train" for one in test]
        parts = [
            "/".join(filter(None, (owners[i] if owners else "", uses[i], names[i])))
            for i in range(len(pictures))
        ]
        self.folder = _written(Path(folder), parts, pictures)

    def __repr__(self) -> str:
        """Show where the images are."""
        return f"<sotto.Data in {str(self.folder)!r}>"

    def overrides(self) -> dict[str, Any]:
        """Return the keys of a configuration that name these data."""
        keys: dict[str, Any] = {"task.root": str(self.folder), "task.shots": None}
        if not self._is_of_clients:
            return keys | {"task.dataset": "images"}
        count = len(self.clients) or sum(path.is_dir() for path in self.folder.iterdir())
        keys |= {"task.dataset": "client_folders", "task.partition.kind": "domain"}
        return keys | {"task.clients": count}


def task_of(data: Data | str | Path | None, model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the keys of a configuration that name one's own images and model, if any."""
    keys: dict[str, Any] = {} if model is None else dict(model)
    if data is not None:
        if not isinstance(data, Data) and not Path(data).is_dir():
            raise invalid("data", str(data), "a folder that is there")
        keys |= (data if isinstance(data, Data) else Data(data)).overrides()
    return keys


def _is_of_clients(folder: Path) -> bool:
    """Return whether the folder has a folder for each client, with folders for classes in it."""
    inside = [path for path in folder.iterdir() if path.is_dir()]
    split = {"train", "training", "test", "testing", "val", "valid", "validation"}
    return not any(path.name.lower() in split for path in inside) and any(
        below.is_dir() for path in inside for below in path.iterdir()
    )


def _picture(image: Any) -> NDArray[np.uint8]:
    """Return an image as uint8 of shape (H, W) or (H, W, 3)."""
    found = np.asarray(image)
    if found.ndim == 3 and found.dtype.kind == "f" and found.shape[0] in (1, 3):
        # A tensor as torchvision's `ToTensor` makes it.
        if not (np.isfinite(found).all() and found.min() >= 0.0 and found.max() <= 1.0):
            raise invalid("images", "a tensor beyond 0 to 1", "values from 0 to 1")
        found = np.rint(255.0 * found.transpose(1, 2, 0)).astype(np.uint8)
        found = found[:, :, 0] if found.shape[2] == 1 else found
    if found.dtype != np.uint8 or found.ndim not in (2, 3) or 0 in found.shape:
        raise invalid(
            "images",
            f"an image of {found.dtype} and shape {found.shape}",
            "uint8 of shape (H, W) or (H, W, 3)",
        )
    if found.ndim == 3 and found.shape[2] != 3:
        raise invalid("images", f"an image of shape {found.shape}", "three colours, or none")
    return found


def _names(field: str, values: ArrayLike, count: int, classes: Sequence[str] | None) -> list[str]:
    listed = np.asarray(values).tolist()
    if not isinstance(listed, list) or len(listed) != count:
        length = len(listed) if isinstance(listed, list) else 0
        raise invalid(field, f"{length} values", f"{count}, one an image")
    names = [str(value) for value in listed]
    if classes is not None:
        try:
            names = [classes[int(value)] for value in listed]
        except (ValueError, TypeError, IndexError):
            raise invalid("classes", f"{len(classes)} names", "a name for each label") from None
    for name in sorted(set(names)):
        if not NAMES.fullmatch(name):
            raise invalid(field, name, "names that can be folders")
    return names


def _written(parent: Path, parts: Sequence[str], pictures: Sequence[NDArray[np.uint8]]) -> Path:
    """Write the images, unless the same ones are there; return their folder."""
    from PIL import Image

    digest = hashlib.sha256()
    for part, picture in zip(parts, pictures, strict=True):
        digest.update(f"{part}\0{picture.shape}\0".encode())
        digest.update(np.ascontiguousarray(picture).tobytes())
    target = (parent / digest.hexdigest()[:16]).resolve()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        for number, (part, picture) in enumerate(zip(parts, pictures, strict=True)):
            place = made / part
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{number:07d}.png")
        # A second process that was faster has written the same.
        if not target.is_dir():
            os.replace(made, target)
    except OSError as error:
        raise Error(f"folder: {str(parent)!r} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def clip(name: str, weights: str | Path | None = None) -> dict[str, Any]:
    """Return the keys of a configuration that name a CLIP model of open_clip.

    Args:
        name: The architecture, such as `ViT-B-16`; `sotto-tiny` and `sotto-glyphs` ship.
        weights: Name of published weights, which must be in the hub's cache already, or a file.
    """
    keys: dict[str, Any] = {"task.model.name": name}
    if weights is not None:
        keys["task.model.pretrained"] = str(weights)
    return keys
