"""The report's HTML and PDF: nothing hostile gets through, and everybody can read them."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from platform.results.report import rendering
from platform.results.report.blocks import Basis, Plot
from platform.results.report.document import Report
from platform.results.report.rendering import html_page, pdf_file
from tests.trunk._reports import Page, read_page, read_pdf, report_on
from tests.trunk._runs import NONE, OS, Storage
from tests.trunk._tampering import execute_and_rehash

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}{% raw %}&lt;\x1b[2J\u202e"
)
CHROMIUM = shutil.which("chromium")
EXECUTABLE = {"script", "iframe", "object", "embed", "form", "base", "img", "link", "audio"}


@pytest.fixture(scope="module")
def report(make_storage: Callable[[str], Storage]) -> Report:
    """Of two runs beside each other, with plots, a limit, and one client lost."""
    short = ("rounds=2", "secure_aggregation.enabled=false")
    storage = make_storage("pages")
    first, second = storage.run(OS, *short), storage.run(NONE, *short)
    return report_on(storage, first.run_id, second.run_id)


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return read_page(html_page(report))


def with_texts(value: Any, text: str) -> Any:
    """The same document with every text in it replaced, but for what links hang on."""
    if isinstance(value, str):
        return text
    if isinstance(value, tuple):
        return tuple(with_texts(one, text) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        kept = {"anchor", "anchors", "check"}
        changed = {
            one.name: with_texts(getattr(value, one.name), text)
            for one in fields(value)
            if one.name not in kept and not isinstance(value, Basis)
        }
        return replace(value, **changed)
    return value


def test_no_text_of_a_document_becomes_markup(report):
    hostile = with_texts(report, HOSTILE)
    html = html_page(replace(hostile, bases=report.bases))
    found, harmless = read_page(html), read_page(html_page(report))
    tags = [[(tag.name, sorted(tag.attributes)) for tag in one.tags] for one in (found, harmless)]
    assert tags[0] == tags[1]
    assert "{{7*7}}" in html and found.named("h1")[0].text == HOSTILE


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET versions_json = json_object('torch', '<script>alert(1)</script>')",
        "UPDATE audit SET detail = json_set(detail, '$.reason', '<script>alert(1)</script>')",
        "UPDATE ledger SET pseudonym = '<script>alert(1)</script>' || pseudonym",
    ],
)
def test_what_somebody_wrote_into_the_database_stays_text(sotto, own_copy, statement):
    execute_and_rehash(own_copy.storage.file, statement)
    place = ("--storage", own_copy.storage.url)
    answer = sotto("report", own_copy.run_id, *place, "--format", "html")
    assert "<script" not in answer.out and "<img" not in answer.out
    if answer.code == 0:
        assert not {tag.name for tag in read_page(answer.out).tags} & EXECUTABLE
    else:
        assert answer.out == "" and answer.err.startswith("error: ")


def test_the_page_is_one_file_that_fetches_nothing_and_runs_nothing(page):
    assert not {tag.name for tag in page.tags} & EXECUTABLE
    for tag in page.tags:
        assert not [name for name in tag.attributes if name.startswith("on")]
        assert "src" not in tag.attributes and "style" not in tag.attributes
        assert tag.attributes.get("href", "#").startswith("#")
    (style,) = page.named("style")
    assert "url(" not in style.text and "@import" not in style.text
    (policy,) = [t for t in page.named("meta") if "http-equiv" in t.attributes]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_every_number_has_a_link_to_what_it_rests_on(report, page):
    names = [tag.attributes["id"] for tag in page.tags if "id" in tag.attributes]
    assert len(names) == len(set(names))
    assert {tag.attributes["href"][1:] for tag in page.named("a")} <= set(names)
    numbers = [t for t in page.named("span") if t.attributes.get("class", "").startswith("number")]
    proofs = [t for t in page.named("a") if t.attributes.get("class") == "proof"]
    assert len(numbers) == len(proofs) > 30
    wanted = {f"#proof-{n}" for n in range(1, len(report.bases) + 1)}
    assert {t.attributes["href"] for t in proofs} == wanted


def test_pictures_say_in_words_what_they_show_and_do_not_count_on_colour(report, page):
    plots = [b for one in report.sections for b in one.blocks if isinstance(b, Plot)]
    pictures = page.named("svg")
    assert len(pictures) == len(plots) == 2
    for picture in pictures:
        assert picture.attributes["role"] == "img" and picture.attributes["aria-labelledby"]
    titles = [t.text for t in page.named("title") if "svg" in t.inside]
    assert titles == [f"{plot.title}. {plot.says}" for plot in plots]
    dashes = [t.attributes["stroke-dasharray"] for t in page.named("polyline")]
    assert len(dashes) == 3 and set(dashes) == {"none", "8 5"}
    said = {t.text for t in page.named("text")}
    assert {"mean over clients", "worst client", "limit 8"} <= said


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_finds_no_barrier_at_any_width(report, tmp_path, width):
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    file = tmp_path / "report.html"
    file.write_text(html_page(report))
    asked: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, offline=True)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        found = axe.Axe().run(page)
        page.evaluate("window.scrollTo(100, 0)")
        moved = page.evaluate("window.scrollX")
        browser.close()
    assert found.violations_count == 0, found.generate_report()
    # The page itself does not scroll sideways, and asks for nothing.
    assert moved == 0 and asked == [file.as_uri()]


@pytest.fixture(scope="module")
def weasyprint() -> Any:
    try:
        return rendering.load_weasyprint()
    except (ImportError, OSError) as error:
        pytest.skip(f"no PDF can be laid out here: {error}")


@pytest.mark.slow
def test_the_pdf_is_tagged_and_says_that_it_is_for_all(report):
    pdf = read_pdf(report)
    catalog = pdf.trailer["/Root"]
    assert catalog["/MarkInfo"]["/Marked"] and catalog["/Lang"] == "en"
    assert catalog["/ViewerPreferences"]["/DisplayDocTitle"]
    assert pdf.metadata.title == report.title
    assert "pdfuaid:part" in str(catalog["/Metadata"].get_data())
    kinds = Counter(structure(catalog["/StructTreeRoot"]))
    assert kinds["/H1"] == 1 and kinds["/Figure"] == 2
    assert kinds["/H2"] >= len(report.sections) + 1
    assert {"/Table", "/TH", "/TD", "/Caption", "/L", "/LI", "/Link", "/P"} <= kinds.keys()


def structure(node: Any) -> Iterator[str]:
    found = node.get_object() if hasattr(node, "get_object") else node
    if isinstance(found, dict):
        if "/S" in found:
            yield str(found["/S"])
            if found["/S"] == "/Figure":
                assert found["/Alt"]
        kids = found.get("/K", [])
        for kid in kids if isinstance(kids, list) else [kids]:
            yield from structure(kid)


@pytest.mark.slow
def test_a_pdf_is_written_and_another_file_is_left_alone(sotto, noised_run, tmp_path, weasyprint):
    file = tmp_path / "report.pdf"
    command = ("report", "latest", "--storage", noised_run.storage.url, "--format", "pdf")
    answer = sotto(*command, "--output", str(file))
    assert (answer.code, answer.err) == (0, "") and file.read_bytes().startswith(b"%PDF-1.7")
    assert file.stat().st_mode & 0o077 == 0
    before = file.read_bytes()
    again = sotto(*command, "--output", str(file))
    assert again.code == 2 and "exists already" in again.err and file.read_bytes() == before


def test_what_would_be_fetched_ends_the_making_of_a_pdf(report, monkeypatch, weasyprint):
    page = "<html lang='en'><title>t</title><body><img src='http://localhost/x'></body></html>"
    monkeypatch.setattr(rendering, "html_page", lambda _: page)
    with pytest.raises(weasyprint.urls.FatalURLFetchingError, match="Error fetching"):
        pdf_file(report)


def test_without_its_library_no_pdf_is_made(sotto, noised_run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    file = tmp_path / "report.pdf"
    report = ("report", "latest", "--storage", noised_run.storage.url, "--format", "pdf")
    answer = sotto(*report, "--output", str(file))
    assert (answer.code, answer.out) == (2, "") and not file.exists()
    assert "'.[pdf]'" in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "pdf"), "--output: is missing"),
        (("--format", "html", "--json"), "--json: prints"),
        (("--compare", "latest"), "--compare: "),
        (("--format", "html", "--output", "/proc/none/report.html"), "cannot be written"),
    ],
)
def test_what_is_not_valid_is_one_sentence(sotto, noised_run, arguments, said):
    answer = sotto("report", "latest", "--storage", noised_run.storage.url, *arguments)
    assert answer.code in (1, 2) and answer.out == ""
    assert said in answer.err and answer.err.count("\n") == 1
