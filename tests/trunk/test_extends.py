"""`extends:` in a configuration: what a base gives, what a file changes, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from platform.config import Sources, load_config
from platform.config.files import packaged_names
from platform.config.loading import LONGEST_CHAIN, change, read_whole
from platform.errors import ConfigError

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
    def write(name: str, content: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def extended(write):
    def extended(changes, base=BASE, *overrides):
        write("base.yaml", base)
        return load_config(write("run.yaml", {"extends": "base.yaml", **changes}), overrides)

    return extended


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_what_another_method_drops_of_its_base_is_said(extended):
    (said,) = extended({"method": {"name": "pfedmoap"}}).remarks
    assert said.startswith("method.name: pfedmoap takes")
    # What the file gives anew is not lost, nor is what the preset has as well.
    assert extended({"method": {"name": "pfedmoap", "context_tokens": 5}}).remarks == ()
    preset = {**BASE, "method": {"name": "promptfl", "context_tokens": 16}}
    assert extended({"method": {"name": "pfedmoap"}}, preset).remarks == ()


@pytest.mark.slow
def test_no_packaged_configuration_drops_what_its_base_says():
    for name in packaged_names(Sources()):
        assert load_config(Path(name)).remarks == (), name


SCALARS = st.none() | st.integers(-3, 3) | st.text("abc", max_size=2) | st.lists(st.integers(0, 2))
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), SCALARS, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), SCALARS | inner, max_size=3),
    max_leaves=12,
)


def leaves(tree, path=()):
    """Every value that is no mapping with keys, under the keys that lead to it."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def by_hand(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
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


@given(st.lists(TREES, min_size=1, max_size=LONGEST_CHAIN))
def test_a_chain_of_files_is_its_trees_merged_in_order(tmp_path_factory, trees):
    folder = tmp_path_factory.mktemp("chain")
    before = copy.deepcopy(trees)
    expected: dict[str, Any] = {}
    for number, tree in enumerate(trees):
        named = {"extends": f"{number - 1}.yaml"} if number else {}
        (folder / f"{number}.yaml").write_text(yaml.safe_dump({**named, **tree}))
        expected = by_hand(expected, tree)
    assert read_whole(folder / f"{len(trees) - 1}.yaml", Sources())[0] == expected
    merged = trees[0]
    for tree in trees[1:]:
        merged = change(merged, tree, Sources())
    assert merged == expected and trees == before


def test_mechanism_none_drops_what_no_longer_applies_before_other_keys(extended):
    changes = {"privacy": {"target_delta": 0.01, "mechanism": "none"}, "evaluation": {"every": 1}}
    config = extended(changes, PRIVATE)
    expected = extended({}, BASE).privacy.model_copy(update={"target_delta": 0.01})
    assert config.privacy == expected and config.pool.clipping_norm is None
    assert (config.evaluation.release, config.evaluation.every) == ("none", 1)


def test_noise_that_is_named_in_two_ways_is_refused(write):
    """A base's number does not vanish because a file gives the other one of a pair."""
    write("base.yaml", PRIVATE)
    path = write("run.yaml", {"extends": "base.yaml", "privacy": {"target_epsilon": 4.0}})
    assert refused(path).startswith("privacy.noise_multiplier: ")
    both = {"target_epsilon": 4.0, "noise_multiplier": None}
    path = write("run.yaml", {"extends": "base.yaml", "privacy": both})
    assert load_config(path).privacy.target_epsilon == 4.0


def test_a_base_is_packaged_or_lies_relative_to_the_file_that_names_it(
    write, tmp_path, monkeypatch
):
    write("deep/er/first.yaml", BASE)
    write("deep/second.yaml", {"extends": "er/first.yaml", "rounds": 4})
    path = write("run.yaml", {"extends": "deep/second.yaml", "seed": 7})
    write("er/first.yaml", {**BASE, "rounds": 1000})
    monkeypatch.chdir(tmp_path / "er")
    config = load_config(path)
    assert (config.name, config.rounds, config.seed) == ("base", 4, 7)
    path = write("run.yaml", {"extends": "papers/trip/table-1-pacs", "name": "mine"})
    base = load_config(Path("papers/trip/table-1-pacs"))
    assert load_config(path) == base.model_copy(update={"name": "mine"})


@pytest.mark.parametrize(
    "name",
    [
        *("nothing.yaml", "quickstart.yaml", "base", "", ".", "../outside.yaml"),
        *("inner/../../outside.yaml", "linked.yaml", "linked/outside.yaml"),
        *("../configs/quickstart", "methods/../quickstart", "https://example.org/base.yaml"),
        *("absolute", "a" * 5000 + ".yaml", "a\0.yaml", "inner.yaml", 3, None, ["base.yaml"]),
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_a_base_that_may_not_be_named_is_refused(write, tmp_path, name):
    outside = write("outside.yaml", BASE)
    write("here/base.yaml", BASE)
    (tmp_path / "here" / "inner.yaml").mkdir()
    (tmp_path / "here" / "inner").mkdir()
    (tmp_path / "here" / "linked.yaml").symlink_to(outside)
    (tmp_path / "here" / "linked").symlink_to(tmp_path)
    name = str(tmp_path / "here" / "base.yaml") if name == "absolute" else name
    message = refused(write("here/run.yaml", {"extends": name}))
    assert message.startswith(f"extends: {name!r} in ") and "no configuration" in message


def test_a_circle_and_a_chain_that_is_too_long_are_refused(write, tmp_path):
    write("0.yaml", BASE)
    for number in range(1, LONGEST_CHAIN + 1):
        last = write(f"{number}.yaml", {"extends": f"{number - 1}.yaml"})
    assert "too long" in refused(last)
    for length in (1, 3):
        for number in range(length):
            write(f"{number}.yaml", {**BASE, "extends": f"{(number + 1) % length}.yaml"})
        assert "back to itself" in refused(write("run.yaml", {"extends": "0.yaml"}))
    # Each time round a link, the same file has another path.
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "back to itself" in refused(write("run.yaml", {"extends": "loop/run.yaml"}))


def test_extends_is_a_key_of_files_alone(write):
    path = write("run.yaml", BASE)
    assert refused(path, "extends=quickstart").startswith("extends: ")
    nested = write("run.yaml", {**BASE, "task": {"extends": "quickstart"}})
    assert refused(nested).startswith("task.extends: ")
