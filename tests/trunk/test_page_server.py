"""`serve` as a process: its address, its end, what it prints, and what it refuses."""

from __future__ import annotations

import http.client
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from platform.cli.page_records import PageRecords
from platform.page import server
from storage import open_database
from tests.trunk._pages import TOKEN

Process = subprocess.Popen[str]
BEARER = {"authorization": f"Bearer {TOKEN}"}


@contextmanager
def serving(
    environment: Mapping[str, str], storage: str, *options: str
) -> Iterator[tuple[Process, int]]:
    """The process, and the port that it took."""
    command = [sys.executable, "-m", "platform.coordinator", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--storage", storage, *options],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("page: http://127.0.0.1:"), line
            yield process, int(line.split("/")[2].split(":")[1])
        finally:
            process.kill()


@contextmanager
def serving_here(
    monkeypatch: pytest.MonkeyPatch, storage: str, token_file: Path | None = None
) -> Iterator[int]:
    """The same server in a thread of this process; the port that it took."""
    made: list[uvicorn.Server] = []
    make, told = server._server, queue.Queue[str]()

    def making(*given: object) -> uvicorn.Server:
        made.append(make(*given))  # type: ignore[arg-type]
        return made[0]

    monkeypatch.setattr(server, "_server", making)
    place = server.Place(host="127.0.0.1", port=0, token_file=token_file)
    records = PageRecords(storage, None)
    thread = threading.Thread(target=server.serve, args=(records, place, told.put))
    thread.start()
    try:
        yield int(told.get(timeout=20).strip("/").rpartition(":")[2])
    finally:
        made[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def token_in(folder: Path) -> Path:
    file = folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


def asked(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=dict(headers or {}))
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_ended_though_a_page_is_kept_up_to_date(
    noised_run, child_environment, tmp_path, number
):
    options = ("--token-file", str(token_in(tmp_path)))
    with serving(child_environment, noised_run.storage.url, *options) as (process, port):
        status, text = asked(port, "/", BEARER)
        assert status == 200 and noised_run.run_id in text
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        stream.request("GET", "/changes", headers=BEARER)
        answer = stream.getresponse()
        assert answer.readline() == b"event: stamp\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        answer.close()
        stream.close()
        assert "Traceback" not in err and TOKEN not in err and out == ""
        # What a shell starts in the background ignores SIGINT, and so does what that starts.
        is_ignored = signal.getsignal(number) is signal.SIG_IGN
        assert process.returncode in ((0,) if is_ignored else (-number, 128 + number))


def test_the_token_is_in_no_line_that_is_printed(noised_run, monkeypatch, capfd, tmp_path):
    with serving_here(monkeypatch, noised_run.storage.url, token_in(tmp_path)) as port:
        assert asked(port, "/")[0] == 401
        assert asked(port, f"/?token={TOKEN}")[0] == 401
        assert asked(port, "/", BEARER)[0] == 200
        assert asked(port, "/", {"host": "evil.example"})[0] == 421
    assert TOKEN not in "".join(capfd.readouterr())


def test_a_page_that_is_open_keeps_no_snapshot(own_copy, monkeypatch):
    """A writer empties the log of old pages at each commit, though a page is kept up to date."""
    log = own_copy.storage.file.with_name(f"{own_copy.storage.file.name}-wal")
    with serving_here(monkeypatch, own_copy.storage.url) as port:
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        stream.request("GET", "/changes")
        answer = stream.getresponse()
        assert answer.readline() == b"event: stamp\n"
        with open_database(own_copy.storage.url, busy_timeout=5.0) as database:
            for number in range(5):
                assert asked(port, "/")[0] == asked(port, "/audit")[0] == 200
                with database.unit_of_work() as unit:
                    unit.audit.append(own_copy.run_id, actor="coordinator", action=f"test.{number}")
                    unit.commit()
                # Raises where a reader is in the way for longer than it waits.
                database.checkpoint()
                assert log.stat().st_size == 0
        answer.close()
        stream.close()
