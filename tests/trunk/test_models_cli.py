"""`export` and `predict`: what a run trained, as files and at work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from platform.data.shapes import CLASSES
from storage import Database
from tests.trunk._runs import NONE, Finished, opened, slow, warnings_of


def test_export_of_the_shared_prompt(sotto, own_copy, tmp_path):
    out, url = tmp_path / "out", own_copy.storage.url
    answer = sotto("export", "latest", "--output", str(out), "--storage", url, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.document == {
        "run_id": own_copy.run_id,
        "files": [str(out / "prompts.safetensors"), str(out / "MODEL_CARD.md")],
        "tensors": ["shared.context"],
    }
    arrays = load_file(out / "prompts.safetensors")
    np.testing.assert_array_equal(arrays["shared.context"], own_copy.state()["context"])
    card = (out / "MODEL_CARD.md").read_text()
    assert own_copy.run_id in card and "delta 1e-05" in card
    assert all(warning in card for warning in warnings_of(own_copy.summary))
    assert f"server {own_copy.summary['final']['epsilon']['server']}" in card
    actions = own_copy.storage.rows("SELECT action FROM audit ORDER BY sequence DESC")
    assert actions[0] == ("model.exported",)
    # The summary's head is earlier than the export, and still in the chain.
    head = ("--run", own_copy.run_id, "--head", own_copy.head)
    assert sotto("audit", "verify", *head, "--storage", url).code == 0


def test_export_with_a_clients_personal_part(sotto, own_copy, tmp_path):
    out = tmp_path / "out"
    answer = sotto(
        *("export", own_copy.run_id, "--client", "1", "--output", str(out)),
        *("--storage", own_copy.storage.url),
    )
    assert (answer.code, answer.err) == (0, "")
    assert str(out / "prompts.safetensors") in answer.out.replace("\n", "")
    arrays = load_file(out / "prompts.safetensors")
    with opened(own_copy.storage.reopen(own_copy.run_id)) as simulation:
        owner = simulation.population.clients["client-00001"]
        state = owner.state(simulation.run.terms.final_attempt)
    expected: dict[str, Any] = {f"personal.{n}": a for n, a in state.personal.items()}
    for position, expert in enumerate(state.experts):
        expected |= {f"expert.{position}.{name}": a for name, a in expert.items()}
    assert set(arrays) == {"shared.context", *expected} and state.personal
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert "never released" in (out / "MODEL_CARD.md").read_text()


@pytest.fixture
def images(noised_run: Finished, tmp_path: Path) -> tuple[list[Path], list[int]]:
    from platform.data.loading import load_task_data

    data = load_task_data(noised_run.storage.config())
    rows = data.clients[1].test
    paths = []
    for position, row in enumerate(rows):
        paths.append(tmp_path / f"{position}.png")
        Image.fromarray(data.dataset.test.images[row]).save(paths[-1])
    return paths, [int(label) for label in data.dataset.test.labels[rows]]


def test_prediction_of_a_client_is_what_its_accuracy_says(sotto, noised_run, images):
    paths, labels = images
    arguments = ["--client", "1", "--storage", noised_run.storage.url]
    answer = sotto("predict", "latest", *map(str, paths), *arguments, "--json")
    assert (answer.code, answer.err) == (0, "")
    rows: list[Mapping[str, Any]] = answer.document
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    assert all(1 / 20 <= row["probability"] <= 1.0 for row in rows)
    right = [row["class"] == CLASSES[label] for row, label in zip(rows, labels, strict=True)]
    reported = noised_run.summary["final"]["accuracy"]["per_client"][1]
    # One at a time and in a batch may differ in the last bit, hence in a tie at most.
    assert abs(sum(right) - reported * len(labels)) <= 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        *(("export latest --client 1", 0), ("predict latest {picture} --client 5", 2)),
        slow("run --resume latest", 2),
    ],
)
def test_every_command_closes_the_database(sotto, own_copy, tmp_path, monkeypatch, command, code):
    """A connection that is left to the garbage collector ends while somebody else opens."""
    picture = tmp_path / "a.png"
    Image.new("RGB", (32, 32)).save(picture)
    monkeypatch.chdir(tmp_path)
    opened, made, close = set[int](), Database.__init__, Database.close

    def note(self: Database, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        opened.add(id(self))

    def forget(self: Database) -> None:
        close(self)
        opened.discard(id(self))

    monkeypatch.setattr(Database, "__init__", note)
    monkeypatch.setattr(Database, "close", forget)
    words = command.format(picture=picture).split()
    answer = sotto(*words, "--storage", own_copy.storage.url)
    assert answer.code == code, answer.err
    assert not opened
    assert [path.name for path in own_copy.storage.folder.glob("sotto.db*")] == ["sotto.db"]


@pytest.mark.slow
def test_local_method_is_exported_and_predicts_for_a_client_only(sotto, storage, tmp_path):
    picture = tmp_path / "a.png"
    Image.new("RGB", (32, 32)).save(picture)
    run = storage.run("method.name=coop", "method.context_tokens=2", NONE, "rounds=1")
    out = ["--output", str(tmp_path / "out"), "--storage", storage.url]
    with opened(storage.create(NONE)) as begun:
        pass
    unfinished = sotto("export", begun.run_id, *out)
    assert unfinished.code == 2 and f"run --resume {begun.run_id}" in unfinished.err
    refused = sotto("export", run.run_id, *out)
    assert refused.code == 2 and "--client" in refused.err
    assert not (tmp_path / "out").exists()
    assert storage.rows("SELECT count(*) FROM audit WHERE action = 'model.exported'") == [(0,)]
    assert sotto("export", run.run_id, "--client", "0", *out).code == 0
    assert all(n.startswith("personal.") for n in load_file(tmp_path / "out/prompts.safetensors"))
    asked = ("predict", run.run_id, str(picture), "--storage", storage.url)
    alone = sotto(*asked)
    assert alone.code == 2 and "client must be" in alone.err
    answer = sotto(*asked, "--client", "0", "--json")
    assert answer.code == 0 and answer.document[0]["class"] in CLASSES
