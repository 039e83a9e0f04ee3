"""Federations over Flower: SuperLink and nodes with TLS, which are killed and come back.

All is started once for all of these tests, which takes about 10 seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from platform.experiment.federating import through_hub
from platform.relay.flower import flower_on_localhost
from platform.relay.flower.development import DevelopmentRoot, Running, node_key
from platform.relay.hub import Hub, Told
from tests.repository._source import ROOT
from tests.trunk._federations import NAMES, Holders, federation, hold, last_state, within
from tests.trunk._hubs import served

PYTHON = ROOT / ".venv-flower" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="Flower is not installed: `make flower`"),
    # All in one process, as they share what runs.
    pytest.mark.xdist_group("flower"),
]
SECONDS = 60.0
Handlers = Mapping[str, Callable[[bytes], bytes]]


@dataclass
class Flower:
    """What runs, and where hub and clients' sockets are expected."""

    folder: Path
    running: Running

    @contextmanager
    def reached(self, handlers: Handlers) -> Iterator[Hub]:
        with served(handlers, self.folder):
            with Hub(path=self.folder / "hub", clients=NAMES) as hub:
                yield hub

    @contextmanager
    def reaching(self, handlers: Handlers, section):
        section = section.model_copy(update={"socket": str(self.folder / "hub")})
        with served(handlers, self.folder), through_hub(section, Told()) as transport:
            yield transport


@pytest.fixture(scope="module")
def flower(tmp_path_factory) -> Iterator[Flower]:
    folder = tmp_path_factory.mktemp("fl")
    sockets = {name: folder / f"{name}.sock" for name in NAMES}
    with flower_on_localhost(folder / "hub", sockets, folder / "flower", PYTHON) as running:
        yield Flower(folder, running)
    assert all(process.returncode is not None for process in running.processes.values())


def echoes() -> dict[str, Callable[[bytes], bytes]]:
    return {name: lambda m, name=name: name.encode() + b":" + m for name in NAMES}


def called(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": ""},
    )


