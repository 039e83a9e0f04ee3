"""A folder of images, CLIENT/CLASS/IMAGE, as it lies on a disk."""

from pathlib import Path

import numpy as np
from PIL import Image

import sotto

rng = np.random.default_rng(0)
for client in ("north", "south", "west"):
    for light, name in enumerate(("night", "day")):
        folder = Path("photos", client, name)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(20):
            pixels = rng.integers(150 * light, 150 * light + 100, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
run = sotto.run("promptfl", data="photos", rounds=2)
print(run)
