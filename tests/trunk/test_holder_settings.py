"""A data holder's settings: closed, typed, from plain YAML, each mistake one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
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
    """Writes settings beside nothing else."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "client.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def loaded(write: Callable[[str], Path], **changes: Any) -> HolderSettings:
    return load_holder(write(yaml.safe_dump({**LEAST, **changes})))


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_holder(path)
    message = str(caught.value)
    assert message and "\n" not in message and "pydantic" not in message
    return message


# --- what is valid ------------------------------------------------------------------------------


def test_all_keys_are_read_and_paths_count_from_the_file(write, tmp_path, monkeypatch):
    path = write(yaml.safe_dump(WHOLE))
    monkeypatch.chdir("/")
    settings = load_holder(path)
    assert settings.data.root == tmp_path / "images"
    assert settings.identity == tmp_path / "north.key"
    assert settings.enrolment == tmp_path / "enrolment.json"
    assert settings.storage == tmp_path / "north"
    assert settings.store_file == tmp_path / "north" / "client.db"
    assert settings.socket_path == tmp_path / "north" / "other.sock"
    assert (settings.device, settings.threads) == ("cpu", 2)
    limits = settings.limits
    assert (limits.epsilon_total, limits.epsilon_per_run, limits.delta) == (20.0, 8.0, 1e-5)
    assert (limits.smallest_cohort, limits.smallest_sum) == (4, 5)
    assert limits.methods == ("promptfl", "pfedmoap")
    assert limits.mechanisms == ("distributed_noise", "upload_noise")
    assert limits.adversary == "active"


def test_a_relative_file_still_means_its_own_folder(write, tmp_path, monkeypatch):
    write(yaml.safe_dump(LEAST))
    monkeypatch.chdir(tmp_path)
    settings = load_holder(Path("client.yaml"))
    monkeypatch.chdir("/")
    assert settings.data.root == tmp_path / "images"


