"""Write the sources of the site: the pages of `docs/`, four files of the root, and built pages.

Every Markdown file and notebook in `docs/` is a page. `docs/site/navigation.yaml` orders the pages;
pages without a line there come last. A link to a page leads to that page, and a link to another
file of the repository leads to a copy of it. Any other relative link stops the build.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import yaml

from docs.pages import accountants, advice, api, columns, keys, methods, notebooks, reproduce
from docs.pages.markdown import relinked

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAVIGATION = DOCS / "site" / "navigation.yaml"
ABOVE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
BUILT: Mapping[str, Callable[[Path], str]] = {
    "accountants.md": accountants.page,
    "columns.md": columns.page,
    "keys.md": keys.page,
    "methods.md": methods.page,
    "reproduce.md": reproduce.page,
}
"""Pages below `reference/`, each with the function that builds it for a folder."""
REPRODUCE = "reference/reproduce.md"
"""The one page of all files in `docs/papers/`."""
FILES = "files"
LISTS = {
    "adr": ("Decisions", "Why Sotto is built as it is."),
    "results": ("Results", "Measurements, and the commands that repeat them."),
}
LEFT_OVER = "More"


@dataclass(frozen=True)
class Section:
    """A part of the navigation.

    Attributes:
        title: Its title.
        pages: Names of its pages in the site.
        called: Titles of pages in the navigation that differ from the pages' own titles.
    """

    title: str
    pages: tuple[str, ...]
    called: Mapping[str, str] = field(default_factory=dict)


def write(folder: Path) -> None:
    """Replace the content of a folder with all sources.

    Raises:
        ValueError: If a link or a line of the navigation leads to no page or file.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pages = _own_pages()
    texts = _texts(pages, folder)
    texts |= {f"{name}/index.md": _list(name, pages.values()) for name in LISTS}
    sections = navigation(NAVIGATION, sorted(texts))
    texts["index.md"] += "\n" + "\n".join(map(_toctree, sections))
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _own_pages() -> dict[Path, str]:
    """Return the name in the site of each page that is a file of the repository."""
    found = {ROOT / name: name.lower() for name in ABOVE}
    for path in sorted((*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))):
        place = path.relative_to(DOCS)
        if place.parts[0] != "papers" and not any(part.startswith(".") for part in place.parts):
            found[path] = place.with_suffix(".md").as_posix()
    return found


def _texts(pages: Mapping[Path, str], folder: Path) -> dict[str, str]:
    texts = {}
    for path, name in pages.items():
        place = (folder / name).parent
        place.mkdir(parents=True, exist_ok=True)
        text = notebooks.page(path, place) if path.suffix == ".ipynb" else path.read_text("utf-8")
        texts[name] = _led(advice.filled(text), path.parent, name, pages, folder)
    for short, page in BUILT.items():
        name = f"reference/{short}"
        texts[name] = _led(page(folder / "reference"), folder / "reference", name, pages, folder)
    return texts | {f"api/{name}": text for name, text in api.pages().items()}


def _led(text: str, place: Path, name: str, pages: Mapping[Path, str], folder: Path) -> str:
    """Return the text of a page with its links changed for the site.

    Args:
        text: Markdown.
        place: The folder from which the links start.
        name: The name of the page in the site.
        pages: Names of pages by file.
        folder: The folder of the sources.
    """
    start = PurePosixPath(name).parent

    def lead(link: str) -> str:
        target = (place / link).resolve()
        if target.is_relative_to(folder):
            return link
        return os.path.relpath(_target(target, pages, folder, f"{name}: {link}"), start)

    return relinked(text, lead)


def _target(target: Path, pages: Mapping[Path, str], folder: Path, told: str) -> str:
    """Return the place of a file or folder of the repository in the site.

    Raises:
        ValueError: If there is no such file.
    """
    if target in pages:
        return pages[target]
    if target.is_relative_to(DOCS / "papers") and target.suffix == ".md":
        return REPRODUCE
    if target.parent == DOCS and target.name in LISTS:
        return f"{target.name}/index.md"
    if not target.is_relative_to(ROOT) or not target.is_file():
        raise ValueError(f"{told} leads to no page and no file of this repository")
    name = f"{FILES}/{target.relative_to(ROOT).as_posix()}"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(target, folder / name)
    return name


def _list(name: str, pages: Sequence[str]) -> str:
    title, words = LISTS[name]
    found = sorted(page for page in pages if PurePosixPath(page).parent.name == name)
    listed = "\n".join(PurePosixPath(page).stem for page in found)
    return f"# {title}\n\n{words}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"


def navigation(path: Path, names: Sequence[str]) -> list[Section]:
    """Return the sections; each page is in one of them.

    Args:
        path: The YAML file of sections. A line with a star names any number of pages. Every other
            line names one page that must exist, and may put a title before it.
        names: Names of all pages. Pages that another page lists need no line.

    Raises:
        ValueError: If a line without a star names no page.
    """
    listed = {"index.md"} | {name for name in names if PurePosixPath(name).parent.name in LISTS}
    listed |= {name for name in names if name.startswith("api/")}
    found = []
    for title, lines in yaml.safe_load(path.read_text("utf-8")).items():
        section = _section(title, lines, names)
        listed |= set(section.pages)
        found.append(section)
    rest = tuple(name for name in names if name not in listed)
    return [*found, Section(LEFT_OVER, rest)] if rest else found


def _section(title: str, lines: Sequence[str | Mapping[str, str]], names: Sequence[str]) -> Section:
    called = {
        page: name for line in lines if not isinstance(line, str) for name, page in line.items()
    }
    places = [line if isinstance(line, str) else next(iter(line.values())) for line in lines]
    return Section(title, tuple(page for place in places for page in _named(place, names)), called)


def _named(line: str, names: Sequence[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, line)]
    if not found and "*" not in line:
        raise ValueError(f"{NAVIGATION.name}: {line!r} is no page")
    return found


def _toctree(section: Section) -> str:
    places = (name.removesuffix(".md") for name in section.pages)
    called = {name.removesuffix(".md"): title for name, title in section.called.items()}
    pages = "\n".join(f"{called[p]} <{p}>" if p in called else p for p in places)
    return f"```{{toctree}}\n:caption: {section.title}\n:maxdepth: 1\n\n{pages}\n```\n"
