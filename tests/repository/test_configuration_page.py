"""Every key of a configuration says what it is, in one place, and the page says no other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from platform.config import RunConfig, load_config
from platform.config.run import known_keys

ROOT = Path(__file__).parents[2]
KEYS = known_keys()


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


def test_the_example_of_a_changed_configuration_is_one(tmp_path: Path):
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(extends:.*?)```", text, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(example)
    config, base = load_config(path), load_config(Path("expert-pool"))
    assert (config.name, config.task.shots) == ("one-prompt", 4)
    assert config.method == load_config(Path("expert-pool"), ["method.name=promptfl"]).method
    assert (config.privacy, config.rounds) == (base.privacy, base.rounds)
