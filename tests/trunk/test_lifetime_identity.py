"""The same data are the same clients: no key of the task opens an empty lifetime ledger.

Each test spends a lifetime budget in one run, then asks for another run on the same data that is
dealt out, named, drawn or found otherwise: nothing more may leave a client.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drawn._pictures import write_picture
from tests.trunk._runs import FIXED, NO_POOL, Finished, Storage, gaussian_epsilon

TWO_ROUNDS = (
    *(*NO_POOL, *FIXED, "rounds=2", "cohort.dropout_rate=0", "evaluation.local_twins=false"),
    f"privacy.lifetime_budget={gaussian_epsilon(4.0, 2) + 1e-3}",
)
IID = "task.partition.kind=iid"
DIRICHLET = "task.partition.kind=dirichlet"
DEALT_OTHERWISE = {
    "shots": ("task.shots=15",),
    "test images": ("task.test_per_class=7",),
    "seed": ("seed=4",),
    "seed of the shots": ("seeds.shots=9",),
    "fewer clients": ("task.clients=4",),
    "more clients": ("task.clients=6",),
    "new clients": ("task.new_clients=1",),
    "validation": ("task.validation_share=0.25", "task.shots=4"),
    "domains": ("task.domains=[real, sketch]",),
    "iid": (IID,),
    "dirichlet": (DIRICHLET, "task.shots=8"),
    "protocol": ("evaluation.protocol=base_to_novel",),
    "name": ("name=another",),
    "another method": ("method.name=prompt_fedprox",),
}


def rounds_of(run: Finished) -> int:
    return len(run.summary["rounds"])


def charged_runs(storage: Storage) -> list[str]:
    return [name for (name,) in storage.rows("SELECT DISTINCT run_id FROM ledger ORDER BY 1")]


@pytest.fixture(scope="module")
def spent(make_storage) -> Finished:
    """A run that has spent its clients' lifetime budget; what is refused after it adds no row."""
    run = make_storage("spent").run(*TWO_ROUNDS)
    assert rounds_of(run) == 2
    return run


@pytest.mark.parametrize("name", DEALT_OTHERWISE)
def test_data_that_are_dealt_otherwise_have_spent_their_budget(spent: Finished, name: str) -> None:
    refused = spent.storage.run(*TWO_ROUNDS, *DEALT_OTHERWISE[name])
    assert rounds_of(refused) == 0
    assert any("privacy.lifetime_budget" in text for text in refused.summary["warnings"])
    assert charged_runs(spent.storage) == [spent.run_id]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three clients' folders with five photos of each of two classes."""
    root = tmp_path / "photos"
    for client in ("north", "south", "west"):
        for label, one in enumerate(("apple", "pear")):
            for number in range(5):
                write_picture(root / client / one / f"{number}.png", label, number)
    return root


def own(root: Path | str, *more: str, dataset: str = "client_folders") -> tuple[str, ...]:
    deal = "task.partition.kind=domain" if dataset == "client_folders" else IID
    return (
        *(*TWO_ROUNDS, "task.domains=null", f"task.dataset={dataset}", f"task.root={root}"),
        *("task.clients=3", "task.shots=2", deal, *more),
    )


def test_a_folder_is_the_same_however_it_is_found_and_read(
    storage: Storage, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = storage.run(*own(photos))
    assert rounds_of(first) == 2
    link = photos.with_name("link")
    link.symlink_to(photos, target_is_directory=True)
    monkeypatch.chdir(photos.parent)
    for other in (
        *(own(link), own("photos"), own(f"{photos}/"), own(f"{photos}/../photos")),
        own(
            photos, "task.domains=[north, west]", "task.clients=2", "secure_aggregation.threshold=2"
        ),
        own(photos, dataset="folders"),
        # A part of the folder, and the folder that it is part of.
        own(
            photos / "north",
            "task.clients=2",
            "secure_aggregation.threshold=2",
            "task.shots=1",
            dataset="images",
        ),
        own(photos, "task.layout=client_folders", "task.partition.kind=domain", dataset="images"),
    ):
        assert rounds_of(storage.run(*other)) == 0, other
    assert charged_runs(storage) == [first.run_id]
