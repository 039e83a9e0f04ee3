"""The live page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.trunk._pages import TOKEN
from tests.trunk._runs import SMALL
from tests.trunk.test_page import hostile, token_file
from tests.trunk.test_page_server import serving

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt: chromium)"),
    # Its driver runs in a process whose pipes are closed after the loop that they belong to.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WAIT = 20_000
"""Milliseconds for what the page shows by itself."""
ROUNDS = 24


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        # The tests run as root in a container, where its own sandbox cannot be set up.
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def tab(browser: playwright.Browser) -> Iterator[playwright.Page]:
    """A tab without a complaint at the end, but that a server which was killed does not answer."""
    context = browser.new_context(viewport=DESK)
    context.set_default_timeout(WAIT)
    page, said = context.new_page(), []
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
    yield page
    context.close()
    assert [one for one in said if "net::ERR_" not in one] == []


def hold_between_rounds(process: subprocess.Popen[bytes], database: Path) -> int:
    while process.poll() is None:
        if database.exists() and (rounds := rounds_in(database)):
            process.send_signal(signal.SIGSTOP)
            return rounds
        time.sleep(0.01)
    pytest.fail("the run ended before it was seen")


def rounds_in(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        with suppress(sqlite3.OperationalError):
            # Locked, or not made yet: the caller looks again.
            return int(connection.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
    return 0


def test_it_follows_a_run_that_goes_on(tab, storage, child_environment, tmp_path):
    config = tmp_path / "small.yaml"
    config.write_text(SMALL.replace("rounds: 3", f"rounds: {ROUNDS}"))
    with serving(child_environment, storage.url) as (_, port):
        tab.goto(f"http://127.0.0.1:{port}/")
        assert "There is no run in" in tab.locator("main").inner_text()
        tab.evaluate("window.same = 'page'")
        command = [sys.executable, "-m", "platform.coordinator", "run", str(config)]
        command += ["--storage", storage.url]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with (
            subprocess.Popen(command, env=child_environment, **streams) as process,
            ExitStack() as ended,
        ):
            # Or it would stand still for ever where this test fails.
            ended.callback(process.kill)
            held = hold_between_rounds(process, storage.file)
            link = tab.get_by_role("link", name=re.compile("^small-"))
            link.wait_for(timeout=3 * WAIT)
            assert tab.evaluate("window.same") == "page"
            link.click()
            tab.evaluate("window.same = 'run'")
            shown = tab.locator("svg circle")
            shown.nth(0).wait_for()
            # No style or script is in the page itself, and its style sheet was taken.
            assert tab.locator("[style], style, script:not([src])").count() == 0
            assert tab.locator("polyline").evaluate("e => getComputedStyle(e).fill") == "none"
            # A round may have ended after the count, and before the process stood still.
            assert held <= shown.count() < ROUNDS
            process.send_signal(signal.SIGCONT)
            shown.nth(ROUNDS - 1).wait_for(timeout=3 * WAIT)
            _, said = process.communicate()
            assert process.returncode == 0, said
        tab.get_by_text("over its twin").wait_for()
        # It grew while the run went on, and nobody loaded it anew.
        assert tab.evaluate("window.same") == "run"


def test_hostile_text_runs_nowhere(tab, own_copy, child_environment):
    hostile(own_copy)
    with serving(child_environment, own_copy.storage.url) as (_, port):
        for path in ("/", "/audit", "/?q=<img src=x onerror=alert(1)>"):
            tab.goto(f"http://127.0.0.1:{port}{path}")
            tab.wait_for_timeout(300)
            assert tab.locator("main img, main script").count() == 0
        tab.goto(f"http://127.0.0.1:{port}/audit")
        assert "<script>alert(1)</script>" in tab.locator("main").inner_text()


def barriers(page: playwright.Page) -> list[str]:
    """What axe finds on the page as it stands, and whether it scrolls sideways."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = [
        f"{page.url}: {one['id']}: {one['nodes'][0]['html']}"
        for one in axe.Axe().run(page).response["violations"]
    ]
    page.evaluate("window.scrollTo(100, 0)")
    return found + ([f"{page.url} scrolls sideways"] if page.evaluate("window.scrollX") else [])


VIEWS = (
    *("/", "/?q=small", "/?q=nothing-is-called-so", "/run?id={run}", "/run?id=unknown"),
    *("/clients", "/audit", "/audit?action=round.committed&round=2", "/audit?round=two"),
    *("/audit?text=nothing-says-so", "/verify"),
)


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_view_has_a_barrier(browser, noised_run, child_environment, size):
    with serving(child_environment, noised_run.storage.url) as (_, port):
        page = browser.new_page(viewport=size)
        found: list[str] = []
        shown = set()
        for view in VIEWS:
            page.goto(f"http://127.0.0.1:{port}{view.format(run=noised_run.run_id)}")
            shown.add(page.locator("main").inner_text())
            found += barriers(page)
        page.close()
    assert found == []
    # Each was a view of its own, not the same page of errors again and again; of one run the search
    # for it shows what the list does.
    assert len(shown) == len(VIEWS) - 1


def test_what_a_view_says_has_no_barrier(browser, own_copy, child_environment, tmp_path):
    """Verified and failed; without any run; shut, and shut after a wrong token."""
    page, found = browser.new_page(viewport=PHONE), []
    with serving(child_environment, own_copy.storage.url) as (_, port):
        page.goto(f"http://127.0.0.1:{port}/verify")
        for said in ("HOLDS: ", "FAILED: "):
            page.get_by_role("button", name="Verify all records now").click()
            page.get_by_text(said).wait_for()
            found += barriers(page)
            hostile(own_copy)
        page.goto(f"http://127.0.0.1:{port}/run?id={own_copy.run_id}")
        found += barriers(page)
    empty, options = (
        f"sqlite:///{tmp_path / 'empty.db'}",
        ("--token-file", str(token_file(tmp_path, TOKEN))),
    )
    with serving(child_environment, empty, *options) as (_, port):
        page.goto(f"http://127.0.0.1:{port}/")
        found += barriers(page)
        shown = (page.get_by_role("alert"), page.get_by_text("There is no run in"))
        for token, answer in zip(("x" * 40, TOKEN), shown, strict=True):
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Enter").click()
            answer.wait_for()
            found += barriers(page)
        assert TOKEN not in page.url and TOKEN not in page.content()
        page.get_by_role("button", name="Leave").click()
        page.get_by_label("Token").wait_for()
    page.close()
    assert found == []
