"""The distribution is `sotto-fl`, which the package index does not have: no text installs it there.

The index knows another project by the name `sotto`, so `pip install sotto[pdf]` runs a stranger's
code. Every document and every message installs from the checkout instead.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.repository._source import ROOT
from tests.repository.test_docs import FENCE, name_of, repository_files, text_of

# `pip install sotto`, also with options before the name, and by whichever tool; not a wheel's file.
FROM_THE_INDEX = re.compile(
    r"\b(?:pip[\d.]*|pipx|uv(?:\s+pip)?|uv\s+tool)\s+(?:install|download|add|run)\b[^\n`]*?"
    r"""(?:\s|['"])sotto(?:[-_.]fl)?(?![\w-]|\.\w)""",
    re.IGNORECASE,
)
# `sotto[pdf]`: an extra by the name that pip would look up.
EXTRA_BY_NAME = re.compile(r"\bsotto(?:[-_.]fl)?\[", re.IGNORECASE)
# `pip install -e '.[pdf]'`, which takes this checkout.
FROM_THE_CHECKOUT = re.compile(r"install -e '\.\[([\w,-]+)\]'")
WRITTEN = [path for path in repository_files() if path != Path(__file__)]


def from_the_index(text: str) -> list[str]:
    """What a text would have its reader install from the index."""
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)))
    found = [found[0] for part in (text, *spans) for found in FROM_THE_INDEX.finditer(part)]
    return found + [found[0] for found in EXTRA_BY_NAME.finditer(text)]


def project() -> dict[str, dict[str, object]]:
    """The table `project` of `pyproject.toml`."""
    found: dict[str, dict[str, object]] = tomllib.loads(
        (ROOT / "pyproject.toml").read_text("utf-8")
    )["project"]
    return found


def test_no_text_installs_sotto_from_the_index():
    found = {
        name_of(path): asked
        for path in WRITTEN
        if (asked := from_the_index(text_of(path) or "")) != []
    }
    assert found == {}


def test_every_extra_that_a_text_installs_exists():
    asked = {
        extra
        for path in WRITTEN
        for found in FROM_THE_CHECKOUT.findall(text_of(path) or "")
        for extra in found.split(",")
    }
    assert asked and asked <= project()["optional-dependencies"].keys()


FROM_FILES = (
    ".venv/bin/pip install -e '.[pdf]'",
    "/opt/sotto/bin/pip install --no-deps sotto_fl-0.1.0-py3-none-any.whl",
    "pip install --no-deps -r requirements.lock` and then `sotto run`",
    "Sotto in an environment (`pip install` with its extra `contract`)",
)


@pytest.mark.parametrize(
    "text",
    [
        "pip install sotto",
        "`pip install --upgrade sotto-fl`",
        "pip3 install -q sotto_fl==0.1.0",
        "uv pip install sotto.",
        "the extra `sotto[pdf]`",
        "run `pip install\nsotto` first",
    ],
)
def test_an_install_from_the_index_is_found(text: str):
    assert from_the_index(text)
    assert [*map(from_the_index, FROM_FILES)] == [[]] * len(FROM_FILES)


def test_the_command_keeps_its_name():
    found = project()
    assert found["name"] == "sotto-fl"
    assert found["scripts"] == {"sotto": "platform.cli.script:main"}
