"""`extends:` in a configuration: what a base gives, what a file changes, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from platform.bootstrap import create_run
from platform.config import PACKAGED_CONFIGS, RunConfig, Sources, dump_config, load_config
from platform.config.files import packaged_names
from platform.config.loading import LONGEST_CHAIN, change, read_whole
from platform.errors import ConfigError
from platform.rounds.observing import SilentObserver
from platform.sweeping.grid import SweepRequest, build_grid
from tests.trunk._runs import SMALL, opened

BASE: dict[str, Any] = {
    "name": "base",
    "rounds": 3,
    "task": {"clients": 4, "domains": ["ink", "chalk"], "partition": {"kind": "iid"}},
    "method": {"name": "promptfl", "context_tokens": 5},
    "training": {"local_steps": 1, "learning_rate": 0.5},
}
PRIVATE: dict[str, Any] = {
    **BASE,
    "privacy": {
        "mechanism": "upload_noise",
        "clipping_norm": 1.0,
        "noise_multiplier": 2.0,
        "target_delta": 1e-6,
        "spare_attempts": 2,
    },
    "task": {**BASE["task"], "validation_share": 0.2},
    "evaluation": {"release": "noised", "every": 2, "selection": "best_on_validation"},
    "pool": {"clipping_norm": 2.0, "generations": 1},
}


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file of this content, and gives its path."""

    def write(name: str, content: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def extended(write):
    """Reads a file that changes a base."""

    def extended(
        changes: dict[str, Any], base: dict[str, Any] = BASE, *overrides: str
    ) -> RunConfig:
        write("base.yaml", base)
        return load_config(write("run.yaml", {"extends": "base.yaml", **changes}), overrides)

    return extended


def refused(path: Path, *overrides: str) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# --- what is merged -----------------------------------------------------------------------------


def test_sections_are_merged_key_by_key(extended):
    config = extended({"task": {"partition": {"kind": "dirichlet", "alpha": 0.3}}, "rounds": 9})
    assert (config.name, config.rounds, config.task.clients) == ("base", 9, 4)
    assert (config.task.partition.kind, config.task.partition.alpha) == ("dirichlet", 0.3)
    assert config.method.options == {"context_tokens": 5}
    assert config.training.learning_rate == 0.5


def test_a_list_takes_the_place_of_a_list(extended):
    assert extended({"task": {"domains": ["ink"]}}).task.domains == ("ink",)


def test_null_is_a_value_like_another_and_no_way_back_to_a_default(extended):
    assert extended({"task": {"domains": None}}).task.domains is None
    assert extended({"task": {"shots": None, "dataset": "cifar10"}}).task.shots is None
    assert extended({"task": {"model": None}}).task.model is None
    with pytest.raises(ConfigError, match=r"^rounds: None is not valid"):
        extended({"rounds": None})


def test_a_file_that_changes_nothing_is_its_base(extended, tmp_path):
    assert extended({}) == load_config(tmp_path / "base.yaml")


def test_overrides_come_after_all_files(extended):
    config = extended({"rounds": 9}, BASE, "rounds=2", "method.name=fedpgp", "task.clients=3")
    assert (config.rounds, config.task.clients) == (2, 3)
    assert config.method == load_config(Path("quickstart"), ["method.name=fedpgp"]).method


def test_the_effective_configuration_is_whole(extended):
    config = extended({"rounds": 9})
    dumped = yaml.safe_load(dump_config(config))
    assert "extends" not in dumped
    assert dumped["task"]["clients"] == 4


@pytest.mark.timeout(120)
def test_a_run_needs_neither_file_again(write, storage):
    write("base.yaml", yaml.safe_load(SMALL))
    own = {"extends": "base.yaml", "privacy": {"mechanism": "none"}, "rounds": 2}
    path = write("run.yaml", own)
    config = load_config(path, [f"storage.url={storage.url}"])
    with opened(create_run(config, SilentObserver(), storage.surroundings)) as simulation:
        run_id = simulation.run_id
    recorded = storage.folder / run_id / "config.yaml"
    assert load_config(recorded) == config
    (path.parent / "base.yaml").unlink()
    path.unlink()
    finished = storage.resume(run_id)
    assert len(finished.summary["rounds"]) == 2
    assert load_config(recorded) == config


def test_a_sweep_takes_such_files_and_changes_them_further(write):
    write("base.yaml", BASE)
    path = write("run.yaml", {"extends": "base.yaml", "rounds": 9})
    settings = ("method.context_tokens=1,2",)
    grid = build_grid(SweepRequest(configs=(str(path),), methods=(), settings=settings))
    found = [(cell.run.rounds, cell.run.method.options["context_tokens"]) for cell in grid.cells]
    assert found == [(9, 1), (9, 2)]


def test_what_another_method_drops_of_its_base_is_said(extended, write):
    """It was dropped without a word."""
    (said,) = extended({"method": {"name": "pfedmoap"}}).remarks
    assert said == (
        "method.name: pfedmoap takes the place of promptfl with the options of its preset, so "
        "these of the configuration are dropped: context_tokens: 5"
    )
    # What the file gives anew is not lost, nor is what the preset has as well.
    assert extended({"method": {"name": "pfedmoap", "context_tokens": 5}}).remarks == ()
    preset = {**BASE, "method": {"name": "promptfl", "context_tokens": 16}}
    assert extended({"method": {"name": "pfedmoap"}}, preset).remarks == ()
    for same in ({"context_tokens": 2}, {"name": "promptfl", "context_tokens": 2}):
        assert extended({"method": same}).remarks == ()
    write("middle.yaml", {"extends": "base.yaml", "method": {"name": "trip", "seed": 1}})
    write("base.yaml", BASE)
    last = write("last.yaml", {"extends": "middle.yaml", "method": {"name": "promptfl"}})
    first, second = load_config(last, ["rounds=2"]).remarks
    assert first.startswith("method.name: trip takes the place of promptfl")
    assert second.startswith("method.name: promptfl takes the place of trip")


def test_it_is_said_before_the_run(sotto, write, tmp_path):
    write("base.yaml", {**yaml.safe_load(SMALL), "storage": {"url": f"sqlite:///{tmp_path}/a.db"}})
    path = write("run.yaml", {"extends": "base.yaml", "method": {"name": "promptfl"}})
    answer = sotto("run", str(path), "--set", "privacy.mechanism=none", "--set", "rounds=1")
    assert answer.code == 0, answer.err
    said, _, _ = answer.out.partition("run small-")
    assert "promptfl takes the place of pfedmoap" in said
    assert "are dropped: context_tokens: 2, experts: 1" in said


def test_no_packaged_configuration_drops_what_its_base_says():
    for name in packaged_names(Sources()):
        assert load_config(Path(name)).remarks == (), name


SCALARS = st.none() | st.integers(-3, 3) | st.text("abc", max_size=2) | st.lists(st.integers(0, 2))
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), SCALARS, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), SCALARS | inner, max_size=3),
    max_leaves=12,
)


