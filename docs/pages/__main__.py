"""Write the sources of the documents' site: `python -m docs.pages [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.pages import site

FOLDER = site.ROOT / "build" / "docs-source"
"""Git ignores it."""

if __name__ == "__main__":
    site.write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
