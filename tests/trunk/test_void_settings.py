"""Settings that do nothing: said before the first round, or refused where a choice is void."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from methods import Registry
from platform.config import load_config
from platform.config.files import PACKAGED_CONFIGS
from platform.config.loading import validate_options
from platform.config.rules import void_settings
from platform.errors import ConfigError
from platform.experiment.method_building import void_options
from platform.experiment.planning import plan_run
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, RECORDS, Storage


class Told(SilentObserver):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def warned(self, sentences: Sequence[str]) -> None:
        self.sentences += sentences


def told(storage: Storage, *overrides: str) -> list[str]:
    watching = Told()
    plan_run(storage.config(*overrides), watching, storage.surroundings)
    return watching.sentences


def why_not(storage: Storage, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        storage.plan(*overrides)
    text = str(caught.value)
    assert "\n" not in text and "valid" in text
    return text


def test_nothing_is_said_of_a_configuration_that_means_all_it_says(storage):
    assert told(storage) == []
    decoupled = (*RECORDS, "privacy.personal=decoupled", "method.decoupled_steps=7")
    assert told(storage, *decoupled) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("task.root=/my/images",), "task.root: /my/images"),
        (("cohort.dropout_rate=0.05",), "cohort.dropout_rate: 0.05"),
        (("evaluation.every=4",), "evaluation.every: 4"),
        ((*NO_POOL, "pool.minimum=3"), "pool.minimum: 3"),
        (("method.experts=4", "pool.minimum=2"), "method.experts: 4"),
        ((NONE, "secure_aggregation.enabled=false"), "secure_aggregation.threshold: 3"),
        (
            (
                *(*NO_POOL, "privacy.mechanism=central_noise"),
                "secure_aggregation={enabled: false}",
                "cohort={sampling: poisson, minimum: 1, retries: 0}",
            ),
            "cohort.sampling: poisson",
        ),
        (("task.dataset=digits", "task.test_per_class=6"), "task.test_per_class: 6"),
        (("method.gate=linear", "method.gate_heads=4"), "method.gate_heads: 4"),
        (("method.decoupled_steps=7",), "method.decoupled_steps: 7"),
        (("method={name: ccst, network: cnn, space: pixels, styles: 9}", NONE), "method.styles: 9"),
    ],
)
def test_what_does_nothing_is_said(storage, overrides, sentence):
    sentences = told(storage, *overrides)
    assert any(one.startswith(sentence) for one in sentences), sentences


def test_a_pool_that_never_serves_is_refused(storage):
    three = ("task.clients=3", "cohort.dropout_rate=0", "secure_aggregation.threshold=2")
    text = why_not(storage, *three, "method.experts=2")
    assert text.startswith("pool.minimum: null")
    assert "3 of 3" in text and "valid: at most 3" in text
    assert told(storage, *three, "method.experts=2", "pool.generations=2") == []
    assert told(storage, *three, "method.experts=2", "pool.minimum=3") == []
    assert "pool.minimum: 4" in why_not(storage, *three, "pool.minimum=4")
    # A client that is lost in each round brings no entry.
    assert "4 of 4" in why_not(storage, "pool.minimum=5")
    assert told(storage, "pool.minimum=4") == []


def test_a_choice_that_would_be_void_is_refused(storage):
    with pytest.raises(ConfigError, match=r"privacy\.spare_attempts: 2"):
        storage.config(NONE, "privacy.spare_attempts=2")


@pytest.mark.parametrize("path", sorted(PACKAGED_CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_no_packaged_configuration_says_what_does_nothing(path):
    config = load_config(path)
    assert config.name == path.stem
    options = validate_options(Registry(), config.method)
    assert [*void_settings(config), *void_options(config, options)] == []


def test_a_run_says_it_first(sotto, storage):
    overrides = [
        *(NONE, "secure_aggregation={enabled: false}", "rounds=1", "task.clients=3"),
        *("cohort={dropout_rate: 0.1}", "task.shots=2", "task.domains=[real]", "name=said"),
        *("method.name=promptfl", "evaluation={worth_of_sharing: false, local_twins: false}"),
        *("task.test_per_class=4", f"storage.url={storage.url}"),
    ]
    sets = [part for override in overrides for part in ("--set", override)]
    answer = sotto("run", "expert-pool", *sets)
    assert answer.code == 0, answer.err
    first, _, rest = answer.out.partition("run said-")
    assert first.startswith("warning: method.name: promptfl")
    assert "warning: cohort.dropout_rate: 0.1" in first and rest
