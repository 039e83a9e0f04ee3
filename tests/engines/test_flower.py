"""Federations over Flower: SuperLink and nodes with TLS, which are killed and come back.

All is started once for all of these tests, which takes about 10 seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from platform.bootstrap.federating import through_hub
from platform.relay.flower import flower_on_localhost
from platform.relay.flower.development import Running, running_key
from platform.relay.hub import Hub, Told
from platform.wire.transport import Dropout
from tests.repository._source import ROOT
from tests.trunk._federations import NAMES, Holders, federation, hold, within
from tests.trunk._hubs import served
from tests.trunk.test_federation import last_state

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


def echo(name: str) -> Callable[[bytes], bytes]:
    return lambda message: name.encode() + b":" + message


def echoes() -> dict[str, Callable[[bytes], bytes]]:
    return {name: echo(name) for name in NAMES}


def in_flowers_environment(program: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [str(PYTHON), "-c", program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": ""},
    )
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
        over = within(handlers)
        if place == "flower":

            def over(section, handlers=handlers):
                return flower.reaching(handlers, section)

        summary = hold(federation(here), over)
        assert [r["cohort"] for r in summary["rounds"]] == [4, 4]
        states.append(last_state(here, summary["run_id"]))
    first, second = states
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_what_is_late_harms_nothing_that_is_asked_next(flower):
    held = threading.Event()
    handlers = echoes() | {"north": lambda message: held.wait(30) and message}
    with flower.reached(handlers) as hub:
        found = hub.exchange("train", dict.fromkeys(NAMES, b"a"), 4.0)
        held.set()
        again = hub.exchange("train", dict.fromkeys(NAMES, b"b"), SECONDS)
    assert isinstance(found["north"], Dropout)
    assert found["east"] == b"east:a"
    assert again == {name: name.encode() + b":b" for name in NAMES} | {"north": b"b"}


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


def test_a_node_whose_key_is_not_enrolled_is_refused(flower):
    running = flower.running
    running_key(running.folder, "mallory", PYTHON)
    command = [
        text.replace("north.key", "mallory.key").replace("north.sock", "mallory.sock")
        for text in running.commands["north"]
    ]
    running.commands["mallory"] = command
    running.start("mallory")
    log = running.folder / "mallory.log"
    end = time.monotonic() + 30
    while log.read_text().count("not connected") < 2 and time.monotonic() < end:
        time.sleep(0.1)
    running.kill("mallory")
    said = log.read_text().splitlines()
    assert sum("not connected" in line for line in said) >= 2
    assert "connected" not in said


ATTACKS = """
import sys, httpx
from pathlib import Path

from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from platform.relay.flower.keys import read_enrolled, read_key
from platform.relay.flower.node import Place, _fleet
from platform.relay.flower.superlink import SuperLink
folder, address = Path(sys.argv[1]), sys.argv[2]
place = Place(address=address, root=(folder / "ca.pem").read_bytes())
other = int((folder / "north.key.node").read_text())
own = int((folder / "east.key.node").read_text())
def attempt(word, place, number, name):
    try:
        with _fleet(place, read_key(folder / name)) as fleet:
            fleet.PullMessages(PullMessagesRequest(node=Node(node_id=number)))
        print(word, "passed")
    except httpx.HTTPStatusError as error:
        print(word, error.response.status_code)
    except httpx.TransportError:
        print(word, "no connection")
attempt("own", place, own, "east.key")
attempt("another's", place, other, "east.key")
attempt("plain", Place(address=address, root=None), own, "east.key")
try:
    SuperLink.opened(place, b"guessed", read_enrolled(folder / "enrolled.json"))
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
    assert said[2].startswith("plain") and "passed" not in said[2]
    assert said[3].startswith("task") and "passed" not in said[3]


def test_flowers_environment_has_this_platform_and_nothing_that_trains(flower):
    program = "import platform, platform.relay.flower.link; print(platform.__path__[0]); "
    program += "import importlib.util, flwr.supercore.cli; print(platform.__path__[0]); "
    program += "print(importlib.util.find_spec('torch'))"
    first, second, torch = in_flowers_environment(program, cwd=flower.folder).split()
    assert first == second == str(ROOT / "platform")
    assert torch == "None"
    assert sys.modules.get("flwr") is None


def test_each_private_key_is_its_owners_only_and_the_server_has_none(flower):
    folder = flower.running.folder
    assert {(folder / f"{name}.key").stat().st_mode & 0o777 for name in NAMES} == {0o600}
    assert json.loads((folder / "enrolled.json").read_text()).keys() == set(NAMES)
    assert "PRIVATE" not in (folder / "enrolled.json").read_text()
