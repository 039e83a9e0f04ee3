"""The live page's addresses: what they show, that it is what the commands say, and no markup."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import Connection, text

from platform.cli import page_records
from platform.relay.packets import ClientStatus, Status
from storage import open_database
from tests.trunk._pages import OWN, page_of, tags, words
from tests.trunk._runs import Command, Finished, Storage, of_clients
from tests.trunk._tampering import edit

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}\x1b[2J\u202eabc"
VISIBLE = r"\x1b[2J\u202eabc"
ALLOWED = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "nav", "strong", "span"),
    *("main", "h1", "h2", "form", "div", "label", "input", "button", "p", "section", "ul", "li"),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "line", "text"),
    *("polyline", "circle"),
}


def run_page(run: Finished) -> str:
    return f"/run?{urlencode({'id': run.run_id})}"


def test_runs_are_listed_with_what_their_last_round_states(noised_run: Finished) -> None:
    answer = page_of(noised_run.storage).get("/")
    last = noised_run.summary["rounds"][-1]
    assert answer.status_code == 200
    assert f"{noised_run.run_id} small finished" in words(answer.text)
    assert f" 3 {100 * last['accuracy']['mean']:.1f}% 8.00/8.00/8.00 " in words(answer.text)


def test_a_run_shows_what_report_and_budget_say(noised_run: Finished, sotto: Command) -> None:
    shown = words(page_of(noised_run.storage).get(run_page(noised_run)).text)
    place = ("--storage", noised_run.storage.url)
    for warning in sotto("report", noised_run.run_id, *place, "--json").document["warnings"]:
        assert " ".join(warning.split()) in shown
    head = noised_run.summary["audit_head"]
    assert f"{head['count']}:{head['hash']}" in shown
    for client in sotto("budget", noised_run.run_id, *place, "--json").document["clients"]:
        assert f"{client['pseudonym']} 8.00/8.00/8.00" in shown
    assert "epsilon for server 8.00 at delta 1e-05" in shown


def test_accuracy_against_epsilon_has_a_mark_for_each_round(noised_run: Finished) -> None:
    html = page_of(noised_run.storage).get(run_page(noised_run)).text
    marks = [found for tag, found in tags(html) if tag == "circle"]
    rounds = noised_run.summary["rounds"]
    # Across from 0 at 84 to 8 at 616, up from 0% at 256 to 100% at 20.
    assert [float(str(one["cx"])) for one in marks] == pytest.approx(
        [84 + 532 * one["epsilon"]["server"] / 8 for one in rounds], abs=0.06
    )
    assert [float(str(one["cy"])) for one in marks] == pytest.approx(
        [256 - 236 * one["accuracy"]["mean"] for one in rounds], abs=0.06
    )


def test_without_noise_nothing_is_drawn_and_it_says_why(plain_run: Finished) -> None:
    shown = words(page_of(plain_run.storage).get(run_page(plain_run)).text)
    assert "no round has both an accuracy and a finite epsilon" in shown
    assert "inf/inf/" in shown


def test_the_audit_log_is_searched_as_by_audit_query(noised_run: Finished, sotto: Command) -> None:
    page = page_of(noised_run.storage)
    place = ("--storage", noised_run.storage.url, "--json")
    for asked, option in (
        ({"action": "round.committed"}, ("--action", "round.committed")),
        ({"round": "2"}, ("--round", "2")),
        ({"text": "survivors", "channel": "sum"}, ("--detail", "survivors", "--channel", "sum")),
        ({"status": "released"}, ("--status", "released")),
    ):
        found = sotto("audit", "query", *option, *place).document
        html = page.get(f"/audit?{urlencode(asked)}").text
        assert found and f"{len(found)} entries, oldest first." in words(html)
        assert sum(tag == "tr" for tag, _ in tags(html)) == len(found) + 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"actor": "nobody"}, "actor: 'nobody' matches nothing; valid: "),
        ({"round": "-1"}, "round: '-1' is not valid"),
        ({"round": "9" * 30}, "is not valid"),
        ({"run": "nowhere"}, "RUN: 'nowhere' is unknown"),
        ({"since": "soon"}, "since: 'soon' is not an ISO time"),
        ({"status": "odd"}, "status: 'odd' is not valid"),
    ],
)
def test_a_search_that_can_match_nothing_says_so_and_stays(
    noised_run: Finished, asked: dict[str, str], said: str
) -> None:
    html = page_of(noised_run.storage).get(f"/audit?{urlencode(asked)}").text
    assert said in words(html)
    (name, value), *_ = asked.items()
    assert ("input", value) in [(t, a.get("value")) for t, a in tags(html) if a.get("name") == name]


def test_verify_holds_and_names_what_was_tampered_with(own_copy: Finished) -> None:
    page = page_of(own_copy.storage)
    shown = words(page.post("/verify", headers=OWN).text)
    assert "HOLDS: all records of 1 runs agree." in shown
    assert own_copy.head.split(":")[1] in shown

    def forge(connection: Connection) -> None:
        connection.execute(text("UPDATE audit SET actor = 'somebody' WHERE sequence = 4"))

    edit(own_copy.storage.file, forge)
    shown = words(page.post("/verify", headers=OWN).text)
    assert "FAILED: " in shown and "HOLDS" not in shown
    assert "entry 4" in shown
    # No number of the run is stated any more.
    answer = page.get(run_page(own_copy))
    assert answer.status_code == 500 and "epsilon for server" not in words(answer.text)


def test_a_row_that_does_not_fit_its_digest_is_a_sentence_not_a_number(own_copy: Finished) -> None:
    with closing(sqlite3.connect(own_copy.storage.file)) as raw:
        triggers = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("UPDATE runs SET name = 'other'")
        raw.commit()
    page = page_of(own_copy.storage)
    assert page.get("/").status_code == 500
    assert "is damaged" in words(page.get("/").text)
    assert page.get("/metrics").status_code == 503
    assert "FAILED" in words(page.post("/verify", headers=OWN).text)


def hostile(run: Finished) -> None:
    """Writes hostile text into every free field that the page shows, digests and chain redone."""

    def write(connection: Connection) -> None:
        connection.execute(text("UPDATE runs SET name = :bad"), {"bad": HOSTILE})
        connection.execute(
            text("UPDATE audit SET actor = :bad, action = :bad, channel = :bad, detail = :json"),
            {"bad": HOSTILE, "json": json.dumps({HOSTILE: HOSTILE})},
        )

    edit(run.storage.file, write)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/audit",
        f"/?{urlencode({'q': HOSTILE})}",
        f"/run?{urlencode({'id': HOSTILE})}",
        f"/audit?{urlencode({'actor': HOSTILE, 'text': HOSTILE, 'run': HOSTILE})}",
        f"/audit?{urlencode({'actor': HOSTILE})}",
    ],
)
def test_hostile_text_is_shown_as_it_is_and_never_obeyed(own_copy: Finished, path: str) -> None:
    hostile(own_copy)
    html = page_of(own_copy.storage).get(path).text
    assert "\x1b" not in html and "\u202e" not in html
    found = tags(html)
    assert {tag for tag, _ in found} <= ALLOWED
    assert [a.get("src") for tag, a in found if tag == "script"] == ["/page.js"]
    assert not [a for _, a in found if any(n.startswith("on") or n == "style" for n in a)]
    # Neither the template engine nor the terminal of whoever saves the page takes it for more.
    assert "{{ 7*7 }}" in html and VISIBLE in html


def test_an_escape_is_shown_in_the_fields_of_a_search(noised_run: Finished) -> None:
    html = page_of(noised_run.storage).get(f"/?{urlencode({'q': HOSTILE})}").text
    ((_, field),) = [(t, a) for t, a in tags(html) if a.get("name") == "q"]
    assert str(field["value"]).startswith("<script>alert(1)</script>\"'><img")


@pytest.mark.parametrize("name", ["' OR 1=1 --", "x'; DROP TABLE runs; --", '"', "%", "_", "\\"])
def test_sql_in_a_search_is_text(noised_run: Finished, name: str) -> None:
    page = page_of(noised_run.storage)
    before = noised_run.storage.rows("SELECT count(*) FROM runs")
    for path in ("/audit?" + urlencode({"text": name, "run": noised_run.run_id}),):
        assert "0 entries" in words(page.get(path).text) or name in ('"', "_")
    assert page.get(f"/run?{urlencode({'id': name})}").status_code == 404
    if name not in ("_",):
        assert "No run matches." in words(page.get(f"/?{urlencode({'q': name})}").text)
    assert noised_run.storage.rows("SELECT count(*) FROM runs") == before


def test_metrics_have_runs_and_no_client(noised_run: Finished) -> None:
    answer = page_of(noised_run.storage).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    run, last = noised_run.run_id, noised_run.summary["rounds"][-1]
    assert f'sotto_rounds{{run="{run}"}} 3.0\n' in answer.text
    assert 'sotto_runs{status="finished"} 1.0\n' in answer.text
    spent = last["epsilon"]["peers"]
    assert f'sotto_epsilon{{adversary="peers",run="{run}"}} {spent}\n' in answer.text
    for client, (pseudonym, _) in noised_run.identities().items():
        assert pseudonym not in answer.text and client not in answer.text


def test_metrics_of_no_noise_are_infinite(plain_run: Finished) -> None:
    assert re.search(
        r'sotto_epsilon\{adversary="server",run="[^"]*"\} \+Inf\n',
        page_of(plain_run.storage).get("/metrics").text,
    )


def test_before_the_first_run_the_page_is_there_and_makes_nothing(storage: Storage) -> None:
    page = page_of(storage)
    assert "There is no run in" in words(page.get("/").text)
    assert page.get("/metrics").text == ""
    assert "there is no database" in words(page.get("/audit").text)
    assert page.get("/run?id=x").status_code == 404
    assert not storage.file.exists()


def test_a_database_that_is_made_or_replaced_later_is_seen(
    storage: Storage, noised_run: Finished
) -> None:
    page = page_of(storage)
    page.get("/")
    shutil.copy(noised_run.storage.file, storage.file)
    assert noised_run.run_id in page.get("/").text
    other = storage.folder / "other.db"
    with open_database(f"sqlite:///{other}"):
        pass
    other.rename(storage.file)
    assert "0 runs." in words(page.get("/").text)


def test_reading_writes_nothing_and_holds_nothing_open(own_copy: Finished) -> None:
    def files() -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in own_copy.storage.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    before, page = files(), page_of(own_copy.storage)
    for path in ("/", run_page(own_copy), "/audit", "/metrics", "/verify"):
        page.get(path)
    page.post("/verify", headers=OWN)
    assert files() == before
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert str(own_copy.storage.file) not in opened


def test_a_writer_is_not_kept_waiting_by_pages_that_are_read(own_copy: Finished) -> None:
    page = page_of(own_copy.storage)
    # Its patience is nothing: one reader in its way, and erasing old pages would fail.
    with open_database(own_copy.storage.url, busy_timeout=0.0) as database:
        for number in range(5):
            for path in ("/", run_page(own_copy), "/audit", "/metrics"):
                assert page.get(path).status_code in (200, 500)
            with database.unit_of_work() as uow:
                uow.audit.append(
                    own_copy.run_id,
                    actor="coordinator",
                    action="model.exported",
                    detail={"n": number},
                )
                uow.commit()
    assert "1 entries" in words(page.get("/audit?text=%22n%22%3A4").text)


def test_the_newest_runs_come_first_and_others_on_further_pages(storage: Storage) -> None:
    with open_database(storage.url) as database, database.unit_of_work() as uow:
        for number in range(120):
            uow.runs.create(
                f"run-{number:03}",
                name=f"name-{number % 2}",
                config_json="{}",
                config_digest="0",
                versions_json="{}",
            )
        uow.commit()
    page = page_of(storage)
    found = [re.findall(r">(run-\d+)<", page.get(f"/?page={n}").text) for n in (1, 2, 3, 4)]
    assert [len(one) for one in found] == [50, 50, 20, 0]
    assert [name for one in found for name in one] == [f"run-{n:03}" for n in range(119, -1, -1)]
    assert "120 runs, 50 of them here." in words(page.get("/").text)
    assert "60 runs, 50 of them here." in words(page.get("/?q=NAME-1").text)
    assert "older" in words(page.get("/?q=name-1").text)
    assert "newer" not in words(page.get("/?q=name-1").text)
    for odd in ("0", "-1", "x", "9" * 30, "\u0663"):
        assert page.get(f"/?{urlencode({'page': odd})}").status_code == 200


def test_connected_clients_are_those_of_the_hub(noised_run: Finished, tmp_path: Path) -> None:
    shown = words(page_of(noised_run.storage).get("/clients").text)
    assert "Not known: `serve --socket`" in shown
    nobody = page_of(noised_run.storage, socket=tmp_path / "hub.sock").get("/clients")
    assert nobody.status_code == 400 and "Nobody answers at" in words(nobody.text)


def test_who_is_connected_is_what_the_hub_says(
    noised_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ClientStatus(name="north", reachable=True, asked="train", last="keys")
    gone = ClientStatus(name=HOSTILE, reachable=False, asked="", last="")
    monkeypatch.setattr(page_records, "status_of", lambda *_: Status((there, gone)))
    html = page_of(noised_run.storage, socket=tmp_path / "hub.sock").get("/clients").text
    assert "1 of 2 can be reached." in words(html)
    assert "north yes train keys" in words(html)
    assert {tag for tag, _ in tags(html)} <= ALLOWED and VISIBLE in html


def test_pseudonyms_are_all_that_is_told_of_simulated_clients(noised_run: Finished) -> None:
    html = page_of(noised_run.storage).get(run_page(noised_run)).text
    names: dict[str, Any] = of_clients(noised_run.folder, "SELECT client, pseudonym FROM identity")
    assert names and not any(re.search(rf"\b{re.escape(name)}\b", html) for name in names)
