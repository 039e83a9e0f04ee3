"""The report's PDF, read by a library that had no part in making it: all that it has to hold.

What is expected is computed here from the run's settings and its metrics, not from the report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.trunk._reports import read_pdf, report_of
from tests.trunk._runs import OS, Finished, Storage, gaussian_epsilon

NOISE, ROUNDS = 4.0, 2
SETTINGS = ("privacy.target_epsilon=null", f"privacy.noise_multiplier={NOISE}", f"rounds={ROUNDS}")
EPSILON = gaussian_epsilon(NOISE, ROUNDS)
ODDS = math.ceil(1e4 * (math.exp(EPSILON) + 1e-5) / (math.exp(EPSILON) + 1)) / 100


@pytest.fixture(scope="module")
def run(make_storage: Callable[[str], Storage]) -> Finished:
    return make_storage("fields").run(OS, *SETTINGS)


@pytest.fixture(scope="module")
def pdf(run: Finished) -> Any:
    return read_pdf(report_of(run))


@pytest.fixture(scope="module")
def said(pdf: Any) -> str:
    """All text, in the order in which it is read."""
    return " ".join(" ".join(page.extract_text() for page in pdf.pages).split())


def up(value: float) -> str:
    """A bound as it is printed: with two digits, rounded up."""
    return f"{math.ceil(100 * value - 1e-9) / 100:.2f}"


FIELDS = {
    "odds against the server": (
        rf"Against the server: of 100 guesses that would be right 50 times without the run, at most"
        rf" {ODDS:g} \[\d+\] are with it"
    ),
    "odds against peers": rf"Against peers: of 100 guesses .{{40,60}} at most {ODDS:g}",
    "odds against an observer": rf"Against an observer: of 100 guesses .{{40,60}} at most {ODDS:g}",
    "unit": "unit of privacy is one client with all of its data",
    "neighbouring relation": "neighbouring relation is replace_one: two worlds",
    "epsilon of the run": rf"Of the run, against server {up(EPSILON)} \[\d+\]",
    "delta": "at delta 1e-05",
    "flavour": "approximate differential privacy",
    "accountant": "The accountant is exact",
    "per release": rf"Epsilon of one alone .{{1,200}}{up(gaussian_epsilon(NOISE, 1))} \[\d+\]",
    "per round": rf"1 5 \[\d+\] .{{1,60}} {up(gaussian_epsilon(NOISE, 1))} \[\d+\]",
    "lifetime": rf"Over a client's lifetime {up(EPSILON)} \[\d+\]",
    "left": "Left of the run's limit|Limit of the run none",
    "left of a lifetime": "Left of a lifetime's limit no limit",
    "what a lying server breaks": "If the server lies about the model, .{1,60} epsilon holds",
    "what k clients break": r"From \d+ clients on, together with the server",
    "what lying uploads break": "However many clients lie about their uploads",
    "sizes": "Sizes: ",
    "participation": "Participation: ",
    "timing": "Timing: ",
    "tuning": "Tuning: ",
    "selection": "Selection: ",
    "linkable pool": "The expert pool is linkable",
    "composition": "composed all rounds, attempts and channels",
    "post-processing": "is post-processing and costs nothing",
    "mechanism": "Mechanism upload_noise: every client adds all of the noise",
    "randomness": "Randomness of the noise the operating system's entropy",
    "floating point": "Floating point not covered",
    "side channels": "Timing, memory, power and crashes of native code: not covered",
    "accuracy": r"Mean over clients {mean} \[\d+\]",
    "worst client": r"Worst client {worst} \[\d+\]",
    "gain over local": r"Gain over each client alone {gain} points \[\d+\]",
    "worth of sharing": "Worth of sharing not measured in this run",
    "where data came from": "Data set shapes: ",
    "security": "Security at rest: .{1,200} not encrypted by this program",
    "retention": "Kept for good: ledger, audit log",
    "empirical lower bound": "so no empirical lower bound is stated",
    "head of the log": r"Log over all runs \d+ \[\d+\] leaves, root [0-9a-f]{64}",
    "signed heads": r"Heads signed by sotto/",
    "versions": r"python 3\.\d+\.\d+",
    "hazards": "NIST SP 800-226",
    "warnings": "Read first: ",
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_independent_reader_finds_the_field(run: Finished, said: str, field: str) -> None:
    accuracy = run.summary["final"]["accuracy"]
    known = {
        "{mean}": f"{100 * accuracy['mean']:.1f}%",
        "{worst}": f"{100 * accuracy['worst']:.1f}%",
        "{gain}": re.escape(f"{100 * run.summary['gain_over_local']:+.1f}"),
    }
    pattern = FIELDS[field]
    for name, value in known.items():
        pattern = pattern.replace(name, value)
    # Long words are broken where a line ends.
    assert re.search(pattern, said) or re.search(pattern.replace(" ", ""), said.replace(" ", "")), (
        field
    )


def test_warnings_come_first_then_what_is_protected_then_numbers(said: str) -> None:
    places = [
        said.index(text)
        for text in (
            "Read first: ",
            "unit of privacy is",
            "neighbouring relation is",
            "Against the server: of 100",
            "Of the run, against server",
        )
    ]
    assert places == sorted(places)


def test_every_hazard_is_answered_or_left_open_in_words(said: str) -> None:
    _, _, listed = said.rpartition("NIST SP 800-226")
    answers = re.findall(r"\b(answered|open|hazard|not covered|holds)\b", listed)
    assert len(answers) >= 10


def test_every_number_leads_to_its_leaf(pdf: Any, said: str) -> None:
    """Each mark is a link within the file, to a row that names leaves or how to check them."""
    links = [
        annotation.get_object()
        for page in pdf.pages
        for annotation in page.get("/Annots", [])
        if annotation.get_object().get("/Subtype") == "/Link"
    ]
    known = set(pdf.named_destinations)
    goals = {str(link["/Dest"]) for link in links if "/Dest" in link}
    assert links and goals <= known
    assert not any("/URI" in str(link.get("/A", "")) for link in links)
    marks = {int(number) for number in re.findall(r"\[(\d+)\]", said)}
    assert marks == set(range(1, max(marks) + 1)) and len(marks) > 10
    for number in marks:
        assert f"proof-{number}" in goals
    assert "sotto audit prove" in said.replace("au dit", "audit")


def test_the_file_is_tagged(run: Finished, pdf: Any) -> None:
    catalog = pdf.trailer["/Root"]
    assert catalog["/MarkInfo"]["/Marked"] and catalog["/Lang"] == "en"
    assert catalog["/ViewerPreferences"]["/DisplayDocTitle"]
    assert run.run_id in pdf.metadata.title
    assert "pdfuaid:part" in str(catalog["/Metadata"].get_data())
    for page in pdf.pages:
        assert page["/Tabs"] == "/S" and "/StructParents" in page


def test_every_header_cell_says_what_it_is_the_header_of(pdf: Any) -> None:
    """PDF/UA-1, 7.5: a header that no cell names must say it itself."""
    cells = list(header_cells(pdf.trailer["/Root"]["/StructTreeRoot"]))
    scopes = [scope for _, scope in cells]
    assert scopes.count("/Column") >= 20 and scopes.count("/Row") >= 20
    assert all((scope == "/Column") == (group == "/THead") for group, scope in cells)


def header_cells(node: Any, group: str = "") -> Iterator[tuple[str, str]]:
    """The row group of each header cell, and its scope."""
    found = node.get_object() if hasattr(node, "get_object") else node
    if not isinstance(found, dict):
        return
    kind = str(found.get("/S", ""))
    if kind == "/TH":
        yield group, str(found["/A"]["/Scope"])
    kids = found.get("/K", [])
    for kid in kids if isinstance(kids, list) else [kids]:
        yield from header_cells(kid, kind if kind.startswith("/T") and kind != "/TR" else group)
