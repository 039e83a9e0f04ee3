"""Federations over NVIDIA FLARE: real sites with mutual TLS, which are killed and come back.

The project is started once for all of these tests. One start takes about 20 seconds.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from platform.relay.hub import HubTransport
from tests.engines._flare import MISSING, Flare, in_flares_environment, running_flare
from tests.engines.test_node_keys import a_site
from tests.repository._source import ROOT
from tests.trunk._federations import NAMES, Holders, federation, hold, last_state, within

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    # All in one process, as they share the project.
    pytest.mark.xdist_group("nvflare"),
]
SECONDS = 120.0


@pytest.fixture(scope="module")
def flare(tmp_path_factory) -> Flare:
    with running_flare(tmp_path_factory.mktemp("nv"), NAMES) as flare:
        yield flare


def echoes() -> dict:
    return {name: lambda m, name=name: name.encode() + b":" + m for name in NAMES}


def test_each_client_gets_its_own_bytes_whatever_they_are(flare):
    asked = {name: os.urandom(300_000) for name in NAMES} | {"east": b"", "west": bytes(256)}
    with flare.reached(echoes()) as hub:
        found = hub.exchange("train", asked, SECONDS)
        assert hub.connected == set(NAMES)
    assert found == {name: name.encode() + b":" + asked[name] for name in NAMES}


def test_the_same_numbers_come_over_flare_and_within_one_process(flare):
    states = []
    for place in ("flare", "within"):
        here = flare.folder / f"same-{place}"
        handlers = Holders.written(here).handlers()
        config = flare.at_its_hub(federation(here))
        reaching = flare.reaching(handlers) if place == "flare" else within(handlers)
        summary = hold(config, reaching)
        assert [r["cohort"] for r in summary["rounds"]] == [4, 4]
        states.append(last_state(here, summary["run_id"]))
    first, second = states
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize(
    ("site", "word"),
    [("north", "worker_process"), ("localhost", "runner_process"), ("localhost", "server_train")],
    ids=["a site's job", "the server's job", "the server"],
)
def test_what_is_killed_of_flare_costs_time_and_nothing_else(flare, site, word):
    asked = threading.Event()

    def once_slow(message: bytes) -> bytes:
        if not asked.is_set():
            asked.set()
            time.sleep(2.0)
        return b"west:" + message

    with flare.reached(echoes() | {"west": once_slow}) as hub:
        transport, found = HubTransport(hub, {}, SECONDS), {}
        work = threading.Thread(
            target=lambda: found.update(
                transport.exchange("train", dict.fromkeys(NAMES, b"m"), None)
            )
        )
        work.start()
        assert asked.wait(60)
        assert flare.kill(site, word) == 1
        work.join()
        again = hub.exchange("train", dict.fromkeys(NAMES, b"n"), SECONDS)
    assert found == {name: name.encode() + b":m" for name in NAMES}
    assert again == {name: name.encode() + b":n" for name in NAMES}


def test_a_job_that_brings_code_or_other_classes_is_refused(flare):
    program = Path(__file__).with_name("_hostile_jobs.py").read_text()
    kit = str(flare.kits / "admin@sotto.example")
    said = in_flares_environment(program, kit, *NAMES, cwd=flare.folder)
    code, other = (line for line in said.splitlines() if line.startswith(("code:", "class:")))
    assert "BYOC not permitted" in code
    assert "COMPLETED" not in other
    # Both ends of both jobs would have made one.
    assert list(flare.kits.glob("*/stolen*")) == []


@pytest.mark.parametrize("shown", ["nothing", "no certificate", "another's", "a site's"])
def test_flares_server_hears_nobody_without_a_certificate_of_the_project(flare, tmp_path, shown):
    """The last of them is heard, so it is the certificate that makes the difference."""
    startup = flare.kits / "east" / "startup"
    port = int(
        json.loads((startup / "fed_client.json").read_text())["servers"][0]["service"][
            "target"
        ].rsplit(":", 1)[1]
    )
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    if shown == "a site's":
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    if shown == "another's":
        own = a_site(tmp_path, "east")
        context.load_cert_chain(own / "client.crt", own / "client.key")
    with socket.create_connection(("localhost", port), timeout=5.0) as plain:
        if shown == "nothing":
            plain.sendall(b"SFM" * 100)
            assert was_hung_up(plain)
            return
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            assert was_hung_up(sock) == (shown != "a site's")


def was_hung_up(sock: socket.socket) -> bool:
    """Whether the other side ends a connection on which nothing more is said."""
    sock.settimeout(3.0)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_only_the_server_has_a_site_deliver_and_only_to_itself(flare):
    program = Path(__file__).with_name("_callers.py").read_text()
    places = (str(flare.folder / "site"), str(flare.kits / "east" / "startup"))
    said = in_flares_environment(program, *places, cwd=flare.folder)
    assert said.split() == ["lost", "PermissionError", "ProtocolError"]


def test_flares_environment_has_this_platform_and_nothing_that_trains(flare):
    program = "import platform.relay.nvflare.job, importlib.util as util; "
    program += "print(platform.__path__[0], util.find_spec('torch'))"
    said = in_flares_environment(program, cwd=flare.folder).split()
    assert said == [str(ROOT / "platform"), "None"]
