"""The same data are the same clients: no key of the task opens an empty lifetime ledger.

Each test spends a lifetime budget in one run, then asks for another run on the same data that is
dealt out, named, drawn or found otherwise: nothing more may leave a client.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.config.rules import FILELESS, HELD
from platform.data.catalogue import dataset_infos
from platform.protection.charging import Source
from platform.rounds.loop import Federation
from tests.drawn._pictures import write_picture
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    Finished,
    Storage,
    crashed,
    gaussian_epsilon,
    slow,
    warnings_of,
)


def paying_for(rounds: int) -> tuple[str, ...]:
    return (
        *(*NO_POOL, *FIXED, "cohort.dropout_rate=0", f"rounds={rounds}"),
        f"privacy.lifetime_budget={gaussian_epsilon(4.0, rounds) + 1e-3}",
    )


ONE_ROUND = paying_for(1)
IID = "task.partition.kind=iid"
DEALT_OTHERWISE = (
    *(("task.shots=15",), ("seed=4",), (IID, "name=another")),
    *(("task.test_per_class=7",), ("seeds.shots=9",), ("task.clients=4",), ("task.clients=6",)),
    *(("task.new_clients=1",), ("task.validation_share=0.25", "task.shots=4")),
    *(("task.domains=[real, sketch]",), (IID,), ("name=another",), ("method.name=prompt_fedprox",)),
)


def rounds_of(run: Finished) -> int:
    return len(run.summary["rounds"])


def charged_runs(storage: Storage) -> list[str]:
    return [name for (name,) in storage.rows("SELECT DISTINCT run_id FROM ledger ORDER BY 1")]


@pytest.fixture(scope="module")
def spent(make_storage) -> Finished:
    """A run without a limit that spent all that others may; what is refused adds no row."""
    run = make_storage("spent").run(*ONE_ROUND, "privacy.lifetime_budget=null")
    assert rounds_of(run) == 1
    return run


@pytest.mark.parametrize(
    "dealt",
    [("task.shots=2", "seed=4", IID, "name=another"), *map(slow, DEALT_OTHERWISE)],
    ids=" ".join,
)
def test_data_that_are_dealt_otherwise_have_spent_their_budget(spent, dealt):
    refused = spent.storage.run(*ONE_ROUND, *dealt)
    assert rounds_of(refused) == 0
    assert any("privacy.lifetime_budget" in text for text in warnings_of(refused.summary))
    assert charged_runs(spent.storage) == [spent.run_id]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for client in ("north", "south", "west"):
        for label, one in enumerate(("apple", "pear")):
            for number in range(5):
                write_picture(root / client / one / f"{number}.png", label, number)
    return root


def own(root: Path | str, *more: str, dataset: str = "client_folders") -> tuple[str, ...]:
    deal = "task.partition.kind=domain" if dataset == "client_folders" else IID
    return (
        *(*ONE_ROUND, "task.domains=null", f"task.dataset={dataset}", f"task.root={root}"),
        *("task.clients=3", "task.shots=2", deal, *more),
    )


def test_a_folder_is_the_same_however_it_is_found_and_read(storage, photos, monkeypatch):
    first = storage.run(*own(photos))
    assert rounds_of(first) == 1
    link = photos.with_name("link")
    link.symlink_to(photos, target_is_directory=True)
    monkeypatch.chdir(photos.parent)
    pair = ("task.clients=2", "secure_aggregation.threshold=2")
    for other in (
        # How a path is spelt is in `test_a_source_is_a_name_or_a_folder`.
        own("link", "task.domains=[north, west]", *pair),
        own(photos, dataset="folders"),
        own(photos / "north", *pair, "task.shots=1", dataset="images"),
    ):
        assert rounds_of(storage.run(*other)) == 0, other
    assert charged_runs(storage) == [first.run_id]
    link.unlink()
    others = photos.rename(photos.with_name("others"))
    assert rounds_of(storage.run(*own(others))) == 1


@pytest.mark.slow
def test_each_client_is_charged_what_another_run_charged_its_worst_client(storage, sotto):
    """Cohorts of three of five: some client was in all rounds of the first run, or in most."""
    life = (*ONE_ROUND, "privacy.lifetime_budget=1000.0", "cohort.size=3")
    first = storage.run(*life, "rounds=3")
    query = "SELECT count(*) FROM ledger WHERE run_id = ? GROUP BY pseudonym"
    most = max(count for (count,) in storage.rows(query, first.run_id))
    second = storage.run(*life, "seed=4")
    clients = sotto("budget", second.run_id, "--storage", storage.url, "--json").document["clients"]
    assert len(clients) == 3 and 3 * 3 / 5 < most
    for one in clients:
        spent = gaussian_epsilon(4.0, most + 1)
        assert one["lifetime"]["spent"] == pytest.approx(spent, rel=1e-6)
        assert one["lifetime"]["runs"] == sorted([first.run_id, second.run_id])


@pytest.mark.slow
def test_a_database_of_an_earlier_version_goes_on_and_is_charged(storage, sotto, monkeypatch):
    """Its stores lie under a digest of the task and the seeds."""
    simulation = storage.create(*paying_for(2))
    run_id = crashed(monkeypatch, simulation, Federation, "_commit", 1, after=True)
    (folder,) = (storage.folder / "clients").iterdir()
    folder.rename(folder.with_name("0123456789abcdef"))
    assert rounds_of(storage.resume(run_id)) == 2
    assert rounds_of(storage.run(*paying_for(2), "seed=4")) == 0
    assert charged_runs(storage) == [run_id]
    assert len(list((storage.folder / "clients").iterdir())) == 2
    assert sotto("audit", "verify", "--storage", storage.url).code == 0


@pytest.mark.slow
def test_a_holder_is_the_same_in_every_run(tmp_path):
    noised = (
        *("privacy.mechanism=upload_noise", "privacy.clipping_norm=0.1", *FIXED),
        *("secure_aggregation={enabled: false}", *ONE_ROUND[-2:]),
    )
    holders = Holders.written(tmp_path)
    first = hold(federation(tmp_path, *noised), within(holders.handlers()))
    other = ("seed=6", "name=other", "method.context_tokens=1")
    second = hold(federation(tmp_path, *noised, *other), within(holders.handlers()))
    assert (len(first["rounds"]), len(second["rounds"])) == (1, 0)
    assert charged_runs(Storage(tmp_path)) == [first["run_id"]]


def test_a_source_is_a_name_or_a_folder(tmp_path):
    inside, link = tmp_path / "data" / "pacs", tmp_path / "link"
    data, other = str(tmp_path / "data"), str(tmp_path / "other")
    inside.mkdir(parents=True)
    link.symlink_to(inside)
    pacs, shapes = Source.of("pacs", data), Source.of("shapes", data)
    same = [
        (pacs, Source.of("pacs", other)),
        (pacs, Source.of("images", str(link))),
        (Source.of("images", data), Source.of("client_folders", f"{inside}/..")),
        (shapes, Source.of("shapes", other)),
        (Source.of("handwriting", data), Source.of("handwriting_tuning", other)),
        (Source.of("handwriting", data), Source.of("digits", data)),
    ]
    apart = [
        (pacs, Source.of("dtd", data)),
        (pacs, Source.of("images", other)),
        (shapes, Source.of("images", data)),
        (shapes, Source.of("homonyms", data)),
        (Source.of("images", f"{data}-2"), Source.of("images", data)),
    ]
    for one, two in (*same, *apart):
        assert one.overlaps(two) is two.overlaps(one) is ((one, two) in same)
    read_nothing = {info.name for info in dataset_infos() if not info.layout}
    assert read_nothing == {*FILELESS, HELD}
