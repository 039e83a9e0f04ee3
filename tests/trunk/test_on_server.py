"""Runs whose database is on a PostgreSQL server: the same records, commands and deaths."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.bootstrap import Surroundings
from platform.disk.opening import absolute_url, database_file, open_storage
from platform.errors import ConfigError
from platform.sweeping.grid import absolute_storage
from storage import open_database
from tests._postgres import Server
from tests.trunk._dying import Plan, die
from tests.trunk._pages import page_of, words
from tests.trunk._runs import NONE, SMALL, Command, Finished, Storage, comparable
from tests.trunk.test_kill import PLACES

WARNING = "expert pool: disk is not covered"
LEAKY = "postgresql+psycopg://lab:pr1vate@db/x?folder=f"


@dataclass(frozen=True)
class OnServer(Storage):
    """A place for runs with its database on a server."""

    server: Server | None = None
    name: str = ""

    @property
    def file(self) -> Path:
        return self.folder / self.name

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.url(self.name, self.folder)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        assert self.server is not None
        with closing(self.server.connect(self.name)) as connection:
            found: list[Any] = connection.execute(query.replace("?", "%s"), values).fetchall()
            return found

    def edit(self, *statements: str) -> None:
        """What the tables' owner does past our code."""
        assert self.server is not None
        with closing(self.server.connect(self.name)) as connection:
            for statement in statements:
                connection.execute(statement)


MakePlace = Callable[[Path], OnServer]


@pytest.fixture(scope="module")
def make_place(server: Server, features: Path) -> Iterator[MakePlace]:
    made = []

    def make(folder: Path) -> OnServer:
        folder.mkdir(exist_ok=True)
        (folder / "cache").symlink_to(features, target_is_directory=True)
        made.append(server.new_database())
        return OnServer(folder, Surroundings(), server, made[-1])

    yield make
    for name in made:
        server.drop(name)


@pytest.fixture
def place(make_place: MakePlace, tmp_path: Path) -> OnServer:
    return make_place(tmp_path / "runs")