def leaves(
    tree: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no mapping with keys, under the keys that lead to it."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def by_hand(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The base with each value of the changes put at its place."""
    tree = copy.deepcopy(base)
    for path, value in leaves(changes):
        here = tree
        for key in path[:-1]:
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
        if not (value == {} and isinstance(here.get(path[-1]), dict)):
            here[path[-1]] = value
    return tree


@given(TREES, TREES)
def test_merging_is_putting_every_value_at_its_place(base, changes):
    before = copy.deepcopy((base, changes))
    assert change(base, changes, Sources()) == by_hand(base, changes)
    assert (base, changes) == before


@given(st.lists(TREES, min_size=1, max_size=LONGEST_CHAIN))
def test_a_chain_of_files_is_its_trees_merged_in_order(tmp_path_factory, trees):
    folder = tmp_path_factory.mktemp("chain")
    expected: dict[str, Any] = {}
    for number, tree in enumerate(trees):
        named = {"extends": f"{number - 1}.yaml"} if number else {}
        (folder / f"{number}.yaml").write_text(yaml.safe_dump({**named, **tree}))
        expected = by_hand(expected, tree)
    assert read_whole(folder / f"{len(trees) - 1}.yaml", Sources())[0] == expected


# --- keys that change more than themselves ------------------------------------------------------


def test_another_method_brings_its_preset_before_other_keys(extended):
    preset = yaml.safe_load((PACKAGED_CONFIGS / "methods" / "fedpgp.yaml").read_text())
    config = extended({"method": {"bottleneck": 3, "name": "fedpgp"}})
    assert config.method.name == "fedpgp"
    options = {key: value for key, value in preset.items() if key != "name"}
    assert config.method.options == {**options, "bottleneck": 3}


@pytest.mark.parametrize("section", [{"name": "promptfl"}, {}])
def test_the_same_method_keeps_the_options_of_the_base(extended, section):
    config = extended({"method": {**section, "prompt": "x"}})
    assert config.method.options == {"context_tokens": 5, "prompt": "x"}


def test_an_unknown_method_is_refused_by_its_name(write):
    write("base.yaml", BASE)
    path = write("run.yaml", {"extends": "base.yaml", "method": {"name": "fedfoo"}})
    assert refused(path).startswith("method.name: 'fedfoo' is unknown; valid: ")


def test_mechanism_none_drops_what_no_longer_applies_before_other_keys(extended):
    changes = {"privacy": {"target_delta": 0.01, "mechanism": "none"}, "evaluation": {"every": 1}}
    config = extended(changes, PRIVATE)
    expected = extended({}, BASE).privacy.model_copy(update={"target_delta": 0.01})
    assert config.privacy == expected
    assert (config.evaluation.release, config.evaluation.every) == ("none", 1)
    assert config.evaluation.selection == "best_on_validation"
    assert config.pool.clipping_norm is None


def test_mechanism_none_beside_a_norm_of_its_own_is_refused(write):
    write("base.yaml", PRIVATE)
    privacy = {"mechanism": "none", "clipping_norm": 2.0}
    path = write("run.yaml", {"extends": "base.yaml", "privacy": privacy})
    assert refused(path).startswith("privacy.clipping_norm: 2.0 has no meaning")


def test_noise_that_is_named_in_two_ways_is_refused(write):
    """A base's number does not vanish because a file gives the other one of a pair."""
    write("base.yaml", PRIVATE)
    path = write("run.yaml", {"extends": "base.yaml", "privacy": {"target_epsilon": 4.0}})
    assert refused(path).startswith("privacy.noise_multiplier: give exactly one of ")
    both = {"target_epsilon": 4.0, "noise_multiplier": None}
    path = write("run.yaml", {"extends": "base.yaml", "privacy": both})
    assert load_config(path).privacy.target_epsilon == 4.0


# --- where a base may lie -----------------------------------------------------------------------


def test_a_packaged_configuration_is_a_base_by_its_name(write):
    path = write("run.yaml", {"extends": "papers/trip/table-1-pacs", "name": "mine"})
    base = load_config(Path("papers/trip/table-1-pacs"))
    assert load_config(path) == base.model_copy(update={"name": "mine"})


def test_a_path_is_relative_to_the_file_that_names_it(write, tmp_path, monkeypatch):
    write("deep/er/first.yaml", BASE)
    write("deep/second.yaml", {"extends": "er/first.yaml", "rounds": 4})
    path = write("run.yaml", {"extends": "deep/second.yaml", "seed": 7})
    write("er/first.yaml", {**BASE, "rounds": 1000})
    monkeypatch.chdir(tmp_path / "er")
    config = load_config(path)
    assert (config.name, config.rounds, config.seed) == ("base", 4, 7)


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "nothing.yaml",
        "quickstart.yaml",
        "base",
        "",
        ".",
        "..",
        ".yaml",
        "../outside.yaml",
        "inner/../../outside.yaml",
        "inner/../base.yaml",
        "linked.yaml",
        "linked/outside.yaml",
        "../configs/quickstart",
        "methods/../quickstart",
        "https://example.org/base.yaml",
        "file:///base.yaml",
        "a" * 5000,
        "a" * 5000 + ".yaml",
        "a\0.yaml",
        "inner.yaml",
        3,
        None,
        True,
        ["base.yaml"],
        {"base": "base.yaml"},
    ],
)
def test_a_base_that_may_not_be_named_is_refused(write, tmp_path, name):
    outside = write("outside.yaml", BASE)
    write("here/base.yaml", BASE)
    (tmp_path / "here" / "inner.yaml").mkdir()
    (tmp_path / "here" / "inner").mkdir()
    (tmp_path / "here" / "linked.yaml").symlink_to(outside)
    (tmp_path / "here" / "linked").symlink_to(tmp_path)
    message = refused(write("here/run.yaml", {"extends": name}))
    assert message.startswith(f"extends: {name!r} in ")
    assert "is no configuration; valid: the name of a packaged one (comparison, " in message


