"""`configs`: the packaged configurations, one in full, and all keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from platform.config import PACKAGED_CONFIGS, load_config, parse_config
from platform.config.run import known_keys
from tests.contract._momentum import write_momentum
from tests.trunk._runs import Command


def test_every_packaged_configuration_is_listed_with_a_sentence(sotto: Command) -> None:
    answer = sotto("configs", "--json")
    listed = {each["name"]: each["title"] for each in answer.document}
    parts = [PACKAGED_CONFIGS / "methods", PACKAGED_CONFIGS / "references"]
    every = PACKAGED_CONFIGS.rglob("*.yaml")
    files = {path for path in every if not any(map(path.is_relative_to, parts))}
    assert {PACKAGED_CONFIGS / f"{name}.yaml" for name in listed} == files
    assert listed["papers/trip/table-5-vlcs"] == (
        "TRIP, Table V (parts left out), on VLCS (Gong et al. 2025)"
    )
    assert listed["expert-pool"] == (
        "The method pFedMoAP among ten clients, whose noised prompts are an anonymised pool"
    )
    assert all(listed.values())


def test_the_list_is_for_people_too(sotto: Command) -> None:
    answer = sotto("configs")
    assert (answer.code, answer.err) == (0, "")
    assert "papers/pm-moe/table-4-tiny_imagenet" in answer.out


def test_a_configuration_in_full(sotto: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: papers/fedpgp/table-3-dtd\nname: mine\n")
    answer = sotto("configs", str(path), "--set", "rounds=7")
    tree = yaml.safe_load(answer.out)
    assert "extends" not in tree
    assert (tree["name"], tree["rounds"], tree["task"]["dataset"]) == ("mine", 7, "dtd")
    config = load_config(path, ["rounds=7"])
    assert parse_config(tree) == config
    as_json = sotto("configs", str(path), "--set", "rounds=7", "--json")
    assert parse_config(as_json.document) == config


def test_all_keys(sotto: Command) -> None:
    answer = sotto("configs", "--keys", "--json")
    assert [each["name"] for each in answer.document] == [key.name for key in known_keys()]
    assert "privacy.clipping_norm" in sotto("configs", "--keys").out


@pytest.mark.parametrize(
    "arguments", [("quickstart", "--keys"), ("--set", "rounds=2"), ("--keys", "--set", "rounds=2")]
)
def test_what_does_not_go_together_is_refused(sotto: Command, arguments: tuple[str, ...]) -> None:
    answer = sotto("configs", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: configs: --set needs a CONFIG, and --keys takes neither\n"


def test_an_unknown_one_is_refused(sotto: Command) -> None:
    answer = sotto("configs", "no-such")
    assert answer.code == 2 and "'no-such' is no file; valid: " in answer.err


def test_a_method_of_the_users_own_brings_its_preset(sotto: Command, tmp_path: Path) -> None:
    folder = write_momentum(tmp_path / "mine")
    path = tmp_path / "run.yaml"
    path.write_text("extends: comparison\nmethod: {name: momentum}\n")
    answer = sotto("configs", str(path), "--methods", str(folder), "--json")
    preset = yaml.safe_load((folder / "momentum.yaml").read_text())
    assert answer.document["method"] == {**preset, "server_optimizer": None}
    unknown = sotto("configs", str(path))
    assert unknown.code == 2 and "method.name: 'momentum' is unknown; valid: " in unknown.err
