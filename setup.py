"""Adds the start-up hook to both kinds of install; everything else is in `pyproject.toml`.

The hook is `platform/_startup_hook.py`. A wheel carries a copy of it and a `.pth` beside the
packages. An editable wheel, which setuptools makes without running a full build, gets the same
two files added afterwards, and its `.pth` names the checkout.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
MODULE = "_sotto_startup"


def hook_files(argument: str = "") -> dict[str, str]:
    """The two files of the hook.

    Args:
        argument: What `install()` is called with: nothing in a wheel, the checkout's folder (a
            Python literal) in an editable install.

    Returns:
        Their text by their name. The leading underscore sorts the `.pth` before those of other
        packages: whatever they import at start-up already gets this `platform`.
    """
    return {
        f"{MODULE}.py": (ROOT / "platform" / "_startup_hook.py").read_text("utf-8"),
        f"{MODULE}.pth": f"import {MODULE}; {MODULE}.install({argument})\n",
    }


class BuildWithHook(build_py):
    """Writes the hook into the build folder, from which wheels are made."""

    def run(self) -> None:
        """Builds the packages, then adds the hook."""
        super().run()
        if self.editable_mode:
            return
        for name, text in hook_files().items():
            Path(self.build_lib, name).write_text(text, "utf-8")


class EditableWithHook(editable_wheel):
    """Adds the hook to the wheel that an editable install is made of."""

    def run(self) -> None:
        """Makes the wheel, then adds the hook to it."""
        super().run()
        for wheel in Path(self.dist_dir).glob("*.whl"):
            add_to_wheel(wheel, hook_files(ascii(str(ROOT))))


def add_to_wheel(wheel: Path, files: dict[str, str]) -> None:
    """Rewrites a wheel with more files in it, and its RECORD with their hashes.

    Args:
        wheel: The wheel, which is replaced.
        files: Text by name, placed at the top of the wheel.
    """
    with zipfile.ZipFile(wheel) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    record = next(name for name in content if name.endswith(".dist-info/RECORD"))
    lines = content.pop(record).decode("utf-8").splitlines()
    for name, text in files.items():
        content[name] = text.encode("utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).decode("ascii")
        lines.insert(0, f"{name},sha256={digest.rstrip('=')},{len(content[name])}")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr(record, "\n".join(lines) + "\n")


setup(cmdclass={"build_py": BuildWithHook, "editable_wheel": EditableWithHook})
