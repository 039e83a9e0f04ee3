"""Who is let in to the live page, by which name, and what every answer says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from platform.errors import ConfigError
from platform.page.app import MOST_SESSIONS, SESSION_SECONDS, Access, host_name, read_token
from platform.page.server import Place, require_safe
from tests.trunk._pages import OWN, TOKEN, page_of
from tests.trunk._runs import Finished

PATHS = ("/", "/run?id=x", "/clients", "/audit", "/verify", "/metrics", "/changes")
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("path", ["/", "/audit", "/metrics", "/login", "/page.js", "/nowhere"])
def test_every_answer_says_what_a_browser_may_do_with_it(noised_run: Finished, path: str) -> None:
    for page in (page_of(noised_run.storage), page_of(noised_run.storage, token=TOKEN)):
        headers = page.get(path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[n] for n in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_a_refusal_has_the_headers_too(noised_run: Finished) -> None:
    answer = page_of(noised_run.storage).get("/", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost:1:2",
        "[::1",
    ],
)
def test_another_name_is_refused_as_somebody_led_a_browser_here(
    noised_run: Finished, host: str
) -> None:
    page = page_of(noised_run.storage)
    for path in (*PATHS, "/login", "/page.css"):
        answer = page.get(path, headers={"host": host})
        assert answer.status_code == 421 and noised_run.run_id not in answer.text


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:8765", "localhost"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:8765", "::1"),
        ("localhost:", "localhost"),
        ("localhost:80@evil.example", ""),
        ("[::1", ""),
        ("[::1]evil.example", ""),
        ("::1", ""),
    ],
)
def test_a_host_is_named_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"sotto_page={TOKEN}"},
        {"cookie": "sotto_page="},
    ],
)
def test_without_the_token_nothing_is_shown(
    noised_run: Finished, path: str, headers: Mapping[str, str]
) -> None:
    answer = page_of(noised_run.storage, token=TOKEN).get(path, headers=headers)
    assert answer.status_code == 401 and answer.text == "a token is needed\n"


def test_the_token_in_an_address_opens_nothing(noised_run: Finished) -> None:
    page = page_of(noised_run.storage, token=TOKEN)
    assert page.get(f"/?token={TOKEN}").status_code == 401


def test_the_token_opens_every_page(noised_run: Finished) -> None:
    page = page_of(noised_run.storage, token=TOKEN)
    for path in PATHS[:-1]:
        assert page.get(path, headers=BEARER).status_code in (200, 404)
    assert noised_run.run_id in page.get("/", headers=BEARER).text


def test_a_browser_shows_the_token_once_and_has_a_session_until_it_leaves(
    noised_run: Finished,
) -> None:
    page = page_of(noised_run.storage, token=TOKEN)
    led = page.get("/", headers={"accept": "text/html"})
    assert (led.status_code, led.headers["location"]) == (303, "/login")
    wrong = page.post("/login", data={"token": TOKEN[:-1] + "x"}, headers=OWN)
    assert wrong.status_code == 403 and "set-cookie" not in wrong.headers
    assert TOKEN[:-1] not in wrong.text
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


def test_a_form_that_is_too_long_is_refused(noised_run: Finished) -> None:
    page = page_of(noised_run.storage, token=TOKEN)
    assert page.post("/login", content=b"token=" + b"x" * 5000, headers=OWN).status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "https://localhost:8765"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 200),
        ({"origin": "https://localhost:8765"}, 200),
    ],
)
def test_only_the_pages_own_form_starts_a_verification(
    noised_run: Finished, headers: Mapping[str, str], status: int
) -> None:
    assert page_of(noised_run.storage).post("/verify", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_else_can_be_sent(noised_run: Finished, method: str) -> None:
    for path in ("/", "/audit", "/metrics"):
        assert page_of(noised_run.storage).request(method, path, headers=OWN).status_code == 405


def test_sessions_end_by_themselves_and_the_oldest_make_room() -> None:
    now = [0.0]
    access = Access(TOKEN, clock=lambda: now[0])
    first, second = access.new_session(), access.new_session()
    assert first != second and access.is_session(first)
    now[0] = SESSION_SECONDS - 1
    for _ in range(MOST_SESSIONS - 1):
        third = access.new_session()
    assert [access.is_session(one) for one in (first, second, third)] == [False, True, True]
    now[0] = SESSION_SECONDS + 1
    assert [access.is_session(one) for one in (second, third)] == [False, True]
    assert not access.is_session("") and not access.is_token("")


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_token_is_read_from_a_file_of_its_owner(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path, f"{TOKEN}\n")) == TOKEN


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (TOKEN, 0o640, "can be read by others"),
        (TOKEN, 0o604, "can be read by others"),
        (TOKEN[:31], 0o600, "holds no token"),
        ("", 0o600, "holds no token"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "holds no token"),
        ("ä" * 40, 0o600, "holds no token"),
        ("x" * 2000, 0o600, "holds no token"),
    ],
)
def test_another_file_is_refused_and_not_quoted(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_token(token_file(tmp_path, text, mode))
    assert said in str(refused.value)
    assert not text or text[:20] not in str(refused.value)


def test_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="--token-file"):
            read_token(path)


def pem(folder: Path) -> dict[str, Path]:
    files = {"certificate": folder / "c.pem", "key": folder / "k.pem"}
    for file in files.values():
        file.write_text("x")
    return files


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "sotto.example.org", "::"])
def test_whoever_can_be_reached_by_others_needs_token_and_tls(tmp_path: Path, host: str) -> None:
    token, tls = token_file(tmp_path, TOKEN), pem(tmp_path)
    with pytest.raises(ConfigError, match="--token-file is needed"):
        require_safe(Place(host=host, port=0, **tls))
    with pytest.raises(ConfigError, match="--certificate and --key"):
        require_safe(Place(host=host, port=0, token_file=token))
    named = Place(host=host, port=0, token_file=token, names=["sotto.example.org"], **tls)
    access = require_safe(named)
    assert access is not None and access.is_token(TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_are_no_name(tmp_path: Path, host: str) -> None:
    place = Place(host=host, port=0, token_file=token_file(tmp_path, TOKEN), **pem(tmp_path))
    with pytest.raises(ConfigError, match="--name must say"):
        require_safe(place)


def test_behind_a_proxy_of_another_name_a_token_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--name: 'sotto.example.org' is reached by others"):
        require_safe(Place(host="127.0.0.1", port=0, names=["sotto.example.org"]))
    token = token_file(tmp_path, TOKEN)
    place = Place(host="127.0.0.1", port=0, names=["sotto.example.org"], token_file=token)
    assert require_safe(place) is not None
    assert place.known_names == {"localhost", "127.0.0.1", "::1", "sotto.example.org"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "127.8.9.10", "LocalHost"])
def test_this_machine_alone_needs_nothing(host: str) -> None:
    assert require_safe(Place(host=host, port=0)) is None


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--certificate: goes with --key"):
        require_safe(Place(host="localhost", port=0, certificate=tmp_path / "c.pem"))
    missing = Place(host="localhost", port=0, certificate=tmp_path / "c", key=tmp_path / "k")
    with pytest.raises(ConfigError, match=r"--certificate: .* is no file"):
        require_safe(missing)
    assert os.listdir(tmp_path) == []
