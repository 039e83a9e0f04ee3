"""Methods that break one rule each: the suite finds each of them, and says which rule it was.

Each is the method that `new method` writes, with something added.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from platform.cli.configs import new_plugin_command
from platform.contract import test_training
from platform.contract.plugin import rule_of
from tests._forking import ROOT, run_tests

pytestmark = pytest.mark.slow
UPDATE = """
    def client_update(self, view, data, trainer, rng):
        result = super().client_update(view, data, trainer, rng)
        moved = result.update[SCALE]
        {then}
        return LocalResult({{SCALE: moved}}, None, {own})
"""
PERSONAL = """
    has_personal_state: bool = field(default=True, init=False)

    def init_client(self, shared_rng, client_rng):
        return {"own": np.zeros(self.captions.backbone.embed_dim, np.float32)}
"""


def update(then: str, own: str = "{}") -> str:
    return UPDATE.format(then=then, own=own)


BROKEN: Mapping[str, tuple[str, object]] = {
    "leaks": (
        PERSONAL
        + update(
            'own = view.personal["own"] + moved; moved = moved + 0.1 * own', own='{"own": own}'
        ),
        test_training.test_personal_state_does_not_leave_in_what_is_trained,
    ),
    "leaks_into_a_pool": (
        PERSONAL
        + update('own = view.personal["own"] + moved', own='{"own": own}').replace(
            "None, {", '{"own": own}, {'
        )
        + """
    def pool_policy(self):
        return PoolPolicy({"own": TensorSpec((self.captions.backbone.embed_dim,))}, 1)
""",
        test_training.test_personal_state_does_not_leave_in_what_is_trained,
    ),
    "noisy": (
        update("moved = moved + rng.normal(0, 0.1, moved.shape).astype(np.float32)"),
        test_training.test_a_method_draws_no_noise,
    ),
    "noisy_by_itself": (
        update("moved = moved + np.random.normal(0, 0.1, moved.shape).astype(np.float32)"),
        test_training.test_a_method_draws_no_noise,
    ),
    "remembers": (
        "\n    calls: list = field(default_factory=list)\n"
        + update("self.calls.append(1); moved = moved * np.float32(len(self.calls))"),
        test_training.test_a_method_keeps_nothing_between_calls,
    ),
    "remembers_in_its_module": (
        update("CALLS.append(1); moved = moved * np.float32(len(CALLS))"),
        test_training.test_a_method_keeps_nothing_between_calls,
    ),
    "misshapen": (update("moved = moved[1:]"), test_training.test_the_update_is_what_was_announced),
    "not_finite": (
        update("moved = moved * np.float32(np.inf)"),
        test_training.test_the_update_is_what_was_announced,
    ),
    "unseeded": (
        """
    def client_update(self, view, data, trainer, rng):
        return super().client_update(view, data, trainer, np.random.default_rng())
""",
        test_training.test_one_seed_gives_one_result,
    ),
    "writes": (
        update("view.broadcast[SCALE][:] = 1"),
        test_training.test_nothing_that_is_handed_in_is_kept_or_changed,
    ),
    "writes_by_force": (
        update("labels = data.arrays['labels']; labels.flags.writeable = True; labels[:] = 0"),
        test_training.test_nothing_that_is_handed_in_is_kept_or_changed,
    ),
    "idle": (
        update("moved = moved * np.float32(0)"),
        test_training.test_training_moves_something_or_the_method_says_that_it_does_not,
    ),
    "tells_more": (
        update("pass").replace("None, {}", "{SCALE: moved}, {}"),
        test_training.test_a_client_without_shared_tensors_or_pool_releases_nothing,
    ),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the suite says of all of them, and of the method that they were made from."""
    folder = tmp_path_factory.mktemp("broken")
    for name in ("untouched", *BROKEN):
        write(folder, name, BROKEN[name][0] if name in BROKEN else "")
    code, said = run_tests(ROOT, "platform/contract/test_training.py", "--plugins", str(folder))
    assert code == 1
    return said


def write(folder: Path, name: str, added: str) -> None:
    new_plugin_command("method", name, folder, as_json=True)
    path = folder / f"{name}.py"
    text = path.read_text()
    text = text.replace("import dataclass\n", "import dataclass, field\n")
    text = text.replace("import Arrays", "import LocalResult, PoolPolicy, Arrays")
    text = text.replace('SCALE = "scale"\n', 'SCALE = "scale"\nCALLS = []\n')
    place = "\n    def training_objective"
    assert text.count(place) == 1
    path.write_text(text.replace(place, f"{added}{place}"))


def broken(said: str) -> dict[str, list[str]]:
    """The rules that the suite says are broken, each with the methods that break it."""
    told = said.partition("rules of the contract that are broken")[2].partition("short test")[0]
    lines = [line for line in told.splitlines() if ": " in line]
    return {line.partition(": ")[2]: line.partition(": ")[0].split(", ") for line in lines}


@pytest.mark.parametrize("name", BROKEN)
def test_the_rule_that_is_broken_is_named(said: str, name: str):
    rule = rule_of(BROKEN[name][1])
    assert len(rule) > 20
    assert name in broken(said)[rule]
    # Beside the failure too, for whoever looks there.
    assert "the rule that is broken -" in said and rule in said.partition("short test")[0]


def test_the_method_that_they_were_made_from_breaks_none(said: str):
    assert "untouched" not in {name for names in broken(said).values() for name in names}
