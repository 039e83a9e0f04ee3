"""A coordinator that comes back from an older backup: its data holders know of more, and say so."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from platform.agreement import backups
from platform.cli.auditing import audited
from platform.disk.log_files import key_file
from platform.errors import CoordinatorBehind
from platform.holder.settings import load_holder
from platform.holder.store import own_store
from platform.rounds.audit_trail import AuditTrail
from storage import LedgerRow
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold, within
from tests.trunk._runs import Crash, Storage, crash_at
from tests.trunk.test_restored_clients import NOISED

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass
class Federation:
    """Data holders, and a coordinator that may be lost."""

    folder: Path
    holders: Holders

    @property
    def coordinator(self) -> Storage:
        return Storage(self.folder)

    def begin(self, *overrides: str, last: int) -> str:
        config = federation(self.folder, *NOISED, *overrides)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, AuditTrail, "round_opened", last + 1)
            hold(config, within(self.holders.handlers()))
        return self.coordinator.only_run()

    def go_on(self, run_id: str, storage: Storage, rounds: int | None = None) -> None:
        reaching = within(self.holders.handlers())
        if rounds is None:
            go_on(run_id, storage.url, reaching)
            return
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, AuditTrail, "round_opened", rounds + 1)
            go_on(run_id, storage.url, reaching)

    def own_ledgers(self) -> dict[str, tuple[LedgerRow, ...]]:
        settings = {n: load_holder(self.folder / n / "client.yaml") for n in self.holders.lines}
        return {name: own_store(each).rows() for name, each in settings.items()}

    def restored(self, file: Path) -> Storage:
        place = Storage(self.folder / "back")
        backups.restore(file, place.url, NOW)
        # A backup holds no key; its operator has it, or clients are told of another.
        shutil.copyfile(key_file(self.coordinator.file), key_file(place.file))
        return place


@pytest.fixture
def fed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("fed")
    return Federation(folder, Holders.written(folder))


LEDGER = "SELECT run_id, round_number, attempt, pseudonym, channel, status FROM ledger"


def test_it_stops_with_the_sentence_and_nothing_is_released_or_priced_anew(
    fed: Federation,
) -> None:
    run_id = fed.begin(last=1)
    backups.back_up(fed.coordinator.url, fed.folder / "file", NOW)
    fed.go_on(run_id, fed.coordinator, rounds=2)
    own, back = fed.own_ledgers(), fed.restored(fed.folder / "file")
    charged = back.rows(LEDGER)
    said = "has answered round 3, attempt 1 .*knows of none after round 1, attempt 1"
    for _ in range(2):
        with pytest.raises(CoordinatorBehind, match=said):
            fed.go_on(run_id, back)
    assert fed.own_ledgers() == own
    assert back.rows(LEDGER) == charged
    # The newer database is as good as it was.
    fed.go_on(run_id, fed.coordinator)


def test_clients_that_the_next_round_would_not_ask_are_heard_too(fed: Federation) -> None:
    """Of a cohort of three in four, one would not notice; its charge would be lost here."""
    run_id = fed.begin("cohort.size=3", last=1)
    backups.back_up(fed.coordinator.url, fed.folder / "file", NOW)
    fed.go_on(run_id, fed.coordinator, rounds=1)
    back = fed.restored(fed.folder / "file")
    with pytest.raises(CoordinatorBehind, match="has answered round 2, attempt 1"):
        fed.go_on(run_id, back)


def test_one_that_nobody_is_ahead_of_goes_on(fed: Federation) -> None:
    run_id = fed.begin(last=2)
    backups.back_up(fed.coordinator.url, fed.folder / "file", NOW)
    back = fed.restored(fed.folder / "file")
    fed.go_on(run_id, back)
    assert [run["problems"] for run in audited(back.url)["runs"]] == [[]]
    places = [(row.round_number, row.attempt) for row in fed.own_ledgers()[NAMES[0]]]
    assert places == [(1, 1), (2, 1), (3, 1), (4, 1)]
