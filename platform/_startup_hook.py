"""Makes `import platform` find this package from any folder, once Sotto is installed.

Python looks for `platform` in the folder of the program, then in the standard library, and only
then among installed packages, so an installed package of that name is never reached. Every
install (wheel and editable) therefore carries a copy of this file as the top-level module
`_sotto_startup`, and a `.pth` line that calls `install()` when the interpreter starts, before
anything is imported. setuptools does the same for distutils.

This file runs at every start of the interpreter: it imports nothing that is not loaded anyway.

pytest rewrites all modules of a distribution with a plugin (`platform.contract.plugin`), and warns
of modules that were imported earlier: PYTEST_DONT_REWRITE says that this one needs no rewriting.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

NAME = "platform"


class PlatformFinder:
    """Finds the installed package `platform`, and nothing else.

    Attributes:
        folder: The folder that holds `platform/`: site-packages, or the checkout of an
            editable install.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Answer the import system (see `importlib.abc.MetaPathFinder`); None for every other name.

        Folders before the standard library on the path, such as a checkout in the current
        folder, go first, as for any other module: a checkout never gets half its packages
        from an installed wheel. Under `python -m platform.NAME` they count only if they hold
        this package, and not, say, a `platform.py`. If the installed package is gone, Python
        finds the standard library's module, as it would without the hook.
        """
        if fullname != NAME:
            return None
        before = _before_standard_library(sys.path)
        command = " ".join(sys.orig_argv).replace(" -m ", " -m")
        if f" -m{NAME}." in command:
            before = [
                entry
                for entry in before
                if os.path.isfile(os.path.join(entry or os.curdir, NAME, "_startup_hook.py"))
            ]
        for folders in (before, [self.folder]):
            spec = PathFinder.find_spec(NAME, folders)
            if spec is not None and spec.origin is not None:
                return spec
        return None


def install(folder: str | None = None) -> None:
    """Put the finder in front of the import system's own, once per interpreter.

    Args:
        folder: The folder that holds `platform/`; None for the one that holds this file.
    """
    finder = PlatformFinder(folder or os.path.dirname(os.path.abspath(__file__)))
    if not any(type(other).__name__ == "PlatformFinder" for other in sys.meta_path):
        sys.meta_path.insert(0, finder)


def _before_standard_library(entries: list[str]) -> list[str]:
    """Return the entries of the path that Python searches before its own library."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    for position, entry in enumerate(entries):
        if os.path.abspath(entry or os.curdir) == library:
            return entries[:position]
    return []
