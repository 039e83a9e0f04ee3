"""Small pictures for drawn data sets: each class has a colour, each file bytes of its own."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(label: int, number: int, size: int = 24) -> Image.Image:
    """A square of a class's colour with a little noise of its own."""
    colour = np.random.default_rng(label).integers(40, 216, 3)
    noise = np.random.default_rng([label, number]).integers(-40, 41, (size, size, 1))
    return Image.fromarray((colour + noise).astype(np.uint8))


def write_picture(path: Path, label: int, number: int, size: int = 24) -> None:
    """Writes one in the format of the path's ending; no two of one folder have the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image, stream = picture(label, number, size), io.BytesIO()
    if path.suffix.lower() == ".png":
        image.save(stream, "PNG")
    else:
        # Noise may not survive the compression; the comment does.
        image.save(stream, "JPEG", comment=f"{path.parent.name}/{path.name}")
    path.write_bytes(stream.getvalue())
