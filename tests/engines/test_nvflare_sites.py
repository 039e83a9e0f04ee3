"""What a site lets a job do there, and what a job says: without the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from platform.errors import ConfigError
from platform.relay.nvflare import nvflare_poc
from platform.relay.nvflare.__main__ import main
from platform.relay.nvflare.development import processes_of
from platform.relay.nvflare.keeping import Keeper, job_files
from platform.relay.nvflare.site import server_paths_of, settle, socket_of


def a_kit(folder: Path, kind: str) -> Path:
    """What is read of a start-up kit."""
    kit = folder / "kit"
    for part in ("startup", "local"):
        (kit / part).mkdir(parents=True)
    (kit / "startup" / f"fed_{kind}.json").write_text("{}")
    resources = {
        "class_allow_list": ["nvflare.app_common"],
        "class_list_enforcement_mode": "warn",
        "allow_log_streaming": True,
        "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "elsewhere"}}}},
        "components": [
            {"id": "site_log_streamer", "path": "x"},
            {"id": "job_manager", "args": {"uri_root": "elsewhere"}},
            {"id": "process_launcher", "path": "y"},
        ],
    }
    rights = {"permissions": {"project_admin": "any", "lead": {"byoc": "any", "view": "any"}}}
    (kit / "local" / "resources.json.default").write_text(json.dumps(resources))
    (kit / "local" / "authorization.json.default").write_text(json.dumps(rights))
    return kit


def local(kit: Path, name: str) -> dict:
    return json.loads((kit / "local" / name).read_text())


@pytest.mark.parametrize(("kind", "end"), [("client", "ClientRelay"), ("server", "ServerRelay")])
def test_a_settled_site_allows_its_own_two_classes_and_no_code(tmp_path, kind, end):
    kit, socket, known = a_kit(tmp_path, kind), tmp_path / "one.sock", tmp_path / "enrolment.json"
    more = [str(known)] if kind == "server" else []
    assert main(["site", str(kit), str(socket), *more]) == 0
    if kind == "server":
        assert server_paths_of(kit / "local") == (socket, known)
    else:
        assert socket_of(kit / "local") == socket
    resources = local(kit, "resources.json")
    allowed = resources["class_allow_list"]
    assert len(allowed) == 2
    assert f"platform.relay.nvflare.job.{end}" in allowed
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert {part["id"] for part in resources["components"]} == {"job_manager", "process_launcher"}
    for rights in local(kit, "authorization.json")["permissions"].values():
        assert rights["byoc"] == "none"
        assert rights["shell_commands"] == "none"
    assert ("elsewhere" in json.dumps(resources)) == (kind == "client")


def test_a_relative_socket_is_taken_from_where_it_was_said(tmp_path, monkeypatch):
    kit = a_kit(tmp_path, "client")
    monkeypatch.chdir(tmp_path)
    settle(kit, Path("here.sock"))
    assert socket_of(kit / "local") == tmp_path / "here.sock"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"socket": 3}', '{"socket": "client.sock"}', '{"socket": "/s", "more": 1}'],
)
def test_a_sites_file_says_one_socket_and_nothing_else(tmp_path, text):
    with pytest.raises(ConfigError, match="cannot be read"):
        socket_of(tmp_path)
    (tmp_path / "sotto.json").write_text(text)
    with pytest.raises(ConfigError, match=r"sotto\.json"):
        socket_of(tmp_path)


def test_what_is_no_kit_is_refused(tmp_path, capsys):
    assert main(["site", str(tmp_path), "/s"]) == 2
    assert "not the start-up kit" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not an admin's start-up kit"):
        Keeper(kit=tmp_path, clients=("east",), tell=print).until(None)


@pytest.mark.parametrize("kind", ["client", "server"])
def test_the_server_has_the_enrolment_and_no_site_has(tmp_path, capsys, kind):
    kit, more = a_kit(tmp_path, kind), ["enrolment.json"] if kind == "client" else []
    assert main(["site", str(kit), "/s", *more]) == 2
    assert "the enrolment at the server, and none at a site" in capsys.readouterr().err
    assert not (kit / "local" / "sotto.json").exists()


def test_a_job_is_for_its_sites_only_and_names_no_path():
    files = job_files(["east", "west"])
    meta = files["meta.json"]
    assert meta["deploy_map"] == {"app": ["server", "east", "west"]}
    assert meta["min_clients"] == 2
    assert not [path for path in files if "custom" in path or not path.endswith(".json")]
    assert "/" not in json.dumps(list(files.values()))


def test_without_flare_nothing_is_started(tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    place = tmp_path / "flare"
    with pytest.raises(ConfigError, match="make nvflare"):
        with nvflare_poc(tmp_path / "hub", {"east": tmp_path / "east"}, place, python):
            raise AssertionError("it started")
    assert list(processes_of(place)) == []
