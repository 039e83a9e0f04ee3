"""What a data holder's commands print, and those about clients, fits into eighty columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len

from platform.cli.client_app import main as client_main
from platform.parties.identities import create_key, write_enrolment
from platform.relay.hub import Hub
from privacy.secure_aggregation import Enrolment
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._leaving import NOISED
from tests.trunk._runs import NO_POOL, SMALL, Command, command_line
from tests.trunk._widths import CLIENT, COORDINATOR, cut_words, in_pipe, in_terminal, too_wide

pytestmark = pytest.mark.slow

NAMES = ("east", "north", "the-hospital-of-saint-mary-in-the-south", "west")
LONG = NAMES[2]
IMAGE = "images/test/circle/0.png"


@dataclass(frozen=True)
class Place:
    """Where a federation was, which has ended.

    Attributes:
        folder: Of the coordinator and all holders.
        run_id: Of its one run.
    """

    folder: Path
    run_id: str

    @property
    def holder(self) -> Path:
        """The folder of the holder with the long name."""
        return self.folder / LONG

    def asked(self, words: str) -> list[str]:
        """A command line as it is typed in the holder's folder."""
        return words.replace("RUN", self.run_id).split()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run of three noised rounds; the holder of the longest name has a key, enrolled."""
    folder = tmp_path_factory.mktemp("w")
    holders = Holders.written(folder, NAMES)
    named = f"federation.clients={list(NAMES)}".replace("'", "")
    config = federation(folder, *NOISED, named, "name=a-federation-of-several-hospitals")
    summary = hold(config, within(holders.handlers()))
    found = Place(folder, summary["run_id"])
    key = create_key(found.holder / "own.key")
    write_enrolment(found.holder / "enrolment.json", Enrolment().enrol(LONG, key.public))
    settings = found.holder / "client.yaml"
    tree = yaml.safe_load(settings.read_text())
    settings.write_text(
        yaml.safe_dump({**tree, "identity": "own.key", "enrolment": "enrolment.json"})
    )
    return found


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, client_main)


def require_fitting(
    command: Command, monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 0
) -> str:
    """Requires that an answer fits, with no word cut; the answer in eighty columns."""
    wide = command(*words)
    with monkeypatch.context() as narrower:
        narrower.setenv("COLUMNS", "80")
        narrow = command(*words)
    assert (narrow.code, wide.code) == (code, code), narrow.err + wide.err
    assert too_wide(narrow.out) == []
    assert narrow.out and cut_words(narrow.out, wide.out) == []
    return narrow.out


READING = (
    *("check client.yaml", "budget client.yaml", f"predict client.yaml RUN {IMAGE} {IMAGE}"),
    *("evaluate client.yaml RUN", "receipts verify client.yaml", "keys show own.key"),
    *("example", "--help", "check --help"),
)


@pytest.mark.parametrize("words", READING)
def test_what_a_holder_reads(
    client: Command, place: Place, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(place.holder)
    require_fitting(client, monkeypatch, *place.asked(words))


def test_all_that_is_wrong_fits_as_well(
    client: Command, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "client.yaml"
    limits = {"methods": ["promptfl"], "epsilon_total": 12.5, "delta": 1e-6}
    settings.write_text(
        yaml.safe_dump(
            {
                **{"name": LONG, "data": {"root": "no-images"}, "storage": "store"},
                **{"identity": "no.key", "enrolment": "no.json", "limits": limits},
            }
        )
    )
    monkeypatch.chdir(tmp_path)
    out = require_fitting(client, monkeypatch, "check", "client.yaml", code=2)
    assert "failed  data" in out and "failed  identity" in out
    settings.write_text("data: {root: x, colour: red}\nname: x\nstorage: y")
    out = require_fitting(client, monkeypatch, "check", "client.yaml", code=2)
    # What is said further stands below what is said, not below the words at the left.
    _, *more = out.splitlines()
    assert more and all(line.startswith(" " * 20) for line in more)


def test_what_a_holder_writes_is_named_in_full(
    client: Command, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A path is copied, so it is one line however long it is."""
    monkeypatch.chdir(place.holder)
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / ("a-folder-with-a-long-name" * 4)
    folder.mkdir()
    for words in ("export client.yaml RUN", "receipts export client.yaml", "backup client.yaml"):
        file = folder / words.split()[0]
        answer = client(*place.asked(words), str(file))
        assert answer.code == 0, answer.err
        assert [line for line in answer.out.splitlines() if str(file) in line], answer.out
        assert too_wide(answer.out.replace(str(file), "")) == []