@pytest.fixture(scope="module")
def finished(make_place: MakePlace, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The noised run, on a server; for reading only."""
    return make_place(tmp_path_factory.mktemp("server")).run()


def told(finished: Finished) -> dict[str, Any]:
    """What can be compared, without what is said of the server."""
    summary = comparable(finished.summary)
    summary["warnings"] = [text for text in summary["warnings"] if WARNING not in text]
    return summary


def test_a_run_is_what_it_is_in_a_file(finished: Finished, noised_run: Finished) -> None:
    assert told(finished) == comparable(noised_run.summary)
    assert any(WARNING in text for text in finished.summary["warnings"])
    assert finished.personal_parts() == noised_run.personal_parts()
    assert all(np.array_equal(a, noised_run.state()[n]) for n, a in finished.state().items())
    counted = "SELECT round_number, channel, status, count(*) FROM ledger GROUP BY 1, 2, 3"
    assert sorted(finished.storage.rows(counted)) == sorted(noised_run.storage.rows(counted))


def test_every_command_reads_it(finished: Finished, noised_run: Finished, sotto: Command) -> None:
    place = ("--storage", finished.storage.url)
    report = sotto("report", finished.run_id, *place, "--json")
    assert (report.code, report.document) == (0, finished.summary)
    (row,) = sotto("runs", *place, "--json").document
    assert (row["run"], row["rounds"], row["status"]) == (finished.run_id, 3, "finished")
    verified = sotto("audit", "verify", "--head", finished.head, "--run", finished.run_id, *place)
    assert verified.code == 0, verified.err
    entries = sotto("audit", "query", "--action", "round.committed", *place, "--json").document
    assert [entry["round"] for entry in entries] == [1, 2, 3]
    for conditions in (("--detail", "_sha256"), ("--status", "released"), ("--limit", "4")):
        query = ("audit", "query", *conditions, "--json", "--storage")
        found, same = sotto(*query, finished.storage.url), sotto(*query, noised_run.storage.url)
        assert len(found.document) == len(same.document) > 0, conditions
    for command in (["audit", "head"], ["audit", "prove", "0"], ["budget", finished.run_id]):
        assert sotto(*command, *place).code == 0, command
    clients = sotto("budget", finished.run_id, *place, "--json").document["clients"]
    assert len(clients) == 5


def test_the_report_says_that_disk_is_not_covered(
    finished: Finished, noised_run: Finished, sotto: Command, tmp_path: Path
) -> None:
    for run, expected in ((finished, True), (noised_run, False)):
        file = tmp_path / f"{run.run_id}.html"
        answer = sotto(
            *("report", run.run_id, "--format", "html", "--output", str(file)),
            *("--storage", run.storage.url),
        )
        assert answer.code == 0, answer.err
        shown = file.read_text("utf-8")
        assert ("disk: not covered" in shown) == expected
        assert ("about linking, not an epsilon" in shown) is False


def test_a_second_run_and_the_page(finished: Finished, sotto: Command) -> None:
    page = page_of(finished.storage)
    assert f"{finished.run_id} small finished" in words(page.get("/").text)
    assert page.get("/metrics").status_code == 200


POINTS = ("reserved", "stage-written", "added-up", "committed", "committing", "files-written")


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    place: OnServer, tmp_path: Path, point: str, plain_run: Finished, sotto: Command
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    plan = Plan(*PLACES[point], signal.SIGKILL)
    code, output = die(plan, "run", str(config), "--set", NONE, "--storage", place.url)
    assert (code, "Traceback" in output) == (-signal.SIGKILL, False), output
    resumed = place.resume(place.only_run())
    assert told(resumed) == comparable(plain_run.summary)
    assert resumed.personal_parts() == plain_run.personal_parts()
    assert all(np.array_equal(a, plain_run.state()[n]) for n, a in resumed.state().items())
    charged = "SELECT round_number, attempt, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"
    assert place.rows(charged) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert sotto("audit", "verify", "--storage", place.url).code == 0


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_copies_are_the_servers_own_tools_matter(
    finished: Finished, sotto: Command, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "copy"
    answer = sotto(command, str(file), "--storage", finished.storage.url)
    assert answer.code == 2
    assert "pg_dump" in answer.err and str(finished.storage.folder) in answer.err
    assert not file.exists()


def test_another_folder_is_refused_by_every_command(
    finished: Finished, sotto: Command, tmp_path: Path
) -> None:
    other = finished.storage.url.replace(str(finished.storage.folder), str(tmp_path))
    for command in (
        *(["audit", "verify"], ["report", finished.run_id], ["budget"], ["runs"]),
        ["run", "--resume", finished.run_id],
    ):
        answer = sotto(*command, "--storage", other)
        assert answer.code == 2, command
        assert "holds no heads of the log" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_only_prepared_is_refused(
    place: OnServer, sotto: Command, tmp_path: Path
) -> None:
    """Two folders of one empty database: only that in which a run was made goes on."""
    other = place.url.replace(str(place.folder), str(tmp_path / "other"))
    open_storage(other).close()
    assert [path.name for path in sorted((tmp_path / "other").iterdir())] == [
        f"{place.name}.audit.heads",
        f"{place.name}.audit.key",
    ]
    place.run(NONE)
    for command in (["audit", "verify"], ["run", "quickstart"]):
        answer = sotto(*command, "--storage", other)
        assert answer.code == 2
        assert "holds no heads of the log" in answer.err
    assert sotto("audit", "verify", "--storage", place.url).code == 0


def test_a_kill_after_the_first_commit_of_all_leaves_a_database_to_go_on_with(
    place: OnServer, tmp_path: Path, sotto: Command
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    plan = Plan("platform.disk.transactions:keep_head", 1, False, signal.SIGKILL)
    code, output = die(plan, "run", str(config), "--set", NONE, "--storage", place.url)
    assert code == -signal.SIGKILL, output
    assert place.rows("SELECT count(*) FROM leaves") == [(1,)]
    assert sotto("audit", "verify", "--storage", place.url).code == 0
    run = place.only_run()
    answer = sotto("run", "--resume", run, "--storage", place.url)
    assert answer.code == 0, answer.err
    assert sotto("audit", "verify", "--storage", place.url).code == 0


def test_heads_that_were_deleted_are_missed(place: OnServer, sotto: Command) -> None:
    place.run(NONE)
    (place.folder / f"{place.name}.audit.heads").unlink()
    for command in (["audit", "verify"], ["run", "quickstart"]):
        answer = sotto(*command, "--storage", place.url)
        assert answer.code == 2
        assert "holds no heads of the log" in answer.err


def test_a_server_that_went_back_is_not_written_to(
    place: OnServer, sotto: Command, tmp_path: Path
) -> None:
    """Restored from an older copy, or cut: the heads in the folder know more."""
    place.run(NONE)
    heads = place.folder / f"{place.name}.audit.heads"
    place.edit(
        "ALTER TABLE leaves DISABLE TRIGGER USER",
        "DELETE FROM leaves WHERE position = (SELECT max(position) FROM leaves)",
        "ALTER TABLE leaves ENABLE ALWAYS TRIGGER leaves_no_update",
        "ALTER TABLE leaves ENABLE ALWAYS TRIGGER leaves_no_delete",
        "ALTER TABLE leaves ENABLE ALWAYS TRIGGER leaves_no_truncate",
    )
    before = heads.read_bytes()
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    for command in (["run", str(config)], ["audit", "verify"]):
        answer = sotto(*command, "--storage", place.url)
        assert answer.code in (1, 3), answer
        assert "a kept head says that there are" in answer.err + answer.out
    assert heads.read_bytes() == before


def test_the_heads_of_another_database_are_refused(
    finished: Finished, place: OnServer, sotto: Command
) -> None:
    """Of the same name, as on another server."""
    place.run(NONE)
    for ending in ("audit.heads", "audit.key"):
        shutil.copy(
            finished.storage.folder / f"{finished.storage.file.name}.{ending}",
            place.folder / f"{place.name}.{ending}",
        )
    answer = sotto("audit", "verify", "--storage", place.url)
    assert answer.code in (1, 3)
    assert "kept head" in answer.err + answer.out


def test_a_password_is_refused_and_never_said(
    sotto: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(f"{SMALL}\nstorage: {{url: '{LEAKY}'}}\n")
    for command in (
        ["run", str(config)],
        *(["runs", "--storage", LEAKY], ["audit", "verify", "--storage", LEAKY]),
        ["run", "quickstart", "--storage", LEAKY],
        ["run", "quickstart", "--set", f"storage.url={LEAKY}"],
        ["serve", "--storage", LEAKY],
        ["backup", str(tmp_path / "x"), "--storage", LEAKY],
        ["sweep", "quickstart", "--storage", LEAKY, "--output", str(tmp_path / "out")],
        ["runs", "--storage", "mysql://lab:pr1vate@db/x"],
    ):
        answer = sotto(*command)
        assert answer.code == 2, (command, answer)
        assert "must not hold a password" in answer.err or "it must be sqlite:///" in answer.err
        assert "pr1vate" not in answer.err + answer.out, command


def test_a_server_that_is_not_there_is_one_sentence(sotto: Command, tmp_path: Path) -> None:
    url = f"postgresql+psycopg:///x?host={tmp_path}&folder={tmp_path}"
    answer = sotto("runs", "--storage", url)
    assert answer.code != 0
    assert "the server of database x on" in answer.err and "Traceback" not in answer.err


def test_a_folder_that_is_not_named_is_refused(sotto: Command) -> None:
    answer = sotto("runs", "--storage", "postgresql+psycopg:///x?host=/run/postgresql")
    assert answer.code == 2
    assert "names no folder" in answer.err


# --- what rests on the URL ------------------------------------------------------------------------


def test_a_url_means_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "postgresql+psycopg://u@/x?host=/run/pg&folder=a%20%26b"
    fixed = absolute_url(url)
    assert absolute_storage(url) == fixed
    monkeypatch.chdir("/")
    assert database_file(fixed) == tmp_path / "a &b" / "x"
    assert absolute_url(fixed) == fixed
    with pytest.raises(ConfigError, match="names no folder"):
        absolute_url("postgresql://db/x")


def test_a_sweep_of_two_workers_shares_it(place: OnServer, tmp_path: Path, sotto: Command) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    arguments = (
        *("sweep", str(config), "--set", NONE, "--set", "rounds=1", "--seed", "1,2"),
        *("--jobs", "2", "--storage", place.url, "--output", str(tmp_path / "out"), "--json"),
    )
    first = sotto(*arguments)
    assert first.code == 0, first.err
    with open_database(place.url) as database:
        database.verify_log()
        with database.unit_of_work(read_only=True) as unit:
            runs = unit.runs.list()
    assert [run.status for run in runs] == ["finished"] * 2
    # Found again, not run again.
    assert sotto(*arguments).code == 0
    assert len(place.rows("SELECT 1 FROM runs")) == 2
    assert json.loads(runs[0].config_json)["storage"]["url"] == place.url