def in_flowers_environment(program: str, *arguments: str, cwd: Path) -> str:
    done = called("-c", program, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_client_gets_its_own_bytes_whatever_they_are(flower):
    asked = {name: os.urandom(300_000) for name in NAMES} | {"east": b"", "west": bytes(256)}
    with flower.reached(echoes()) as hub:
        found = hub.exchange("train", asked, SECONDS)
    assert found == {name: name.encode() + b":" + asked[name] for name in NAMES}


def test_the_same_numbers_come_over_flower_and_within_one_process(flower):
    states = []
    for place in ("flower", "within"):
        here = flower.folder / f"same-{place}"
        handlers = Holders.written(here).handlers()
        over = partial(flower.reaching, handlers) if place == "flower" else within(handlers)
        summary = hold(federation(here), over)
        assert [r["cohort"] for r in summary["rounds"]] == [4, 4]
        states.append(last_state(here, summary["run_id"]))
    first, second = states
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("victim", ["north", "link", "superlink"])
def test_what_is_killed_and_started_again_costs_time_and_nothing_else(flower, victim):
    asked = threading.Event()

    def once_slow(message: bytes) -> bytes:
        if not asked.is_set():
            asked.set()
            time.sleep(2.0)
        return b"north:" + message

    with flower.reached(echoes() | {"north": once_slow}) as hub:
        found: dict = {}
        work = threading.Thread(
            target=lambda: found.update(hub.exchange("train", dict.fromkeys(NAMES, b"m"), SECONDS))
        )
        work.start()
        assert asked.wait(30)
        flower.running.kill(victim)
        flower.running.start(victim)
        work.join()
        again = hub.exchange("train", dict.fromkeys(NAMES, b"n"), SECONDS)
    assert found == {name: name.encode() + b":m" for name in NAMES}
    assert again == {name: name.encode() + b":n" for name in NAMES}


def says(running: Running, name: str, command: list[str], word: str) -> list[str]:
    """What a node that is started so says, until it has said a word twice, or 30 s."""
    running.commands[name] = command
    running.start(name)
    log, end = running.folder / f"{name}.log", time.monotonic() + 30
    while log.read_text().count(word) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    running.kill(name)
    return log.read_text().splitlines()


def as_another(running: Running, name: str) -> list[str]:
    """The node of `north`, with another key and certificate."""
    return [
        text.replace("north.key", f"{name}.key").replace("north.pem", f"{name}.pem")
        for text in running.commands["north"]
    ]


def test_a_node_whose_key_is_not_enrolled_is_refused(flower):
    """Its certificate leads to the same root: who signs certificates enrols nobody."""
    running = flower.running
    node_key(running.folder, "mallory", PYTHON, running.root)
    said = says(running, "mallory", as_another(running, "mallory"), "not connected")
    assert sum("not connected" in line for line in said) >= 2
    assert "connected" not in said


def test_a_node_whose_certificate_leads_elsewhere_is_refused_by_tls(flower):
    """Its node key is the enrolled one: `north`'s own, in other hands."""
    running, folder = flower.running, flower.running.folder
    shutil.copy(folder / "north.key", folder / "elsewhere.key")
    request = in_flowers_environment(
        "import sys; from platform.relay.flower.__main__ import main; main(sys.argv[1:])",
        *("request", str(folder / "elsewhere.key"), "north"),
        cwd=folder,
    )
    (folder / "elsewhere.pem").write_bytes(DevelopmentRoot.made().signed(request))
    said = says(running, "elsewhere", as_another(running, "elsewhere"), "not connected")
    assert sum("not connected" in line for line in said) >= 2
    # What SuperLink refuses itself has a status; it was not even asked.
    assert not any("HTTPStatusError" in line for line in said)
    assert "connected" not in said


ATTACKS = """
import sys, httpx, ssl
from pathlib import Path

from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from platform.relay.flower.connection import read_enrolled, read_key
from platform.relay.flower.node import _fleet
from platform.relay.flower.connection import Place, node_place, server_place
from platform.relay.flower.superlink import SuperLink
folder, address = Path(sys.argv[1]), sys.argv[2]
root = folder / "ca.pem"
def of(name):
    return node_place(address, root, folder / f"{name}.pem", folder / f"{name}.key")
other = int((folder / "north.key.node").read_text())
own = int((folder / "east.key.node").read_text())
def attempt(word, place, number, name):
    try:
        with _fleet(place, read_key(folder / name)) as fleet:
            fleet.PullMessages(PullMessagesRequest(node=Node(node_id=number)))
        print(word, "passed")
    except httpx.HTTPStatusError as error:
        print(word, error.response.status_code)
    except (httpx.TransportError, ssl.SSLError):
        print(word, "no connection")
attempt("own", of("east"), own, "east.key")
attempt("another's", of("east"), other, "east.key")
attempt("plain", Place(address=address, tls=None), own, "east.key")
bare = ssl.create_default_context(cafile=root)
attempt("bare", Place(address=address, tls=bare), own, "east.key")
ours = server_place(address, root, folder / "server.pem", folder / "server.key")
try:
    SuperLink.opened(ours, b"guessed", read_enrolled(folder / "enrolment.json"))
    print("task passed")
except httpx.HTTPStatusError as error:
    print("task", error.response.status_code)
"""


def test_nobody_fetches_anothers_messages_or_takes_our_task(flower):
    folder = flower.running.folder
    command = flower.running.commands["link"]
    address = command[command.index("--superlink") + 1]
    said = in_flowers_environment(ATTACKS, str(folder), address, cwd=flower.folder).splitlines()
    assert said[:2] == ["own passed", "another's 401"]
    assert said[2:4] == ["plain no connection", "bare no connection"]
    assert said[4].startswith("task") and "passed" not in said[4]


@pytest.mark.parametrize("command", ["superlink", "link", "north"])
def test_no_connection_without_tls_unless_it_is_said_by_name(flower, command):
    """Whatever file for it is left out, nothing is started; beside one, `--insecure` is refused."""
    words = flower.running.commands[command]
    for option in ("--root", "--certificate"):
        at = words.index(option)
        assert "--insecure" in refused(flower, [*words[:at], *words[at + 2 :]])
    assert "valid without" in refused(flower, [*words, "--insecure"])


def refused(flower: Flower, words: list[str]) -> str:
    done = called("-m", "platform.relay.flower", *words, cwd=flower.folder)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_flowers_environment_has_nothing_that_trains_and_the_server_no_private_key(flower):
    program = "import platform.relay.flower.superlink, importlib.util as util; "
    program += "print(platform.__path__[0], util.find_spec('torch'))"
    said = in_flowers_environment(program, cwd=flower.folder).split()
    assert said == [str(ROOT / "platform"), "None"]
    folder = flower.running.folder
    assert {(folder / f"{name}.key").stat().st_mode & 0o777 for name in NAMES} == {0o600}
    assert "PRIVATE" not in (folder / "enrolment.json").read_text()
