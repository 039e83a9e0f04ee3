"""`serve` as a process: its address, its end, what it prints, and what it refuses."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from storage import open_database
from tests.trunk._pages import TOKEN
from tests.trunk.test_page import token_file

Process = subprocess.Popen[str]


@contextmanager
def serving(
    environment: Mapping[str, str], storage: str, *options: str
) -> Iterator[tuple[Process, int]]:
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
    noised_run, child_environment, number
):
    with serving(child_environment, noised_run.storage.url) as (process, port):
        status, text = asked(port, "/")
        assert status == 200 and noised_run.run_id in text
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        stream.request("GET", "/changes")
        answer = stream.getresponse()
        assert answer.readline() == b"event: stamp\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        answer.close()
        stream.close()
        assert "Traceback" not in err and out == ""
        # What a shell starts in the background ignores SIGINT, and so does what that starts.
        is_ignored = signal.getsignal(number) is signal.SIG_IGN
        assert process.returncode in ((0,) if is_ignored else (-number, 128 + number))


@pytest.mark.slow
def test_the_token_is_in_no_line_that_is_printed(noised_run, child_environment, tmp_path):
    options = ("--token-file", str(token_file(tmp_path, TOKEN)))
    with serving(child_environment, noised_run.storage.url, *options) as (process, port):
        assert asked(port, "/")[0] == 401
        assert asked(port, f"/?token={TOKEN}")[0] == 401
        assert asked(port, "/", {"authorization": f"Bearer {TOKEN}"})[0] == 200
        assert asked(port, "/", {"host": "evil.example"})[0] == 421
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert TOKEN not in out + err


@pytest.mark.slow
def test_a_page_that_is_open_keeps_no_snapshot(own_copy, child_environment):
    """A writer empties the log of old pages at each commit, though a page is kept up to date."""
    log = own_copy.storage.file.with_name(f"{own_copy.storage.file.name}-wal")
    with serving(child_environment, own_copy.storage.url) as (_, port):
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