def test_absolute_paths_and_home_folders_stay_what_they_are(write, monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    settings = loaded(write, data={"root": "~/images"}, storage="/var/north")
    assert settings.data.root == Path("/somewhere/images")
    assert settings.storage == Path("/var/north")
    assert settings.socket_path == Path("/var/north/client.sock")


def test_without_limits_a_holder_has_cautious_ones(write):
    settings = loaded(write)
    assert settings.limits == OwnLimits()
    assert (settings.limits.epsilon_total, settings.limits.epsilon_per_run) == (20.0, 8.0)
    assert (settings.limits.smallest_cohort, settings.limits.smallest_sum) == (3, 3)
    assert settings.identity is None and settings.enrolment is None


def test_settings_cannot_be_changed(write):
    settings = loaded(write)
    with pytest.raises(pydantic.ValidationError):
        settings.limits.epsilon_total = 1000.0


def test_no_limit_has_to_be_said(write):
    settings = loaded(write, limits={"epsilon_total": None, "epsilon_per_run": None})
    assert settings.limits.epsilon_total is None and settings.limits.epsilon_per_run is None


def test_the_example_has_every_key_with_its_default():
    settings = load_holder(EXAMPLE)
    tree = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(tree) == set(HolderSettings.model_fields)
    assert set(tree["limits"]) == set(OwnLimits.model_fields)
    assert settings.limits == OwnLimits()


# --- sixty mistakes -----------------------------------------------------------------------------

CHANGED: dict[str, tuple[str, Any, str]] = {
    "unknown key": ("colour", "red", "colour: is not a known key; valid keys: name, data, "),
    "unknown limit": (
        "limits.epsilon",
        3.0,
        "limits.epsilon: is not a known key; valid keys: epsilon_total, epsilon_per_run, ",
    ),
    "unknown key of data": ("data.path", "x", "data.path: is not a known key; valid keys: root"),
    "a run's key": ("privacy", {"mechanism": "none"}, "privacy: is not a known key; "),
    "no name": ("name", None, "name: None is not valid; "),
    "empty name": ("name", "", "name: '' is not valid; "),
    "a path for a name": ("name", "../north", "name: '../north' is not valid; "),
    "a space in the name": ("name", "a b", "name: 'a b' is not valid; "),
    "a line in the name": ("name", "north\n", "name: 'north\\n' is not valid; "),
    "a long name": ("name", "n" * 64, "name: 'nnn"),
    "a hidden name": ("name", ".north", "name: '.north' is not valid; "),
    "a number for a name": ("name", 7, "name: 7 is not valid; "),
    "a list for a name": ("name", ["north"], "name: "),
    "no section of data": ("data", None, "data: None is not valid; "),
    "a path for data": ("data", "./images", "data: './images' is not valid; "),
    "no root": ("data", {}, "data.root: is missing; it must be given"),
    "empty root": ("data.root", "", "data.root: '' is not valid; it must be a path"),
    "null root": ("data.root", None, "data.root: None is not valid; it must be a path"),
    "number for a root": ("data.root", 3, "data.root: 3 is not valid; it must be a path"),
    "list for a root": ("data.root", ["a"], "data.root: "),
    "zero byte": ("data.root", "a\0b", "data.root: 'a\\x00b' is not valid; it must be a path"),
    "nobody's home": ("data.root", "~nobody-here/x", "data.root: '~nobody-here/x' is in no known"),
    "null storage": ("storage", None, "storage: None is not valid; it must be a path"),
    "truth for storage": ("storage", True, "storage: True is not valid; it must be a path"),
    "storage among images": ("storage", "./images/north", "storage: "),
    "storage is the images": ("storage", "images", "storage: "),
    "storage by a detour": ("storage", "./x/../images/s", "storage: "),
    "number for a key": ("identity", 5, "identity: 5 is not valid; it must be a path"),
    "key without enrolment": ("enrolment", None, "enrolment: is missing and identity is given"),
    "enrolment without key": ("identity", None, "identity: is missing and enrolment is given"),
    "number for a socket": ("socket", 9, "socket: 9 is not valid; it must be a path"),
    "no such device": ("device", "tpu", "device: 'tpu' is not valid; "),
    "no thread": ("threads", 0, "threads: 0 is not valid; "),
    "half a thread": ("threads", 1.5, "threads: 1.5 is not valid; "),
    "text for threads": ("threads", "2", "threads: '2' is not valid; "),
    "list for limits": ("limits", [], "limits: () is not valid; "),
    "null limits": ("limits", None, "limits: None is not valid; "),
    "negative total": ("limits.epsilon_total", -1.0, "limits.epsilon_total: -1.0 is not valid; "),
    "total of zero": ("limits.epsilon_total", 0, "limits.epsilon_total: 0 is not valid; "),
    "infinite total": ("limits.epsilon_total", float("inf"), "limits.epsilon_total: inf is not "),
    "total that is none": (
        "limits.epsilon_total",
        float("nan"),
        "limits.epsilon_total: nan is not valid; ",
    ),
    "text for the total": ("limits.epsilon_total", "20", "limits.epsilon_total: '20' is not "),
    "truth for the total": ("limits.epsilon_total", True, "limits.epsilon_total: True is not "),
    "negative for a run": ("limits.epsilon_per_run", -8, "limits.epsilon_per_run: -8 is not "),
    "nan for a run": ("limits.epsilon_per_run", float("nan"), "limits.epsilon_per_run: nan is "),
    "list for a run": ("limits.epsilon_per_run", [8.0], "limits.epsilon_per_run: "),
    "delta of zero": ("limits.delta", 0.0, "limits.delta: 0.0 is not valid; "),
    "delta of one": ("limits.delta", 1.0, "limits.delta: 1.0 is not valid; "),
    "negative delta": ("limits.delta", -1e-5, "limits.delta: -1e-05 is not valid; "),
    "delta that is none": ("limits.delta", float("nan"), "limits.delta: nan is not valid; "),
    "null delta": ("limits.delta", None, "limits.delta: None is not valid; "),
    "nobody in a round": ("limits.smallest_cohort", 0, "limits.smallest_cohort: 0 is not valid; "),
    "null cohort": ("limits.smallest_cohort", None, "limits.smallest_cohort: None is not valid; "),
    "part of a sum": ("limits.smallest_sum", 2.5, "limits.smallest_sum: 2.5 is not valid; "),
    "less than a sum": ("limits.smallest_sum", -3, "limits.smallest_sum: -3 is not valid; "),
    "unknown method": (
        "limits.methods",
        ["promptfll"],
        "limits.methods: 'promptfll' is unknown; valid: ",
    ),
    "a path for a method": ("limits.methods", ["../x"], "limits.methods: '../x' is unknown; "),
    "no method": ("limits.methods", [], "limits.methods: () is not valid; "),
    "text for methods": ("limits.methods", "promptfl", "limits.methods: 'promptfl' is not valid"),
    "number for a method": ("limits.methods", [3], "limits.methods.0: 3 is not valid; "),
    "unknown mechanism": (
        "limits.mechanisms",
        ["magic"],
        "limits.mechanisms: 'magic' is unknown; valid: none, dp_sgd, ",
    ),
    "no mechanism": ("limits.mechanisms", [], "limits.mechanisms: () is not valid; "),
    "unknown relation": ("limits.relations", ["swap"], "limits.relations.0: 'swap' is not valid; "),
    "no relation": ("limits.relations", [], "limits.relations: () is not valid; "),
    "unknown adversary": ("limits.adversary", "bold", "limits.adversary: 'bold' is not valid; "),
    "null adversary": ("limits.adversary", None, "limits.adversary: None is not valid; "),
    "no noise and a bound": (
        "limits.mechanisms",
        ["upload_noise", "none"],
        "limits.mechanisms: 'none' spends an infinite epsilon, and limits.epsilon_total is 20; ",
    ),
}


def changed(key: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(WHOLE)
    *sections, last = key.split(".")
    place = tree
    for name in sections:
        place = place[name]
    place[last] = value
    return tree


@pytest.mark.parametrize("name", CHANGED)
def test_a_mistake_is_one_sentence(write, name):
    key, value, sentence = CHANGED[name]
    assert refused(write(yaml.safe_dump(changed(key, value)))).startswith(sentence)


TEXTS: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "holds no mapping"),
    "a comment": ("# name: north\n", "holds no mapping"),
    "a list": ("- name: north\n", "holds no mapping"),
    "a text": ("north\n", "holds no mapping"),
    "code": ("!!python/object/apply:os.system ['true']\n", "is not plain data"),
    "code in a value": ("name: !!python/name:os.system\n", "is not plain data"),
    "a module": ("name: !!python/module:os\n", "is not plain data"),
    "a tuple": ("name: !!python/tuple [a]\n", "is not plain data"),
    "an alias": ("name: &a north\nstorage: *a\n", "an alias is not allowed"),
    "a key twice": ("name: north\nname: south\n", "the key 'name' is given twice"),
    "a limit twice": (
        "name: north\nlimits: {epsilon_total: 1.0, epsilon_total: 1.0e9}\n",
        "the key 'epsilon_total' is given twice",
    ),
    "a merge": (
        "name: north\ndata: {root: i}\nstorage: s\n<<: {threads: 2}\n",
        "<<: is not a known key",
    ),
    "two documents": ("name: north\n---\nname: south\n", "single document"),
    "half a mapping": ("name: {north\n", "is not readable YAML"),
    "a tab": ("limits:\n\tepsilon_total: 3\n", "is not readable YAML"),
    "no text": (b"\xff\xfe\x00", "is not readable YAML"),
    "a zero byte": (b"name: a\x00b\n", "is not readable YAML"),
    "a number beyond all": (f"threads: {10**30}\n", "is not readable YAML"),
    "no end of levels": ("a: " + "{a: " * 60 + "1" + "}" * 60, "levels deep"),
    "a key that is a number": ("1: north\n", ""),
    "a key that is a list": ("[1, 2]: north\n", ""),
    "a date": ("name: 2026-11-22\n", ": is missing; it must be given"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_settings_is_one_sentence(write, name):
    text, words = TEXTS[name]
    assert words in refused(write(text))


@pytest.mark.parametrize("key", ["name", "data", "storage"])
def test_what_must_be_given_is_named(write, key):
    tree = {name: value for name, value in LEAST.items() if name != key}
    assert refused(write(yaml.safe_dump(tree))) == f"{key}: is missing; it must be given"


def test_no_file_and_a_folder_are_one_sentence(tmp_path):
    assert "is no file; valid: a YAML file" in refused(tmp_path / "client.yaml")
    assert "is no file; valid: a YAML file" in refused(tmp_path)
    assert "is no file" in refused(Path("x" * 5000))


def test_a_link_does_not_hide_that_storage_lies_among_images(write, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "images", target_is_directory=True)
    assert "lies in data.root" in refused(write(yaml.safe_dump({**LEAST, "storage": "link/store"})))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert load_holder(write(yaml.safe_dump({**LEAST, "storage": "loop/store"}))).storage


def test_an_active_adversary_needs_an_identity(write):
    message = refused(write(yaml.safe_dump({**LEAST, "limits": {"adversary": "active"}})))
    assert message.startswith("limits.adversary: active needs identity and enrolment")


@pytest.mark.parametrize(
    ("total", "per_run", "is_valid"),
    [(None, None, True), (20.0, None, False), (None, 8.0, False)],
)
def test_none_is_allowed_only_without_any_bound(write, total, per_run, is_valid):
    limits = {"mechanisms": ["none"], "epsilon_total": total, "epsilon_per_run": per_run}
    path = write(yaml.safe_dump({**LEAST, "limits": limits}))
    if is_valid:
        assert load_holder(path).limits.mechanisms == ("none",)
    else:
        assert "'none' spends an infinite epsilon" in refused(path)
