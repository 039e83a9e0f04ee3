"""Disks that are really full: small file systems in memory, which only root can mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZE = 64 << 20
"""Bytes of a disk."""


@dataclass(frozen=True)
class Disk:
    """A file system of its own, as large as it is."""

    folder: Path

    def fill(self, spare: int) -> None:
        """Leaves so many bytes free, about."""
        found = os.statvfs(self.folder)
        with (self.folder / "ballast").open("wb") as file:
            file.write(bytes(max(0, found.f_bavail * found.f_frsize - spare)))

    def free(self) -> None:
        """Makes room again."""
        (self.folder / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Whether this user may."""
    if os.geteuid() != 0:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """A small disk as long as the context lasts."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
