"""Every key of a configuration says what it is, in one place, and the page says no other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs.pages.keys import page
from platform.config import RunConfig, load_config
from platform.config.run import known_keys

ROOT = Path(__file__).parents[2]
KEYS = known_keys()


def test_values_in_words():
    words = {key.name: key.values for key in KEYS}
    assert words["seed"] == "integer at least 0 and at most 9223372036854775807"
    assert words["task.model"] == "section or null"
    assert words["cohort.dropout_rate"] == "number at least 0 and below 1"


def test_defaults_are_what_a_configuration_gets():
    """Read back as YAML, from a configuration that gives nothing but what it must."""
    needed = {"name": "x", "method": {"name": "coop"}, "training": {"local_steps": 1}}
    tree = RunConfig.model_validate(needed).model_dump(mode="json")
    given = ("name", "method.name", "training.local_steps", "task.model")
    # Their sections are not there by default.
    apart = ("privacy.adaptive_clipping.", "public_data.", "federation.", "audit.")
    apart += ("training.schedule.",)
    for key in KEYS:
        if key.name in given or key.name.startswith(apart):
            continue
        found = tree
        for part in key.name.split("."):
            found = found[part]
        assert yaml.safe_load(key.default) == found or float(key.default) == found


def test_the_page_defines_every_key_once(tmp_path: Path):
    for key in KEYS:
        assert re.fullmatch(r"[A-Z`].*\s.*\.", key.meaning)
    headings = re.findall(r"^## (.*)$", page(tmp_path), re.MULTILINE)
    sections = dict.fromkeys(key.name.partition(".")[0] for key in KEYS if "." in key.name)
    assert headings == ["The run", *sections]
    found = re.findall(r"^`([\w.]+)`\n: (.*)\n\n  \*(.*); (.*)\*$", page(tmp_path), re.MULTILINE)
    expected = {"required": "required", "section": "by default a section"}
    assert found == [
        (
            key.name,
            key.meaning,
            key.values,
            expected.get(key.default, f"by default `{key.default}`"),
        )
        for key in KEYS
    ]


def test_the_example_of_a_changed_configuration_is_one(tmp_path: Path):
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(extends:.*?)```", text, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(example)
    config, base = load_config(path), load_config(Path("expert-pool"))
    assert (config.name, config.task.shots) == ("one-prompt", 4)
    assert config.method == load_config(Path("expert-pool"), ["method.name=promptfl"]).method
    assert (config.privacy, config.rounds) == (base.privacy, base.rounds)