def test_an_absolute_path_is_refused_wherever_it_leads(write):
    base = write("base.yaml", BASE)
    assert "is no configuration" in refused(write("run.yaml", {"extends": str(base)}))
    bare = str(base.with_suffix(""))
    assert "is no configuration" in refused(write("run.yaml", {"extends": bare}))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_is_refused(write, length):
    for number in range(length):
        write(f"{number}.yaml", {**BASE, "extends": f"{(number + 1) % length}.yaml"})
    message = refused(write("run.yaml", {"extends": "0.yaml"}))
    assert message.startswith("extends: '0.yaml' in ")
    assert "leads back to itself" in message


def test_a_circle_through_a_link_is_refused_as_one(write, tmp_path):
    """Each time round, the same file has another path."""
    (tmp_path / "loop").symlink_to(tmp_path)
    path = write("run.yaml", {"extends": "loop/run.yaml"})
    assert "leads back to itself" in refused(path)


@pytest.mark.parametrize("files", [LONGEST_CHAIN, LONGEST_CHAIN + 1])
def test_a_chain_has_a_longest_length(write, files):
    write("0.yaml", BASE)
    for number in range(1, files):
        path = write(f"{number}.yaml", {"extends": f"{number - 1}.yaml"})
    if files == LONGEST_CHAIN:
        assert load_config(path).name == "base"
    else:
        assert f"makes too long a chain; valid: at most {LONGEST_CHAIN} files" in refused(path)


def test_a_base_that_is_no_mapping_is_refused_by_its_path(write, tmp_path):
    (tmp_path / "base.yaml").write_text("- 1\n")
    path = write("run.yaml", {"extends": "base.yaml"})
    assert refused(path) == (
        f"CONFIG: '{tmp_path / 'base.yaml'}' holds no mapping; valid: sections with keys"
    )


def test_extends_is_a_key_of_files_alone(write):
    path = write("run.yaml", BASE)
    assert refused(path, "extends=quickstart").startswith("extends: is not a known key")
    nested = write("run.yaml", {**BASE, "task": {"extends": "quickstart"}})
    assert refused(nested).startswith("task.extends: is not a known key")


def test_a_mistake_in_a_base_is_named_as_ever(write):
    write("base.yaml", {**BASE, "colour": "red"})
    message = refused(write("run.yaml", {"extends": "base.yaml"}))
    assert message.startswith("colour: is not a known key")
