"""Time and memory of the feature cache at real sizes: ViT-B/16 on JPEG files.

    python benchmarks/feature_cache.py [--images 2000] [--threads 2] [--folder FOLDER]

The weights are random and the pictures are drawn, with mixed sizes like photographs, because
neither changes the cost of encoding. Each step runs in its own process. Its peak of resident memory
includes everything in the process: torch, the model, the pictures and the rows, also those of
a mapped file. "all rows" then reads every row once in the blocks in which a method prepares them.
The table goes to stdout as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from _sizes import SMALLEST, sized
from PIL import Image, ImageDraw

MODEL = sized("ViT-B-16", "sotto-tiny")
SIZES = ((500, 375), (375, 500), (640, 480), (1024, 768), (300, 300))
STEPS = (
    ("features", "features, first run"),
    ("features", "features, second run"),
    ("tokens", "tokens, first run"),
    ("tokens", "tokens, second run"),
    ("pixels", "pixels, first run"),
    ("pixels", "pixels, second run"),
)


def draw_images(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        rng = np.random.default_rng(number)
        width, height = SIZES[number % len(SIZES)]
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        pen = ImageDraw.Draw(image)
        for _ in range(20):
            left, top = rng.integers(0, width - 40), rng.integers(0, height - 40)
            box = (left, top, left + rng.integers(10, 200), top + rng.integers(10, 200))
            pen.ellipse(tuple(map(int, box)), fill=tuple(map(int, rng.integers(0, 256, 3))))
        image.save(folder / f"{number:05d}.jpg", quality=90)


def save_random_weights(path: Path) -> None:
    import open_clip
    import torch

    torch.manual_seed(0)
    torch.save(open_clip.create_model(MODEL, pretrained=None).state_dict(), path)


def measure(folder: Path, kind: str, threads: int) -> dict[str, float]:
    import torch

    from methods.clip.adapter import load_backbone
    from platform.data.cache import CacheFolder
    from platform.data.dataset import ImageFiles
    from platform.data.preparing import CHUNK, cached_rows

    torch.set_num_threads(threads)
    backbone = load_backbone(MODEL, sized(str(folder / "random.pt"), None))
    paths = tuple(sorted(path.name for path in (folder / "images").iterdir()))
    images, cache = ImageFiles(folder / "images", paths), CacheFolder(folder / "cache", 20 * 2**30)
    loaded, started, worked = peak_gib(), time.perf_counter(), time.process_time()
    rows = cached_rows(backbone, images, np.arange(len(paths)), cache, kind=kind)  # type: ignore[arg-type]
    seconds, busy = time.perf_counter() - started, time.process_time() - worked
    peak = peak_gib()
    total = sum(float(rows[i : i + CHUNK].sum()) for i in range(0, len(rows), CHUNK))
    return {
        "seconds": seconds,
        "busy": busy,
        "loaded": loaded,
        "peak": peak,
        "read": peak_gib(),
        "gigabytes": rows.dtype.itemsize * float(np.prod(rows.shape)) / 1e9,
        "sum": total,
    }


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_a_process(folder: Path, kind: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--step", kind, "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [*command, "--threads", str(threads)], env=environment, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def report(folder: Path, count: int, threads: int) -> None:
    draw_images(folder / "images", count)
    if not SMALLEST:
        save_random_weights(folder / "random.pt")
    size = sum(path.stat().st_size for path in (folder / "images").iterdir())
    packages = ("torch", "open_clip_torch", "numpy", "pillow")
    print(f"{count:,} JPEG files ({size / 1e6:.0f} MB), {MODEL}, {threads} threads.")
    print(", ".join(f"{name} {version(name)}" for name in packages) + "\n")
    heads = ("step", "seconds", "CPU seconds", "images a second")
    print(row_of(*heads, "rows, GB", "peak, GiB", "with all rows, GiB"))
    print("|---|---|---|---|---|---|---|")
    sums: dict[str, float] = {}
    for kind, name in sized(STEPS, STEPS[:2]):
        found = in_a_process(folder, kind, threads)
        # The second run must find the cache of the first run.
        assert sums.setdefault(kind, found["sum"]) == found["sum"]
        speed = f"{count / found['seconds']:,.1f}"
        times = (f"{found['seconds']:.1f}", f"{found['busy']:.1f}", speed)
        memory = (f"{found['peak']:.2f}", f"{found['read']:.2f}")
        print(row_of(name, *times, f"{found['gigabytes']:.3f}", *memory), flush=True)
    print(f"\nThe process with the model loaded, before any encoding: {found['loaded']:.2f} GiB.")


def row_of(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=sized(2000, 6))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--step", choices=("features", "tokens", "pixels"))
    given = parser.parse_args()
    if given.step is not None:
        sys.stdout.write(json.dumps(measure(given.folder, given.step, given.threads)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        report(Path(folder), given.images, given.threads)


if __name__ == "__main__":
    main()
