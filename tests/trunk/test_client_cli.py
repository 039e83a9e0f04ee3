"""`python -m platform.client`: keys, checks and the budget, as a data holder meets them."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.optimize import minimize_scalar

from platform.parties.identities import STORES, write_enrolment
from privacy.secure_aggregation import Enrolment, Identity, fingerprint
from storage import ClientStore, LedgerRow, StorageFull, open_client_store, open_client_stores
from tests.trunk._runs import FIXED, NO_POOL, Answer, Command, gaussian_epsilon
from tests.trunk._runs import Storage as Runs
from tests.trunk.loaders._refusing import draw
from tests.trunk.test_cli_errors import require_one_sentence

DELTA = 1e-5
OTHER = Identity(b"\x06" * 32)


@dataclasses.dataclass(frozen=True)
class Place:
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "client.yaml"

    @property
    def key(self) -> Path:
        return self.folder / "north.key"

    def write(self, **changes: Any) -> Path:
        tree = {"name": "north", "data": {"root": "images"}, "storage": "north", **changes}
        self.config.write_text(yaml.safe_dump(tree))
        return self.config

    def enrol(self, name: str = "north", identity: Identity | None = None) -> None:
        own = identity or Identity(bytes.fromhex(self.key.read_text()))
        write_enrolment(self.folder / "enrolment.json", Enrolment().enrol(name, own.public))


BOTH = {"identity": "north.key", "enrolment": "enrolment.json"}


@pytest.fixture
def place(tmp_path: Path, client: Command) -> Place:
    """All that a check wants: images, a key and an enrolment."""
    found = Place(tmp_path)
    draw(tmp_path / "images", 2, "ants", "bees")
    assert client("keys", "create", str(found.key)).code == 0
    found.enrol()
    found.write(**BOTH)
    return found


def checks(answer: Answer) -> dict[str, tuple[bool, str]]:
    assert answer.err == ""
    document = answer.document
    found = {check["point"]: (check["is_sound"], check["text"]) for check in document["checks"]}
    assert document["is_sound"] == all(is_sound for is_sound, _ in found.values())
    assert answer.code == (0 if document["is_sound"] else 2)
    return found


def failed(answer: Answer, point: str) -> str:
    found = checks(answer)
    assert [name for name, (is_sound, _) in found.items() if not is_sound] == [point], found
    assert "\n" not in found[point][1]
    return found[point][1]


def test_a_key_is_made_where_it_stays_and_only_its_public_half_is_shown(client, tmp_path):
    path = tmp_path / "new" / "north.key"
    made = client("keys", "create", str(path), "--json")
    assert (made.code, made.err) == (0, "")
    private = path.read_text().strip()
    public = Identity(bytes.fromhex(private)).public
    assert made.document == {"public": public.hex(), "fingerprint": fingerprint(public)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    shown = client("keys", "show", str(path))
    assert public.hex() in shown.out and fingerprint(public) in shown.out
    assert client("keys", "show", str(path), "--json").document == made.document
    for answer in (made, shown):
        assert private not in answer.out + answer.err


def test_a_key_is_never_replaced(client, tmp_path):
    path = tmp_path / "north.key"
    client("keys", "create", str(path))
    before = path.read_bytes()
    require_one_sentence(client("keys", "create", str(path)), "KEY", "exists already")
    assert path.read_bytes() == before
    (tmp_path / "link.key").symlink_to(tmp_path / "nowhere.key")
    require_one_sentence(client("keys", "create", str(tmp_path / "link.key")), "KEY: ")
    assert not (tmp_path / "nowhere.key").exists()
    below = client("keys", "create", str(path / "x.key"))
    require_one_sentence(below, "KEY", "cannot be written")


@pytest.mark.parametrize("content", [b"secret words", b"ab" * 33, b"\xff" * 64, None], ids=range(4))
def test_a_file_that_holds_no_key_is_left_alone_and_not_shown(client, tmp_path, content):
    path = tmp_path / "north.key"
    if content is not None:
        path.write_bytes(content)
    answer = client("keys", "show", str(path))
    require_one_sentence(answer, "KEY: ", "no private key")
    assert path.exists() == (content is not None)
    assert content is None or path.read_bytes() == content
    assert "secret words" not in answer.err and "abab" not in answer.err


def test_all_is_well_and_a_check_leaves_nothing_behind(client, place):
    before = {path: path.stat().st_mtime_ns for path in place.folder.rglob("*")}
    answer = client("check", str(place.config), "--json")
    found = checks(answer)
    assert list(found) == ["configuration", "data", "identity", "storage", "socket", "limits"]
    assert answer.code == 0
    public = Identity(bytes.fromhex(place.key.read_text())).public
    assert fingerprint(public) in found["identity"][1]
    assert "4 images" in found["data"][1]
    plain = client("check", str(place.config))
    assert plain.code == 0 and plain.out.count("ok ") >= 6 and "failed" not in plain.out
    assert place.key.read_text().strip() not in answer.out + plain.out
    document = client("budget", str(place.config), "--json").document
    assert document["runs"] == []
    assert (document["total"]["epsilon"], document["total"]["left"]) == (0.0, 20.0)
    assert {path: path.stat().st_mtime_ns for path in place.folder.rglob("*")} == before


def test_settings_that_anybody_may_write_are_no_limits(client, place):
    place.config.chmod(0o646)
    said = failed(client("check", str(place.config), "--json"), "configuration")
    assert "has the permissions 646" in said
    place.config.chmod(0o664)
    assert checks(client("check", str(place.config), "--json"))["configuration"][0]


def damage(*paths: str, content: bytes = b"no image") -> Callable[[Place], object]:
    def write(place: Place) -> None:
        for number, path in enumerate(paths):
            (place.folder / path).parent.mkdir(exist_ok=True)
            (place.folder / path).write_bytes(content + b"x" * number)

    return write


def copied(place: Place) -> None:
    images = place.folder / "images"
    (images / "bees" / "02.png").write_bytes((images / "ants" / "00.png").read_bytes())


def other_root(*, has_folder: bool) -> Callable[[Place], object]:
    def write(place: Place) -> None:
        if has_folder:
            (place.folder / "other" / "ants").mkdir(parents=True)
        place.write(data={"root": "other"}, **BOTH)

    return write


def revoked(place: Place) -> None:
    own = Identity(bytes.fromhex(place.key.read_text()))
    enrolment = Enrolment().enrol("north", own.public).revoke("north")
    write_enrolment(place.folder / "enrolment.json", enrolment)


def gone(name: str) -> Callable[[Place], object]:
    return lambda place: (place.folder / name).unlink()


NOT_ENROLLED = "is not enrolled"


def rewritten(**changes: Any) -> Callable[[Place], object]:
    return lambda place: place.write(**BOTH, **changes)


ONE_CLASS = {"root": "images", "classes": ["bees"]}
FAULTS: dict[str, tuple[Callable[[Place], object], str, str]] = {
    # What is done to a sound place, the point that fails, and what it says.
    "an unknown key": (rewritten(colour="red"), "configuration", "colour: "),
    "no key of a log": (rewritten(log_key="k"), "configuration", "log_key"),
    "an image that is none": (damage("images/bees/00.png"), "data", "00.png"),
    "two images": (damage("images/bees/00.png", "images/ants/00.png"), "data", "and 1 more"),
    "one image of two classes": (copied, "data", "of class 'bees'"),
    "a class of no federation": (rewritten(data=ONE_CLASS), "data", "'ants', which"),
    "no folder of images": (other_root(has_folder=False), "data", "other"),
    "a folder without images": (other_root(has_folder=True), "data", "other"),
    "a key that others read": (lambda place: place.key.chmod(0o604), "identity", "permissions 604"),
    "another's key": (lambda place: place.enrol(identity=OTHER), "identity", NOT_ENROLLED),
    "another name": (lambda place: place.enrol(name="south"), "identity", NOT_ENROLLED),
    "a revoked key": (revoked, "identity", "north"),
    "no key": (gone("north.key"), "identity", "north.key"),
    "no enrolment": (gone("enrolment.json"), "identity", "enrolment.json"),
    "an empty store": (damage("north/client.db", content=b""), "storage", "client.db"),
    "a store that is none": (damage("north/client.db"), "storage", "client.db"),
    "storage that is a file": (damage("north"), "storage", "is no folder"),
    "long letters": (rewritten(socket="/" + "ü" * 54), "socket", "109 bytes"),
    "no socket": (rewritten(socket="images/bees/00.png"), "socket", "is no socket"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_fails_at_its_point_and_nowhere_else(client, place, fault):
    spoil, point, words = FAULTS[fault]
    spoil(place)
    said = failed(client("check", str(place.config), "--json"), point)
    assert words in said and "task." not in said


def test_without_an_identity_it_says_what_follows(client, place):
    place.write(data={"root": "images", "classes": ["bees", "ants"]}, socket="/" + "s" * 106)
    is_sound, text = checks(client("check", str(place.config), "--json"))["identity"]
    assert is_sound and "declined" in text


def test_a_socket_that_somebody_serves(client, place, monkeypatch):
    monkeypatch.chdir(place.folder)
    place.write(socket="s", **BOTH)
    with closing(socket.socket(socket.AF_UNIX)) as served:
        served.bind("s")
        served.listen(1)
        monkeypatch.chdir("/")
        if len(os.fsencode(place.folder / "s")) > 107:
            pytest.skip("the temporary folder's own path is too long")
        said = failed(client("check", str(place.config), "--json"), "socket")
        assert "is served by another process" in said
    assert checks(client("check", str(place.config), "--json"))["socket"][0]


NOISED = (
    *NO_POOL,
    "privacy.lifetime_budget=1000.0",
    "privacy.noise_source=os",
    "task.test_per_class=1",
    "rounds=2",
    "cohort.dropout_rate=0",
)
OTHER_NOISE = ("privacy.target_epsilon=null", "privacy.noise_multiplier=8.0")


@pytest.fixture(scope="module")
def ledger(make_storage: Callable[[str], Runs]) -> tuple[LedgerRow, ...]:
    """What one client's own store holds after three runs in this process, two of one mechanism."""
    runs = make_storage("budget")
    runs.run("name=first", *NOISED, *FIXED)
    runs.run("name=second", *NOISED, *OTHER_NOISE, "rounds=1")
    shared_out = ("privacy.mechanism=distributed_noise", "rounds=1")
    runs.run("name=third", *NOISED, *OTHER_NOISE, *shared_out)
    (stores,) = runs.folder.glob(f"clients/*/{STORES}")
    store, *_ = open_client_stores(stores, read_only=True).stores.values()
    return store.rows()


