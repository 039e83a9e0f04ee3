"""No client is ever without a training or a test example: refused before anything is written."""

from __future__ import annotations

import pytest

from platform.data.loading import load_task_data
from platform.errors import ConfigError
from tests.trunk._networks import PIXELS
from tests.trunk._runs import Storage

TASK = "task={dataset: shapes, model: null, test_per_class: 12, domains: [real, sketch], "
REFUSED = {
    # 20 classes among 21 clients.
    "pathological": "clients: 21, shots: null, dataset: digits, partition: {kind: pathological}}",
    # About 45 test images of each of ten classes, one by one to more clients than there are.
    "iid": "clients: 500, shots: null, dataset: digits, partition: {kind: iid}}",
    "dirichlet": "clients: 400, shots: 3, dataset: digits, partition: {kind: dirichlet}}",
    "domain": "clients: 3, shots: 1, partition: {kind: domain}}",
    "domain_dirichlet": "clients: 60, shots: 2, partition: {kind: domain_dirichlet}}",
    "shared_ratio": "clients: 40, shots: 3, partition: {kind: shared_ratio, shared_ratio: 0.2}}",
}
SPARSE = {
    # As few examples a client as the kind deals out.
    "pathological": "clients: 5, shots: 1, dataset: digits, partition: {kind: pathological}}",
    "iid": "clients: 7, shots: 1, partition: {kind: iid}}",
    "dirichlet": "clients: 6, shots: 2, partition: {kind: dirichlet, minimum: 1, alpha: 0.3}}",
    "domain": "clients: 2, shots: 1, partition: {kind: domain}}",
    "domain_dirichlet": "clients: 4, shots: 2, partition: {kind: domain_dirichlet, minimum: 1}}",
    "shared_ratio": (
        "clients: 6, shots: 2, partition: {kind: shared_ratio, shared_ratio: 0.0, minimum: 1}}"
    ),
}


def overrides(task: str) -> tuple[str, ...]:
    """The task alone is another; a data set of one domain has no list of them."""
    whole = TASK + task
    if "dataset: digits" in task:
        whole = "task={model: null, " + task
    return (*PIXELS, whole, "cohort.minimum=2")


@pytest.mark.parametrize("kind", REFUSED)
def test_a_client_that_would_have_nothing_is_refused(storage: Storage, kind: str):
    with pytest.raises(ConfigError) as caught:
        storage.create(*overrides(REFUSED[kind]))
    text = str(caught.value)
    assert text.startswith(("task.clients: ", "task.partition.", "task.shots: "))
    assert "\n" not in text
    assert not storage.file.exists() and not list(storage.folder.glob("*/clients"))


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("seed", range(3))
def test_the_fewest_that_are_dealt_out_are_not_none(storage: Storage, kind: str, seed: int):
    config = storage.config(*overrides(SPARSE[kind]), f"seed={seed}")
    data = load_task_data(config)
    assert len(data.clients) == config.task.clients
    for client in data.clients:
        assert len(client.train) >= 1 and len(client.test) >= 1


@pytest.mark.parametrize("kind", ["iid", "shared_ratio"])
def test_validation_and_new_clients_leave_something_to_train_on(storage: Storage, kind: str):
    section = "{kind: iid}" if kind == "iid" else "{kind: shared_ratio, shared_ratio: 0.2}"
    task = (
        "task={dataset: digits, model: null, clients: 4, new_clients: 2, shots: 20, "
        f"validation_share: 0.9, partition: {section}}}"
    )
    data = load_task_data(storage.config(*PIXELS, task))
    assert len(data.new_clients) == 2
    for client in (*data.clients, *data.new_clients):
        assert len(client.train) and len(client.validation) and len(client.test)
