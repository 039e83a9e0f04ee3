"""The frozen model is as large as all else of a client: a process has one of a kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from methods.clip import adapter
from platform.config.sections import ModelConfig
from platform.data import preparing
from platform.data.preparing import frozen_model


@pytest.fixture
def loads(monkeypatch) -> Iterator[list[str]]:
    """The names that were loaded, in place of the models."""
    found: list[str] = []

    def load(name, pretrained, device):
        found.append(name)
        return object()

    preparing._kept.cache_clear()
    monkeypatch.setattr(adapter, "load_backbone", load)
    yield found
    preparing._kept.cache_clear()


def test_runs_of_one_process_share_a_model_whose_name_says_all(loads):
    model = ModelConfig(name="sotto-tiny")
    assert frozen_model(model, "cpu") is frozen_model(model, "cpu")
    assert loads == ["sotto-tiny"]


def test_weights_in_a_file_are_read_again_as_they_may_be_others_by_then(loads):
    model = ModelConfig(name="local-dir:somewhere")
    assert frozen_model(model, "cpu") is not frozen_model(model, "cpu")
    assert loads == ["local-dir:somewhere"] * 2


def test_one_model_is_kept_and_no_more(loads):
    tiny, other = ModelConfig(name="sotto-tiny"), ModelConfig(name="RN50", pretrained="openai")
    for model in (tiny, other, tiny):
        frozen_model(model, "cpu")
    assert loads == ["sotto-tiny", "RN50", "sotto-tiny"]