def own_store(place: Place, rows: Iterable[LedgerRow]) -> ClientStore:
    rows = list(rows)
    (pseudonym,) = {row.pseudonym for row in rows}
    store = open_client_store(place.folder / "north" / "client.db", pseudonym=pseudonym)
    for row in rows:
        store.reserve_release(dataclasses.replace(row, status="reserved"), payload=b"bytes")
    for key in sorted({(row.run_id, row.round_number, row.attempt, row.status) for row in rows}):
        if key[3] != "reserved":
            store.set_status(*key)
    assert set(store.rows()) == set(rows)
    return store


def of_run(rows: Iterable[LedgerRow], name: str) -> list[LedgerRow]:
    return [row for row in rows if row.run_id.startswith(name)]


def test_the_budget_of_runs_of_one_mechanism_is_the_exact_formula(client, place, ledger):
    """By hand: mu^2 of Gaussian releases add up, and epsilon follows from mu (privacy.md, 5)."""
    first, second = of_run(ledger, "first"), of_run(ledger, "second")
    own_store(place, [*first, *second])
    document = client("budget", str(place.config), "--json").document
    assert (document["name"], document["delta"]) == ("north", DELTA)
    found = {run["run_id"].partition("-")[0]: run for run in document["runs"]}
    assert set(found) == {"first", "second"}
    one, other = gaussian_epsilon(4.0, len(first)), gaussian_epsilon(8.0, len(second))
    assert found["first"]["epsilon"] == pytest.approx(one, rel=1e-6)
    assert found["second"]["epsilon"] == pytest.approx(other, rel=1e-6)
    assert found["first"]["releases"] == len(first)
    # As many releases of multiplier 4 as have the same mu.
    both = gaussian_epsilon(4.0, len(first) + len(second) * (4.0 / 8.0) ** 2)
    total = document["total"]
    assert total["epsilon"] == pytest.approx(both, rel=1e-6)
    assert total["epsilon"] < found["first"]["epsilon"] + found["second"]["epsilon"]
    assert total["releases"] == len(first) + len(second)
    assert total["mechanisms"] == ["upload_noise"]
    assert total["left"] == pytest.approx(20.0 - both, rel=1e-6)
    assert found["first"]["limit"] == 8.0


