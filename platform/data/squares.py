"""Images at a size that a method asks for, and no frozen model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Squares:
    """Brings images to one size by the policy that open_clip has for its models.

    Attributes:
        side: That size.
    """

    side: int

    @property
    def name(self) -> str:
        """What the images are for, in words."""
        return f"no model, {self.side} x {self.side}"

    @property
    def fingerprint(self) -> str:
        """No model, hence no digest of one."""
        return ""

    @property
    def transform_digest(self) -> str:
        """SHA-256 of what is done to an image, in hexadecimal."""
        from methods.clip.image_tower import square_preprocessing

        text = json.dumps(asdict(square_preprocessing(self.side)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def device(self) -> str:
        """Where it is done."""
        return "cpu"

    def fit(self, images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) of any sizes at this one, (n, S, S, 3)."""
        # Imported late: what needs no images at a size of its own needs no open_clip for them.
        from methods.clip.image_tower import fit_square

        return fit_square(images, self.side)
