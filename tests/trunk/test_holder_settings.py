"""A data holder's settings: closed, typed, from plain YAML, each mistake one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from platform.cli.holder import EXAMPLE
from platform.errors import ConfigError
from platform.holder.settings import HolderSettings, OwnLimits, load_holder

WHOLE: dict[str, Any] = {
    "name": "north",
    "data": {"root": "./images"},
    "identity": "./north.key",
    "enrolment": "./enrolment.json",
    "storage": "./north",
    "socket": "./north/other.sock",
    "device": "cpu",
    "threads": 2,
    "limits": {
        "epsilon_total": 20.0,
        "epsilon_per_run": 8.0,
        "delta": 1.0e-5,
        "smallest_cohort": 4,
        "smallest_sum": 5,
        "methods": ["promptfl", "pfedmoap"],
        "mechanisms": ["distributed_noise", "upload_noise"],
        "adversary": "active",
    },
}
LEAST = {"name": "north", "data": {"root": "images"}, "storage": "store"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "client.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_holder(path)
    message = str(caught.value)
    assert message and "\n" not in message and "pydantic" not in message
    return message


def test_all_keys_are_read_and_paths_count_from_the_file(write, tmp_path, monkeypatch):
    write(yaml.safe_dump(WHOLE))
    monkeypatch.chdir(tmp_path)
    settings = load_holder(Path("client.yaml"))
    monkeypatch.chdir("/")
    assert settings.data.root == tmp_path / "images"
    assert settings.identity == tmp_path / "north.key"
    assert settings.enrolment == tmp_path / "enrolment.json"
    assert settings.storage == tmp_path / "north"
    assert settings.store_file == tmp_path / "north" / "client.db"
    assert settings.socket_path == tmp_path / "north" / "other.sock"
    assert (settings.device, settings.threads) == ("cpu", 2)
    limits = settings.limits
    assert (limits.smallest_cohort, limits.smallest_sum) == (4, 5)
    assert limits.methods == ("promptfl", "pfedmoap") and limits.adversary == "active"
    monkeypatch.setenv("HOME", "/somewhere")
    settings = load_holder(write(yaml.safe_dump({**LEAST, "data": {"root": "~/images"}})))
    assert settings.data.root == Path("/somewhere/images")
    assert settings.socket_path == tmp_path / "store" / "client.sock"


def test_the_example_has_every_key_with_its_default():
    settings = load_holder(EXAMPLE)
    tree = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(tree) == set(HolderSettings.model_fields)
    assert set(tree["limits"]) == set(OwnLimits.model_fields)
    assert settings.limits == OwnLimits()


MISTAKES: dict[str, tuple[Any, ...]] = {
    "colour": ("red",),
    "privacy": ({"mechanism": "none"},),
    "name": ("../north", "north\n", "n" * 64, ".north"),
    "data.root": (..., "", 3, "a\0b", "~nobody-here/x"),
    "storage": (None, "images", "./x/../images/s"),
    "enrolment": (None,),
    "identity": (None,),
    "device": ("tpu",),
    "threads": (0,),
    "limits": ([],),
    "limits.epsilon": (3.0,),
    "limits.epsilon_total": (0, float("inf"), True),
    "limits.epsilon_per_run": (float("nan"),),
    "limits.delta": (0.0, 1.0, None),
    "limits.smallest_cohort": (0,),
    "limits.smallest_sum": (-3,),
    "limits.methods": (["../x"], []),
    "limits.mechanisms": (["magic"], []),
    "limits.relations": (["swap"],),
    "limits.adversary": ("bold",),
}


def changed(key: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(WHOLE)
    *sections, last = key.split(".")
    place = tree
    for name in sections:
        place = place[name]
    place[last] = value
    if value is ...:
        del place[last]
    return tree


@pytest.mark.parametrize("key", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(write, key):
    for value in MISTAKES[key]:
        assert refused(write(yaml.safe_dump(changed(key, value)))).startswith(key)


def test_what_is_no_settings_is_one_sentence(write, tmp_path):
    """What is no plain YAML is in `test_plain_yaml.py`."""
    assert "plain data" in refused(write("!!python/object/apply:os.system ['true']\n"))
    assert "readable YAML" in refused(write(b"\xff\xfe\x00"))
    (tmp_path / "client.yaml").unlink()
    for path in (tmp_path / "client.yaml", tmp_path, Path("x" * 5000)):
        assert "is no file" in refused(path)


def test_a_link_does_not_hide_that_storage_lies_among_images(write, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "images", target_is_directory=True)
    assert "data.root" in refused(write(yaml.safe_dump({**LEAST, "storage": "link/store"})))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert load_holder(write(yaml.safe_dump({**LEAST, "storage": "loop/store"}))).storage


def test_an_active_adversary_needs_an_identity(write):
    message = refused(write(yaml.safe_dump({**LEAST, "limits": {"adversary": "active"}})))
    assert message.startswith("limits.adversary: active")


def test_none_is_allowed_only_without_any_bound(write):
    for total, per_run in ((20.0, None), (None, 8.0), (None, None)):
        limits = {"mechanisms": ["none"], "epsilon_total": total, "epsilon_per_run": per_run}
        path = write(yaml.safe_dump({**LEAST, "limits": limits}))
        if total or per_run:
            assert "an infinite epsilon" in refused(path)
    assert load_holder(path).limits.mechanisms == ("none",)