def test_receipts_of_others_beside_the_own(
    client: Command, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(place.folder)
    other, own = tmp_path / "west.receipts", f"{LONG}/client.yaml"
    assert client("receipts", "export", "west/client.yaml", str(other)).code == 0
    out = require_fitting(client, monkeypatch, "receipts", "verify", own, "--compare", str(other))
    assert "in common" in out


def test_runs_are_left_in_few_words(
    client: Command, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder / "east")
    assert client("leave", "client.yaml", "--all").code == 0
    # Said once more, in the same words at any width.
    require_fitting(client, monkeypatch, "leave", "client.yaml", "--all")


@pytest.mark.parametrize(
    "words", ["check client.yaml", "budget client.yaml", "receipts verify client.yaml"]
)
def test_in_a_terminal_and_in_a_pipe(
    place: Place, narrow_environment: dict[str, str], words: str
) -> None:
    for shown in (in_terminal, in_pipe):
        out = shown(CLIENT, words.split(), narrow_environment, place.holder)
        assert too_wide(out) == []
        # All of it is used, so it was not narrower either.
        assert max(map(cell_len, out.splitlines())) > 64


# --- commands of the coordinator that are about clients, or try a configuration -----------------


@pytest.fixture
def hub(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(place.folder)
    with Hub(path=Path("hub.sock"), clients=NAMES):
        yield "hub.sock"


def test_status_of_a_federation(
    sotto: Command, place: Place, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = ("federation", "status", hub)
    bare = require_fitting(sotto, monkeypatch, *status)
    told = require_fitting(sotto, monkeypatch, *status, "--storage", "sqlite:///sotto.db")
    assert LONG in bare and "in round 3" in told


def test_status_in_a_terminal_and_in_a_pipe(
    place: Place, hub: str, narrow_environment: dict[str, str]
) -> None:
    words = ("federation", "status", hub, "--storage", "sqlite:///sotto.db")
    for shown in (in_terminal, in_pipe):
        assert too_wide(shown(COORDINATOR, words, narrow_environment, place.folder)) == []


def test_an_enrolment(sotto: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    node = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1ezLVK1hVQkZ3ypbP0uaTr5xYgcyiM4NpKqTH4gIFw"
    for number, name in enumerate(NAMES):
        public = create_key(Path(f"{number}.key")).public.hex()
        assert sotto("enrolment", "add", "all.json", name, public).code == 0
    assert sotto("enrolment", "bind", "all.json", LONG, node).code == 0
    assert sotto("enrolment", "revoke", "all.json", "west").code == 0
    assert LONG in require_fitting(sotto, monkeypatch, "enrolment", "show", "all.json")


TRYING = {
    "clipping": ("--rounds", "2"),
    "audit-privacy": ("--canaries", "100"),
}


@pytest.mark.parametrize("command", TRYING)
def test_what_tries_a_configuration(
    sotto: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    sets = [part for one in NO_POOL for part in ("--set", one)]
    sets = [] if command == "audit-privacy" else sets
    monkeypatch.setenv("COLUMNS", "80")
    answer = sotto(command, "small.yaml", *sets, *TRYING[command])
    assert answer.code == 0, answer.err
    assert too_wide(answer.out) == [] and too_wide(answer.err) == []


def test_what_tries_one_in_a_terminal(narrow_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ("clipping", "small.yaml", "--rounds", "1")
    out = in_terminal(COORDINATOR, words, narrow_environment, tmp_path)
    # The bar is drawn anew on its line.
    lines = [part for line in out.splitlines() for part in line.split("\r")]
    assert too_wide("\n".join(lines)) == []
    assert "recommended privacy.clipping_norm" in out
