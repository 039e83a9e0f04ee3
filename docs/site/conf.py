"""How Sphinx lays out the site; `make docs` runs it on what `docs.pages` wrote."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "Sotto"
author = "The Sotto authors"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "version"
]
extensions = ["myst_parser"]
# Anchors are those of the forges where these files are read too.
myst_heading_anchors = 6
html_theme = "furo"
html_title = f"Sotto {release}"
# Only what lies beside the pages is loaded: they are read without a network.
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# Links of the interface's pages lead to names that are there.
nitpicky = False
python_use_unqualified_type_names = True
# An annotation is shown as it was written.
python_maximum_signature_line_length = 88
pygments_style = "friendly"