def converted(rho: float) -> float:
    """The least epsilon of zero-concentrated privacy over all orders (Canonne et al. 2020)."""

    def epsilon(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        tail = (math.log(DELTA) + math.log(order)) / (order - 1.0)
        return order * rho + math.log1p(-1.0 / order) - tail

    return float(minimize_scalar(epsilon, bounds=(-5.0, 6.0), method="bounded").fun)


def test_the_budget_over_two_mechanisms_is_one_number(client, place, ledger):
    """By hand: rho of Gaussian and of discrete Gaussian releases add up."""
    own_store(place, ledger)
    document = client("budget", str(place.config), "--json").document
    rows = [row for row in ledger if row.status != "aborted"]
    # Under replace-one two uploads differ by up to 2C.
    rho = sum((2.0 * row.clipping_norm / row.standard_deviation) ** 2 / 2.0 for row in rows)
    total = document["total"]
    assert total["problem"] is None
    assert total["mechanisms"] == ["distributed_noise", "upload_noise"]
    # Accountants take whole orders, and rounding on the grid costs a little.
    assert converted(rho) * 0.999 < total["epsilon"] < converted(rho) * 1.02
    assert len(document["runs"]) == 3


def test_what_was_aborted_is_free_and_what_is_reserved_counts(client, place, ledger):
    given_up, *others = of_run(ledger, "first")
    rows = [dataclasses.replace(given_up, status="aborted")]
    own_store(place, [*rows, *(dataclasses.replace(row, status="reserved") for row in others)])
    (run,) = client("budget", str(place.config), "--json").document["runs"]
    assert (run["releases"], run["mechanisms"]) == (len(others), ["upload_noise"])
    assert run["epsilon"] == pytest.approx(gaussian_epsilon(4.0, len(others)), rel=1e-6)


@pytest.mark.parametrize(("mechanism", "why"), [("dp_sgd", "a record"), ("magic", "'magic'")])
def test_what_does_not_compose_or_is_unknown_has_no_number(client, place, ledger, mechanism, why):
    odd = dataclasses.replace(of_run(ledger, "first")[0], run_id="odd", mechanism=mechanism)
    own_store(place, [*of_run(ledger, "second"), odd])
    answer = client("budget", str(place.config), "--json")
    assert answer.code == 0
    total = answer.document["total"]
    assert total["epsilon"] is None and total["left"] is None
    assert why in total["problem"]
    unpriced = [run["run_id"] for run in answer.document["runs"] if run["epsilon"] is None]
    assert unpriced == (["odd"] if mechanism == "magic" else [])


def test_without_noise_it_is_infinite_and_nothing_is_left(client, place, ledger):
    nothing = {"noise_kind": "none", "standard_deviation": 0.0, "clipping_norm": math.inf}
    first = of_run(ledger, "first")
    own_store(place, (dataclasses.replace(row, mechanism="none", **nothing) for row in first))
    total = client("budget", str(place.config), "--json").document["total"]
    assert (total["epsilon"], total["left"]) == ("inf", 0.0)
    assert " inf " in client("budget", str(place.config)).out


WRITER = """
import sys
from storage import open_client_store
store, number = open_client_store(sys.argv[1]), 0
print("writing", flush=True)
while True:
    number += 1
    store.add_failure("first", number % 50, 1, reason="something")
"""


@pytest.mark.slow
def test_the_budget_is_read_while_a_client_never_stops_writing_and_after_it_was_killed(
    client, place, ledger, child_environment
):
    first = of_run(ledger, "first")
    own_store(place, first)
    command = [sys.executable, "-c", WRITER, str(place.folder / "north" / "client.db")]
    options = {"env": child_environment, "cwd": "/", "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as writer:
        try:
            assert writer.stdout.readline() == "writing\n"
            epsilon = pytest.approx(gaussian_epsilon(4.0, len(first)), rel=1e-6)
            for _ in range(30):
                answer = client("budget", str(place.config), "--json")
                assert answer.code == 0, answer.err
                assert answer.document["total"]["epsilon"] == epsilon
            assert writer.poll() is None, "the reader stopped the writer"
        finally:
            writer.kill()
    # What it left beside its store is taken up, whatever it was at.
    assert client("check", str(place.config)).code == 0
    document = client("budget", str(place.config), "--json").document
    assert document["total"]["releases"] == len(first)


def test_the_budget_of_a_store_in_a_backup_is_read(client, place, ledger, monkeypatch):
    own_store(place, of_run(ledger, "first"))
    folder = place.folder / "north"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    expected = client("budget", str(place.config), "--json").document
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    def refusing(path: Path, *, read_only: bool = False) -> ClientStore:
        if not read_only:
            raise StorageFull("database client.db is read-only")
        return open_client_store(path, read_only=True)

    monkeypatch.setattr("platform.holder.store.open_client_store", refusing)
    assert client("budget", str(place.config), "--json").document == expected


def test_the_budget_reads_the_ledger_and_nothing_that_is_anybodys_secret(
    client, place, ledger, monkeypatch
):
    store = own_store(place, of_run(ledger, "first"))
    store.put_pending("first", 9, 1, personal=b"personal-secret", experts=b"experts-secret")
    asked: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    answers = [client("budget", str(place.config), *json) for json in ((), ("--json",))]
    tables = {
        table
        for statement in asked
        if statement.lstrip().upper().startswith("SELECT")
        for table in ("identity", "personal", "ledger", "tombstones", "sessions", "replies")
        if f"FROM {table}" in statement.replace('"', "")
    }
    assert tables == {"identity", "ledger"}, asked
    own = store.identity
    for answer in answers:
        assert answer.code == 0
        for secret in (own.pseudonym, own.handle_secret.hex(), "secret"):
            assert secret not in answer.out + answer.err


def test_a_damaged_store_states_no_number(client, place, ledger):
    own_store(place, of_run(ledger, "first"))
    path = place.folder / "north" / "client.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ledger SET standard_deviation = 1000.0")
    answer = client("budget", str(place.config), "--json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1 and "damaged" in answer.err
    assert "damaged" in failed(client("check", str(place.config), "--json"), "storage")
