"""Settings that do nothing: said before the first round, or refused where a choice is void."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from methods import Registry
from platform.bootstrap import plan_run
from platform.config import load_config
from platform.config.files import PACKAGED_CONFIGS
from platform.config.rules import void_settings
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options, void_options
from platform.mechanisms.distributed_noise import DISTRIBUTED_NOISE
from platform.mechanisms.mechanism import Circumstances
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, RECORDS, Storage

CLEAR = (NONE, "secure_aggregation={enabled: false}")


class Told(SilentObserver):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def warned(self, sentences: Sequence[str]) -> None:
        self.sentences += sentences


def told(storage: Storage, *overrides: str) -> list[str]:
    """What a run of the small configuration would be warned of."""
    watching = Told()
    plan_run(storage.config(*overrides), watching, storage.surroundings)
    return watching.sentences


def why_not(storage: Storage, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_run(storage.config(*overrides), SilentObserver(), storage.surroundings)
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
        (("task.root=/my/images",), "task.root: /my/images is not read, as task.dataset = shapes"),
        (("cohort.dropout_rate=0.05",), "cohort.dropout_rate: 0.05 of 5 clients is less than half"),
        (("evaluation.every=4",), "evaluation.every: 4 is more than rounds = 3, so only the last"),
        ((*NO_POOL, "pool.minimum=3"), "pool.minimum: 3 does nothing with promptfl, which has no"),
        (("method.experts=4", "pool.minimum=2"), "method.experts: 4 is more than the 3 entries of"),
        (
            (NONE, "secure_aggregation.enabled=false"),
            "secure_aggregation.threshold: 3 does nothing with secure_aggregation.enabled = false",
        ),
        (
            ("task.dataset=digits", "task.domains=null"),
            "task.test_per_class: 6 does nothing with task.dataset = digits",
        ),
    ],
)
def test_what_does_nothing_is_said(storage, overrides, sentence):
    sentences = told(storage, *overrides)
    assert any(one.startswith(sentence) for one in sentences), sentences


OF_METHODS = {
    "method.gate_heads: 4 does nothing with method.gate = linear; it takes attention": (
        *("method.gate=linear", "method.gate_heads=4"),
    ),
    "method.decoupled_steps: 7 does nothing with privacy.personal = joint; it takes decoupled": (
        *("method.decoupled_steps=7",),
    ),
    "method.base_options.channels: (8, 8) does nothing with method.base_options.network = feat": (
        *("method={name: feddg_ga, base_options: {network: features, channels: [8, 8]}}", *CLEAR),
    ),
    "method.styles: 9 is more than task.clients = 5, so each image is given all styles": (
        *("method={name: ccst, network: cnn, space: pixels, styles: 9}", NONE),
    ),
}


@pytest.mark.parametrize("sentence", OF_METHODS)
def test_options_of_methods_that_do_nothing_are_said(storage, sentence):
    sentences = told(storage, *OF_METHODS[sentence])
    assert any(one.startswith(sentence) for one in sentences), sentences


def test_poisson_cohorts_of_everybody(storage):
    overrides = (
        *NO_POOL,
        *("privacy.mechanism=central_noise", "secure_aggregation={enabled: false}"),
        "cohort={sampling: poisson, minimum: 1, retries: 0}",
    )
    assert told(storage, *overrides)[1].startswith("cohort.sampling: poisson draws all 5 clients")
    assert len(told(storage, *overrides, "cohort.size=3")) == 1


def test_a_pool_that_never_serves_is_refused(storage):
    """Three clients once ran pFedMoAP without ever having an expert."""
    three = ("task.clients=3", "cohort.dropout_rate=0", "secure_aggregation.threshold=2")
    text = why_not(storage, *three, "method.experts=2")
    assert text.startswith("pool.minimum: null hands experts out from 6 entries on, and the pool ")
    assert "3 of 3 clients" in text and "valid: at most 3, more clients, or more" in text
    assert told(storage, *three, "method.experts=2", "pool.generations=2") == []
    assert told(storage, *three, "method.experts=2", "pool.minimum=3") == []
    assert "pool.minimum: 4 hands" in why_not(storage, *three, "pool.minimum=4")
    # A client that is lost in each round brings no entry.
    assert "never has more than the 4 of 4" in why_not(storage, "pool.minimum=5")
    assert told(storage, "pool.minimum=4") == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((NONE, "privacy.spare_attempts=2"), "privacy.spare_attempts: 2 has no meaning under"),
        (
            (
                *(NONE, "evaluation.selection=best_on_validation", "task.validation_share=0.5"),
                *("evaluation.every=3", "task.shots=4"),
            ),
            "evaluation.every: 3 measures the last of 3 rounds only, which leaves evaluation.sel",
        ),
    ],
)
def test_choices_that_would_be_void_are_refused(storage, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        storage.config(*overrides)


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
    lines = " ".join(answer.out.split())
    assert lines.startswith("warning: method.name: promptfl takes the place of pfedmoap with")
    first, _, rest = lines.partition("run said-")
    assert "warning: cohort.dropout_rate: 0.1 of 3 clients is less than half" in first and rest


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [(1, "at most 1 client colludes with it"), (2, "at most 2 clients collude with it")],
)
def test_one_client_colludes_and_two_collude(corrupt, words):
    (said,) = DISTRIBUTED_NOISE.caveats(Circumstances(corrupt, is_active=False))
    assert said.endswith(words)
