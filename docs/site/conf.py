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
# The page of keys is a list of definitions.
myst_enable_extensions = ["deflist"]
# Anchors are the same as on forges, where people read these files too.
myst_heading_anchors = 6
html_theme = "furo"
html_title = f"Sotto {release}"
# Readers may have no network, so a page loads only files beside it.
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["phone.css"]
html_js_files = ["tables.js"]
html_show_sphinx = False
html_show_copyright = False
# The interface's pages name classes of internal modules, which have no page.
nitpicky = False
python_use_unqualified_type_names = True
# An annotation is shown as it was written.
python_maximum_signature_line_length = 88
pygments_style = "friendly"
