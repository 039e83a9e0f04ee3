"""The door that configurations come in by: any text gives a configuration or one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platform.config import RunConfig, dump_config, load_config, parse_config
from platform.config.files import DEEPEST, dump_yaml, read_yaml
from platform.errors import ConfigError

MINIMAL = {"name": "m", "method": {"name": "coop"}, "training": {"local_steps": 1}}

REFUSED = {
    "a list": ("- 1\n- 2\n", "holds no mapping"),
    "nothing": ("", "holds no mapping"),
    "a tab": ("a: 1\n\tb: 2", "is not readable YAML"),
    "a key twice": ("name: a\nseed: 1\nname: b\n", "'name' is given twice, line 3"),
    "twice as text": ("seed: 1\n'seed': 2\n", "'seed' is given twice, line 2"),
    "brackets": ("[" * 100_000, f"{DEEPEST} levels deep, line 1"),
    "lists": ("- " * 5_000, f"{DEEPEST} levels deep, line 1"),
    "no such day": ("a: !!timestamp 2026-02-30", "is not plain data, line 1"),
    "hexadecimal digits": ("seed: 0x" + "f" * 9_000, "cannot be read as int, line 1"),
    "2^63": (f"seed: {2**63}", f"'{2**63}' cannot be read as int, line 1"),
    "itself": ("a: &x [*x]", "not allowed, line 1"),
    "a bomb": ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]", "not allowed, line 2"),
    "no boolean": ("a: !!bool x", "'x' cannot be read as bool, line 1"),
    "a set": ("!!set {a}", "'tag:yaml.org,2002:set' is not plain data, line 1"),
    "a map of a text": ("task: !!map x", "is no map, line 1"),
    "a list of a text": ("task: !!seq x", "line 1"),
    "a merge": ("!!merge <<: {a: 1}", "'tag:yaml.org,2002:merge' is not plain data, line 1"),
    "a list as key": ("? [1]\n: 2", "line 1"),
    "code": ("!!python/object/apply:os.system ['false']", "not plain data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_what_and_where(tmp_path, case):
    text, words = REFUSED[case]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    message = str(refused.value)
    assert words in message and "\n" not in message and len(message) < 9_500


def test_an_override_is_held_to_the_same():
    deep = ("a=" + "[" * 50, "a" + ".a" * 3_000 + "=1")
    for override in (*deep, "seed={a: 1, a: 2}", "rounds=!!map x"):
        with pytest.raises(ConfigError, match=r"^--set: "):
            parse_config(MINIMAL, [override])


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.sampled_from(["2026-02-30", "1e-5", "0x1f", "1_000", "null", "yes", "=", "<<", "1:30"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), PLAIN, max_size=5))
def test_what_is_written_is_read_back(tree):
    assert read_yaml(dump_yaml(tree)) == tree


FRAGMENTS = st.sampled_from(
    [
        *("name", "method", "task", "privacy", "cohort", "seed", "rounds", "clients", "shots"),
        *(": ", "\n", "\n  ", "- ", "{", "}", "[", "]", ", ", "&a ", "*a", "!!int ", "!!float "),
        *("!!timestamp ", "!!bool ", "!!null ", "!!set ", "!x ", "? ", "<<: ", "|", ">", "'", '"'),
        *("!!map ", "!!seq ", "!!str ", "!!merge ", "!!value ", "=: "),
        *("1", "-1", "0x", "1e999", ".nan", "-.inf", "2026-02-30", "9" * 400, "true", "~", "coop"),
        *("%YAML 1.1\n", "---\n", "...\n", "#", "\t", "\x00", "\x1b[31m", "\ud7ff", "\u2028"),
    ]
)
TEXTS = st.text() | st.lists(FRAGMENTS | st.text(max_size=3), max_size=40).map("".join)


@example("9" * 5_000)
@example("[" * 2_000)
@example("{1: 2}")
@example("? {a: 1}\n: 2")
@given(TEXTS)
def test_any_text_gives_a_configuration_or_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "run.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    require_sound(lambda: load_config(path))


SECTIONS = tuple(RunConfig.model_fields)
VALUES = PLAIN | st.sampled_from([-1, 0, 1e308, float("nan"), float("inf")])


@given(st.dictionaries(st.sampled_from(SECTIONS), VALUES, max_size=4), st.data())
def test_any_value_anywhere_gives_a_configuration_or_a_sentence(tree, data):
    whole: dict[str, Any] = {**MINIMAL, **tree}
    sections = ("task", "cohort", "privacy", "training", "secure_aggregation")
    name = data.draw(st.sampled_from(sections))
    fields = tuple(RunConfig.model_fields[name].annotation.model_fields)  # type: ignore[union-attr]
    whole[name] = data.draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=3))
    require_sound(lambda: parse_config(whole))


def require_sound(load: Any) -> None:
    """A configuration that can be written and read again, or one sentence on one line."""
    try:
        config = load()
    except ConfigError as error:
        # Names that were given stand in it as they are; who prints it escapes them.
        assert str(error)
        return
    assert read_yaml(dump_config(config)) == json.loads(config.model_dump_json())
