"""The live page: what it shows, no markup, and who is let in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import text

from platform.cli import page_records
from platform.errors import ConfigError
from platform.relay.packets import ClientStatus, Status
from platform.results.page import server
from storage import open_database
from tests.trunk._pages import OWN, TOKEN, page_of, tags, words
from tests.trunk._runs import Finished, of_clients
from tests.trunk._tampering import edit

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}\x1b[2J\u202eabc"
VISIBLE = r"\x1b[2J\u202eabc"
ALLOWED = set(
    "html head meta title link script body a nav strong span main h1 h2 form div label input button"
    " p section ul li table thead tbody tr th td figure figcaption svg line text polyline"
    " circle g".split()
)


def run_page(run: Finished) -> str:
    return f"/run?{urlencode({'id': run.run_id})}"


def test_a_run_shows_what_report_and_budget_say(noised_run, sotto):
    last = noised_run.summary["rounds"][-1]["accuracy"]["mean"]
    listed = words(page_of(noised_run.storage).get("/").text)
    assert f"{noised_run.run_id} small finished" in listed
    assert f" 3 {100 * last:.1f}% 8.00/8.00/8.00 " in listed
    html = page_of(noised_run.storage).get(run_page(noised_run)).text
    shown = words(html)
    # Pseudonyms are all that is told of simulated clients.
    names: dict[str, Any] = of_clients(noised_run.folder, "SELECT client, pseudonym FROM identity")
    assert names and not any(re.search(rf"\b{re.escape(name)}\b", html) for name in names)
    place = ("--storage", noised_run.storage.url)
    for warning in sotto("report", noised_run.run_id, *place, "--json").document["warnings"]:
        assert " ".join(warning["text"].split()) in shown
    head = noised_run.summary["audit_head"]
    assert f"{head['count']}:{head['hash']}" in shown
    for client in sotto("budget", noised_run.run_id, *place, "--json").document["clients"]:
        assert f"{client['pseudonym']} 8.00/8.00/8.00" in shown
    assert "8.00 against server, peers and observer, at delta 1e-05" in shown


def test_the_audit_log_is_searched_as_by_audit_query(noised_run, sotto):
    page = page_of(noised_run.storage)
    place = ("--storage", noised_run.storage.url, "--json")
    for asked, option in (
        ({"round": "2"}, ("--round", "2")),
        ({"text": "survivors", "channel": "sum"}, ("--detail", "survivors", "--channel", "sum")),
    ):
        found = sotto("audit", "query", *option, *place).document
        html = page.get(f"/audit?{urlencode(asked)}").text
        assert found and f"{len(found)} entries, oldest first." in words(html)
        assert sum(tag == "tr" for tag, _ in tags(html)) == len(found) + 1
    html = page.get("/audit?since=soon").text
    assert "since: 'soon'" in words(html)
    assert "soon" in [a.get("value") for tag, a in tags(html) if tag == "input"]


def test_verify_holds_and_names_what_was_tampered_with(own_copy):
    page = page_of(own_copy.storage)
    shown = words(page.post("/verify", headers=OWN).text)
    assert "HOLDS: " in shown and own_copy.head.split(":")[1] in shown
    forged = text("UPDATE audit SET actor = 'somebody' WHERE sequence = 4")
    edit(own_copy.storage.file, lambda connection: connection.execute(forged))
    shown = words(page.post("/verify", headers=OWN).text)
    assert "FAILED: " in shown and "HOLDS" not in shown and "entry 4" in shown
    answer = page.get(run_page(own_copy))
    assert answer.status_code == 500 and "epsilon for server" not in words(answer.text)


def test_a_row_that_does_not_fit_its_digest_is_a_sentence_not_a_number(own_copy):
    with closing(sqlite3.connect(own_copy.storage.file)) as raw:
        triggers = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("UPDATE runs SET name = 'other'")
        raw.commit()
    page = page_of(own_copy.storage)
    assert page.get("/").status_code == 500
    assert "damaged" in words(page.get("/").text)
    assert page.get("/metrics").status_code == 503
    assert "FAILED" in words(page.post("/verify", headers=OWN).text)


def hostile(run: Finished) -> None:
    """Writes hostile text into every free field that the page shows, digests and chain redone."""
    named = text("UPDATE runs SET name = :bad").bindparams(bad=HOSTILE)
    told = text("UPDATE audit SET actor = :bad, action = :bad, channel = :bad, detail = :json")
    told = told.bindparams(bad=HOSTILE, json=json.dumps({HOSTILE: HOSTILE}))
    edit(run.storage.file, lambda connection: [connection.execute(one) for one in (named, told)])


def test_hostile_text_is_shown_as_it_is_and_never_obeyed(own_copy):
    hostile(own_copy)
    page, told = page_of(own_copy.storage), {"actor": HOSTILE, "text": HOSTILE, "run": HOSTILE}
    searches = (f"/?{urlencode({'q': HOSTILE})}", f"/run?{urlencode({'id': HOSTILE})}")
    for path in ("/", "/audit", *searches, f"/audit?{urlencode(told)}"):
        html = page.get(path).text
        assert "\x1b" not in html and "\u202e" not in html
        found = tags(html)
        assert {tag for tag, _ in found} <= ALLOWED
        for value in [str(a.get("value")) for tag, a in found if tag == "input"]:
            assert "alert" not in value or value.startswith("<script>alert(1)</script>\"'><img")
        assert [a.get("src") for tag, a in found if tag == "script"] == ["/page.js"]
        assert not [a for _, a in found if any(n.startswith("on") or n == "style" for n in a)]
        # Neither the template engine nor the terminal of whoever saves the page takes it for more.
        assert "{{ 7*7 }}" in html and VISIBLE in html


def test_sql_in_a_search_is_text(noised_run):
    page = page_of(noised_run.storage)
    before = noised_run.storage.rows("SELECT count(*) FROM runs")
    for name in ("' OR 1=1 --", "x'; DROP TABLE runs; --", "%"):
        asked = urlencode({"text": name, "run": noised_run.run_id})
        assert "0 entries" in words(page.get(f"/audit?{asked}").text)
        assert page.get(f"/run?{urlencode({'id': name})}").status_code == 404
        assert "No run matches." in words(page.get(f"/?{urlencode({'q': name})}").text)
    assert noised_run.storage.rows("SELECT count(*) FROM runs") == before


def test_metrics_have_runs_and_no_client(noised_run, plain_run):
    answer = page_of(noised_run.storage).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    run, last = noised_run.run_id, noised_run.summary["rounds"][-1]
    assert f'sotto_rounds{{run="{run}"}} 3.0\n' in answer.text
    assert 'sotto_runs{status="finished"} 1.0\n' in answer.text
    spent = last["epsilon"]["peers"]
    assert f'sotto_epsilon{{adversary="peers",run="{run}"}} {spent}\n' in answer.text
    for client, (pseudonym, _) in noised_run.identities().items():
        assert pseudonym not in answer.text and client not in answer.text
    bare = page_of(plain_run.storage).get("/metrics").text
    assert re.search(r'sotto_epsilon\{adversary="server",run="[^"]*"\} \+Inf\n', bare)


def test_before_the_first_run_the_page_is_there_and_makes_nothing(storage):
    page = page_of(storage)
    assert "There is no run in" in words(page.get("/").text)
    assert page.get("/metrics").text == ""
    assert "there is no database" in words(page.get("/audit").text)
    assert page.get("/run?id=x").status_code == 404
    assert not storage.file.exists()


def test_reading_writes_nothing_and_holds_nothing_open(own_copy):
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


def test_the_newest_runs_come_first_and_others_on_further_pages(storage):
    with open_database(storage.url) as database, database.unit_of_work() as uow:
        for number in range(120):
            given = {"config_json": "{}", "config_digest": "0", "versions_json": "{}"}
            uow.runs.create(f"run-{number:03}", name=f"name-{number % 2}", **given)
        uow.commit()
    page = page_of(storage)
    found = [re.findall(r">(run-\d+)<", page.get(f"/?page={n}").text) for n in (1, 2, 3, 4)]
    assert [len(one) for one in found] == [50, 50, 20, 0]
    assert [name for one in found for name in one] == [f"run-{n:03}" for n in range(119, -1, -1)]
    assert "60 runs, 50 of them here." in words(page.get("/?q=NAME-1").text)
    for odd in ("0", "x", "9" * 30, "\u0663"):
        assert page.get(f"/?{urlencode({'page': odd})}").status_code == 200


def test_who_is_connected_is_what_the_hub_says(noised_run, tmp_path, monkeypatch):
    assert "Not known: " in words(page_of(noised_run.storage).get("/clients").text)
    page = page_of(noised_run.storage, socket=tmp_path / "hub.sock")
    nobody = page.get("/clients")
    assert nobody.status_code == 400 and "No coordinator answers" in words(nobody.text)
    there = ClientStatus(name="north", reachable=True, asked="train", last="keys")
    gone = ClientStatus(name=HOSTILE, reachable=False, asked="", last="")
    monkeypatch.setattr(page_records, "status_of", lambda *_: Status((there, gone)))
    html = page.get("/clients").text
    assert "1 of 2 can be reached." in words(html)
    assert "north yes train keys" in words(html)
    assert {tag for tag, _ in tags(html)} <= ALLOWED and VISIBLE in html


PATHS = ("/", "/run?id=x", "/clients", "/audit", "/verify", "/metrics", "/changes")


def test_every_answer_says_what_a_browser_may_do_with_it(noised_run):
    pages = (page_of(noised_run.storage), page_of(noised_run.storage, token=TOKEN))
    paths = ("/", "/metrics", "/login", "/page.js", "/nowhere")
    for headers in (page.get(path).headers for page in pages for path in paths):
        said = headers["content-security-policy"]
        policy = dict(part.strip().split(" ", 1) for part in said.split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[n] for n in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert "unsafe" not in said and headers["x-content-type-options"] == "nosniff"
        assert (
            headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
        )


def test_another_name_is_refused_as_somebody_led_a_browser_here(noised_run):
    page = page_of(noised_run.storage)
    for host in ("LOCALHOST:8765", "[::1]:8765", "localhost:"):
        assert page.get("/", headers={"host": host}).status_code == 200
    hostile = ("localhost:80@evil.example", "[::1", "[::1]evil.example", "::1", "localhost:1:2")
    for host in ("evil.example", "localhost.evil.example", "", *hostile):
        for path in (*PATHS, "/login", "/page.css"):
            answer = page.get(path, headers={"host": host})
            assert answer.status_code == 421 and noised_run.run_id not in answer.text
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_without_the_token_nothing_is_shown(noised_run):
    page = page_of(noised_run.storage, token=TOKEN)
    bearers = ("Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}")
    for headers in (
        *({}, {"cookie": f"sotto_page={TOKEN}"}, {"cookie": "sotto_page="}),
        *({"authorization": one} for one in bearers),
    ):
        for path in PATHS:
            answer = page.get(path, headers=headers)
            assert answer.status_code == 401 and answer.text == "a token is needed\n"
        # In an address it opens nothing either, and where it belongs every page.
        assert page.get(f"/?token={TOKEN}", headers=headers).status_code == 401
    assert noised_run.run_id in page.get("/", headers={"authorization": f"Bearer {TOKEN}"}).text


def test_a_browser_shows_the_token_once_and_has_a_session_until_it_leaves(noised_run):
    page = page_of(noised_run.storage, token=TOKEN)
    led = page.get("/", headers={"accept": "text/html"})
    assert (led.status_code, led.headers["location"]) == (303, "/login")
    wrong = page.post("/login", data={"token": TOKEN[:-1] + "x"}, headers=OWN)
    assert wrong.status_code == 403 and "set-cookie" not in wrong.headers
    assert TOKEN[:-1] not in wrong.text
    assert page.post("/login", content=b"token=" + b"x" * 5000, headers=OWN).status_code == 413
    right = page.post("/login", data={"token": TOKEN}, headers=OWN)
    cookie = right.headers["set-cookie"]
    assert right.headers["location"] == "/"
    assert {"HttpOnly", "Secure", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert noised_run.run_id in page.get("/").text
    kept = dict(page.cookies)
    page.post("/logout", headers=OWN)
    # What the browser forgets, the server has forgotten too.
    page.cookies.update(kept)
    assert page.get("/").status_code == 401


def test_only_the_pages_own_form_starts_a_verification(noised_run):
    page, own = page_of(noised_run.storage), "https://localhost:8765"
    for status, headers in (
        *((403, {}), (403, {"origin": "https://evil.example"}), (403, {"origin": "null"})),
        (403, {"sec-fetch-site": "same-site"}),
        (403, {"sec-fetch-site": "cross-site", "origin": own}),
        (200, {"sec-fetch-site": "same-origin", "origin": "null"}),
        (200, {"origin": own}),
    ):
        assert page.post("/verify", headers=headers).status_code == status
    assert page.delete("/audit", headers=OWN).status_code == 405


def test_sessions_end_by_themselves_and_the_oldest_make_room():
    now = [0.0]
    access = server.Access(TOKEN, clock=lambda: now[0])
    first, second = access.new_session(), access.new_session()
    assert first != second and access.is_session(first)
    now[0] = server.SESSION_SECONDS - 1
    for _ in range(server.MOST_SESSIONS - 1):
        third = access.new_session()
    assert [access.is_session(one) for one in (first, second, third)] == [False, True, True]
    now[0] = server.SESSION_SECONDS + 1
    assert [access.is_session(one) for one in (second, third)] == [False, True]
    assert not access.is_session("") and not access.is_token("")


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        *((TOKEN, 0o640, "read by others"), (TOKEN, 0o604, "read by others")),
        *((TOKEN[:31], 0o600, "no token"), (f"{TOKEN}\n{TOKEN}", 0o600, "no token")),
        ("ä" * 40, 0o600, "no token"),
        ("x" * 2000, 0o600, "no token"),
    ],
)
def test_another_file_is_refused_and_not_quoted(tmp_path, text, mode, said):
    with pytest.raises(ConfigError) as refused:
        server.read_token(token_file(tmp_path, text, mode))
    assert said in str(refused.value)
    assert text[:20] not in str(refused.value)
    assert server.read_token(token_file(tmp_path, f"{TOKEN}\n")) == TOKEN


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::"])
def test_whoever_can_be_reached_by_others_needs_token_and_tls(tmp_path, host):
    token = token_file(tmp_path, TOKEN)
    tls = {"certificate": tmp_path / "c.pem", "key": tmp_path / "k.pem"}
    for file in tls.values():
        file.write_text("x")
    with pytest.raises(ConfigError, match="--token-file is needed"):
        server.require_safe(server.Place(host=host, port=0, **tls))
    with pytest.raises(ConfigError, match="--certificate and --key"):
        server.require_safe(server.Place(host=host, port=0, token_file=token))
    named = server.Place(host=host, port=0, token_file=token, names=["sotto.example.org"], **tls)
    if host != "10.0.0.5":
        with pytest.raises(ConfigError, match="--name must give"):
            server.require_safe(server.Place(host=host, port=0, token_file=token, **tls))
    access = server.require_safe(named)
    assert access is not None and access.is_token(TOKEN)


def test_behind_a_proxy_of_another_name_a_token_is_needed(tmp_path):
    with pytest.raises(ConfigError, match=r"--name: 'sotto\.example\.org'"):
        server.require_safe(server.Place(host="127.0.0.1", port=0, names=["sotto.example.org"]))
    token = token_file(tmp_path, TOKEN)
    place = server.Place(host="127.0.0.1", port=0, names=["sotto.example.org"], token_file=token)
    assert server.require_safe(place) is not None
    assert place.known_names == {"localhost", "127.0.0.1", "::1", "sotto.example.org"}
    for host in ("localhost", "::1", "127.8.9.10"):
        assert server.require_safe(server.Place(host=host, port=0)) is None
