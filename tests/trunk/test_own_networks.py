"""Runs of methods that bring their own network: without a CLIP model, on pixels and on texts."""

from __future__ import annotations

import pytest

from methods.clip import adapter
from platform.data.loading import load_task_data
from platform.errors import ConfigError
from tests.trunk._networks import CNN, FASTTEXT, PIXELS, TEXTS
from tests.trunk._runs import NONE, TWINS, Finished, Storage, comparable, warnings_of
from tests.trunk.conftest import MakeStorage

TINY = "task.model={name: sotto-tiny}"


@pytest.fixture(scope="module")
def on_texts(make_storage: MakeStorage) -> Finished:
    return make_storage("texts").run(*TEXTS)


@pytest.mark.parametrize(
    "overrides", [TEXTS, pytest.param(PIXELS, marks=pytest.mark.slow)], ids=["texts", "pixels"]
)
def test_a_model_that_nobody_needs_changes_nothing(
    storage, on_texts, make_storage, monkeypatch, overrides
):
    without = on_texts if overrides is TEXTS else make_storage("pixels").run(*overrides)
    for name in ("encode_images", "encode_tokens", "fit"):
        monkeypatch.delattr(adapter.Backbone, name)
    assert comparable(storage.run(*overrides, TINY).summary) == comparable(without.summary)


@pytest.mark.parametrize("method", ["{name: promptfl}", "{name: fedper, network: features}"])
def test_a_method_that_needs_a_model_is_refused_without(storage: Storage, method: str):
    with pytest.raises(ConfigError, match=r"task\.model") as caught:
        storage.create(*PIXELS, f"method={method}")
    assert "\n" not in str(caught.value) and not storage.file.exists()


def test_images_are_refused_by_a_method_that_reads_and_texts_by_one_that_looks(storage: Storage):
    with pytest.raises(ConfigError, match=r"^task\.dataset: digits holds images"):
        storage.create(*PIXELS, FASTTEXT)
    with pytest.raises(ConfigError, match=r"^task\.dataset: headlines holds texts") as caught:
        storage.create(*TEXTS, CNN)
    text = str(caught.value)
    assert "method.network: fasttext" in text and "headlines" not in text[30:]
    assert not storage.file.exists()


def test_texts_are_classified_as_they_were_measured(sotto, on_texts, tmp_path):
    data = load_task_data(on_texts.storage.config(*TEXTS))
    rows, paths = data.clients[1].test.tolist(), []
    for row in rows:
        paths.append(tmp_path / f"{row}.txt")
        paths[-1].write_text(f"\n  {(data.dataset.test.texts or ())[row]}\n", encoding="utf-8")
    at = ("--client", "1", "--storage", on_texts.storage.url)
    answer = sotto("predict", on_texts.run_id, *map(str, paths), *at, "--json")
    assert answer.code == 0, answer.err
    found = answer.document
    assert [line["text"] for line in found] == [str(path) for path in paths]
    answers = [data.classes[label] for label in data.dataset.test.labels[rows]]
    right = sum(line["class"] == answer for line, answer in zip(found, answers, strict=True))
    assert right == on_texts.summary["final"]["accuracy"]["per_client"][1] * len(rows)


RUN = (
    "method={name: swad, network: features, feature_width: 8}",
    *(NONE, TWINS, "secure_aggregation.enabled=false", "cohort={minimum: 1}"),
)


def test_a_run_of_one_party_says_that_there_is_no_federation(storage: Storage):
    summary = storage.run(*RUN, "task.clients=1").summary
    said = "centralised: one party holds all data, no federation"
    assert warnings_of(summary)[0].startswith(said)
    assert summary["final"]["epsilon"]["server"] == 0.0
    assert summary["gain_over_local"] == 0.0
    with pytest.raises(ConfigError, match=r"^task\.clients: 2 .*; valid: 1$"):
        storage.run(*RUN, "task.clients=2")
