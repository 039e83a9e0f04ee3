"""Pictures of the privacy report and of the live page, from one demo run.

    python benchmarks/records_pictures.py [--to docs/pictures]

Makes its own run (the quickstart, from its own seed) in a folder that is deleted afterwards, with a
report as HTML and a live page. Debian's Chromium shows the report and the run's page. Only the
run's name, its times, and noise from the operating system differ from run to run.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _sizes import FEWER, ROOT, SMALLEST, place
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

REPORT = {"width": 1120, "height": 1515}
PAGE = {"width": 1120, "height": 826}
COORDINATOR = (sys.executable, "-m", "platform.coordinator")
MOST_BYTES = 200_000
PICTURES = place(ROOT / "docs" / "pictures")
COLOURS = 64
"""Enough for text and plots in few colours; it makes a picture a fifth as large."""


def save(picture: bytes, file: Path) -> None:
    """Write a picture with few colours.

    Raises:
        SystemExit: If the picture is too large for a repository.
    """
    data = io.BytesIO()
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(data, "png", optimize=True)
    if len(data.getvalue()) >= MOST_BYTES:
        raise SystemExit(f"{file}: {len(data.getvalue())} bytes; at most {MOST_BYTES}")
    file.write_bytes(data.getvalue())
    sys.stdout.write(f"{file} {len(data.getvalue()) / 1000:.0f} kB\n")


def run(*arguments: str, folder: Path) -> None:
    """Run a command of the coordinator in a folder.

    Raises:
        CalledProcessError: If the command failed.
    """
    subprocess.run([*COORDINATOR, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def served(url: str, folder: Path) -> Iterator[str]:
    """Serve a live page while the block lasts; yield its address."""
    command = [*COORDINATOR, "serve", "--port", "0", "--storage", url]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            if process.stdout is None:
                raise SystemExit("serve printed no address")
            yield process.stdout.readline().split()[1].rstrip("/")
        finally:
            process.terminate()


def shot(browser: Browser, address: str, size: dict[str, int], file: Path) -> None:
    """Take a picture of a window of this size."""
    page: Any = browser.new_page(viewport=size, color_scheme="light", device_scale_factor=1)
    page.goto(address)
    page.wait_for_load_state()
    save(page.screenshot(), file)
    page.close()


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=PICTURES)
    target: Path = parser.parse_args().to
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/sotto.db"
        fewer = [word for setting in FEWER for word in ("--set", setting)]
        run("run", "quickstart", *fewer, "--storage", url, folder=folder)
        run("report", "latest", "--storage", url, "--format", "html", "--output", "report.html",
            folder=folder)  # fmt: skip
        if SMALLEST and shutil.which("chromium") is None:
            sys.stdout.write("Chromium is not installed, so no pictures were taken\n")
            return
        with sync_playwright() as driver, served(url, folder) as address:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            report = (folder / "report.html").as_uri()
            shot(browser, report, REPORT, target / "report.png")
            (run_id,) = [p.name for p in folder.iterdir() if (p / "summary.json").exists()]
            shot(browser, f"{address}/run?id={run_id}", PAGE, target / "page-run.png")
            browser.close()


if __name__ == "__main__":
    main()
