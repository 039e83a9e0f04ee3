"""A data holder or coordinator that comes back from a backup: nothing is released twice.

The backup is older than what the client released. Its epsilon may never go down, whoever asks it
for what.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from platform.agreement import backups
from platform.cli.auditing import audited
from platform.disk.log_files import key_file
from platform.disk.opening import open_existing
from platform.errors import (
    ClientRestored,
    ClientsSilent,
    ConfigError,
    CoordinatorBehind,
    ProtocolError,
)
from platform.holder.checking import check_holder
from platform.holder.settings import HolderSettings, load_holder, own_account
from platform.holder.store import back_up_store, own_store, restore_store
from platform.parties.client_state import catch_up
from platform.rounds.attempts import charges_of
from platform.rounds.audit_trail import AuditTrail
from platform.wire.charges import Charges, RunCharges, decode_charges, encode_charges
from platform.wire.codec import Envelope
from platform.wire.messages import Invitation, encode_invitation
from storage import ClientStore, LedgerRow
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold, within
from tests.trunk._runs import Crash, Storage, crash_at

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LOST = "south"
NOISED = (
    *("rounds=4", "privacy.mechanism=upload_noise", "privacy.clipping_norm=0.1"),
    *("privacy.target_epsilon=20.0", "secure_aggregation={enabled: false}", "cohort={minimum: 3}"),
)


@dataclass
class Lost:
    """A federation of whose first round one client and the coordinator have backups.

    `spent` is what that client had spent when it was lost, after the third round.
    """

    folder: Path
    holders: Holders
    run_id: str = ""
    spent: float = math.nan

    @property
    def coordinator(self) -> Storage:
        return Storage(self.folder)

    @property
    def settings(self) -> HolderSettings:
        return load_holder(self.folder / LOST / "client.yaml")

    @property
    def store(self) -> ClientStore:
        return own_store(self.settings)

    def epsilon(self) -> float:
        epsilon = own_account(self.store, self.settings.limits).total.epsilon
        assert epsilon is not None
        return epsilon

    def restore(self) -> None:
        shutil.rmtree(self.settings.storage)
        restore_store(self.folder / "south.backup", self.settings, NOW)

    def back_up_coordinator(self) -> None:
        backups.back_up(self.coordinator.url, self.folder / "backup", NOW)

    def restored_coordinator(self) -> Storage:
        place = Storage(self.folder / "back")
        backups.restore(self.folder / "backup", place.url, NOW)
        # A backup holds no key; its operator has it, or clients are told of another.
        shutil.copyfile(key_file(self.coordinator.file), key_file(place.file))
        return place

    def charges(self) -> Charges:
        """What the coordinator says it charged, as the file that travels has it."""
        with open_existing(self.coordinator.url) as database:
            with database.unit_of_work(read_only=True) as uow:
                found = charges_of(uow, self.store.identity.pseudonym, NOW)
        return decode_charges(encode_charges(found))

    def invited(self, place: tuple[int, int], committed: tuple[int, int] | None) -> bytes:
        """What the client answers to whoever invites it."""
        invitation = Invitation(Envelope(self.run_id, *place, committed), (), None, None)
        return self.holders.handler(LOST)(encode_invitation(invitation))

    def begin(self, *overrides: str) -> None:
        config = federation(self.folder, *NOISED, *overrides)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, AuditTrail, "round_opened", 2)
            hold(config, within(self.holders.handlers()))
        self.run_id = self.coordinator.only_run()

    def go_on(self, storage: Storage | None = None) -> dict[str, Any]:
        place = storage or self.coordinator
        return go_on(self.run_id, place.url, within(self.holders.handlers()))

    def hold_rounds(self, number: int) -> None:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, AuditTrail, "round_opened", number + 1)
            self.go_on()

    def own_ledgers(self) -> dict[str, tuple[LedgerRow, ...]]:
        settings = {n: load_holder(self.folder / n / "client.yaml") for n in self.holders.lines}
        return {name: own_store(each).rows() for name, each in settings.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    folder = tmp_path_factory.mktemp("lost")
    fed = Lost(folder, Holders.written(folder))
    fed.begin()
    back_up_store(fed.settings, folder / "south.backup", NOW)
    fed.back_up_coordinator()
    fed.hold_rounds(2)
    fed.spent = fed.epsilon()
    return fed


@pytest.fixture
def fed(made: Lost, tmp_path: Path) -> Lost:
    """Of the test's own, all of whose stores are as they should be."""
    folder = tmp_path / "fed"
    shutil.copytree(made.folder, folder)
    lines: dict[str, list[str]] = {name: [] for name in made.holders.lines}
    holders = Holders(folder, made.holders.surroundings, lines)
    return dataclasses.replace(made, folder=folder, holders=holders)


@pytest.fixture
def lost(fed: Lost) -> Lost:
    fed.restore()
    return fed


def test_what_a_copied_file_would_do_and_a_restored_store_does_not(lost: Lost) -> None:
    """The attack: the coordinator asks for a round that was released, and denies that it was."""
    assert lost.epsilon() < lost.spent
    copied = lost.store
    copied.restoring.settle(NOW)
    # A file that was merely copied answers a round that its client has answered before.
    assert lost.invited((2, 1), (1, 1))
    lost.restore()
    for place, committed in (((2, 1), (1, 1)), ((4, 1), (3, 1)), ((4, 9), None)):
        with pytest.raises(ClientRestored, match="at 2026-11-22"):
            lost.invited(place, committed)


@pytest.mark.slow
def test_others_go_on_without_it_and_are_told_why(lost: Lost) -> None:
    before = lost.store.rows()
    # What is trained last needs everybody, and so the run waits for its catching up.
    with pytest.raises(ClientsSilent, match=r"south .* not caught up"):
        lost.go_on()
    assert lost.store.rows() == before
    catch_up(lost.store, [lost.charges()], NOW)
    summary = lost.go_on()
    assert [r["round"] for r in summary["rounds"]] == [1, 2, 3, 4]
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 0, 1]


@pytest.mark.slow
def test_a_client_that_has_caught_up_goes_on_and_spends_on_top_of_it(lost: Lost) -> None:
    catch_up(lost.store, [lost.charges()], NOW)
    summary = lost.go_on()
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 0, 0]
    rows = lost.store.rows(lost.run_id)
    assert [(row.round_number, row.attempt) for row in rows] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    # Four Gaussian releases calibrated to 20 cost 20, with or without a backup in between.
    assert lost.epsilon() > lost.spent
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(20.0, rel=1e-3)


def test_a_backups_open_attempts_are_over_and_no_round_that_was_released_is_answered(lost):
    """Its keys and replies are gone: what was sent with them since is not known."""
    newest = lost.store.sessions.newest(lost.run_id)
    assert newest is not None
    assert (newest.round_number, newest.attempt, newest.state) == (1, 1, b"")

    def storage() -> Any:
        return next(check for check in check_holder(lost.settings) if check.point == "storage")

    assert not storage().is_sound
    assert "has not caught up" in storage().text
    assert catch_up(lost.store, [lost.charges()], NOW) == 2
    assert lost.epsilon() == pytest.approx(lost.spent, rel=1e-9)
    assert storage().is_sound
    before = lost.store.rows()
    for place in ((1, 1), (2, 1), (2, 7), (3, 1)):
        with pytest.raises(ProtocolError):
            lost.invited(place, (1, 1))
    assert lost.store.rows() == before
    with pytest.raises(ConfigError, match="nothing to catch"):
        catch_up(lost.store, [lost.charges()], NOW)
    lost.restore()
    with pytest.raises(ClientRestored):
        lost.invited((4, 1), (3, 1))


SPOILT: tuple[dict[str, Any], ...] = (
    *({"version": 2}, {"pseudonym": 3}, {"made": "2026-11-22"}, {"runs": []}),
    *({"runs": {"x": {"newest": newest, "rows": []}}} for newest in ([1], [-1, 1])),
    {"runs": {"x": {"newest": [1, 1], "rows": [{"channel": "sum"}]}}},
)


def changed(charges: Charges, run_id: str, **facts: Any) -> Charges:
    run = charges.runs[run_id]
    merged = {"newest": run.newest, "rows": run.rows, **facts}
    return Charges(charges.pseudonym, charges.made, {**charges.runs, run_id: RunCharges(**merged)})


def test_charges_that_do_not_fit_are_refused_and_change_nothing(lost: Lost) -> None:
    whole = lost.charges()
    rows = whole.runs[lost.run_id].rows
    quieter = dataclasses.replace(rows[0], standard_deviation=rows[0].standard_deviation * 2)
    wrong = dataclasses.replace(rows[2], standard_deviation=math.nan)
    cases = {
        "client 'nobody'": Charges("nobody", NOW, whole.runs),
        "they lack round 1": changed(whole, lost.run_id, rows=rows[1:]),
        "is charged differently": changed(whole, lost.run_id, rows=(quieter, *rows[1:])),
        "standard_deviation must": changed(whole, lost.run_id, rows=(*rows[:2], wrong)),
        "not in them": Charges(whole.pseudonym, NOW, {}),
        "before the store": Charges(whole.pseudonym, NOW - timedelta(seconds=1), whole.runs),
    }
    before = lost.store.rows()
    for said, charges in cases.items():
        with pytest.raises(ConfigError, match=said):
            catch_up(lost.store, [charges], NOW)
        assert lost.store.rows() == before
        assert lost.store.restoring.pending_since() is not None
    with pytest.raises(ConfigError, match="there are none"):
        catch_up(lost.store, [], NOW)


def test_charging_too_much_only_costs_the_client_more(lost: Lost) -> None:
    whole = lost.charges()
    rows = whole.runs[lost.run_id].rows
    more = dataclasses.replace(rows[-1], round_number=3, attempt=2)
    catch_up(lost.store, [changed(whole, lost.run_id, rows=(*rows, more))], NOW)
    assert lost.epsilon() > lost.spent
    # It takes the coordinator at its word, and that has not begun this attempt.
    with pytest.raises(CoordinatorBehind, match="round 3, attempt 2"):
        lost.go_on()
    # Nor is a file that holds no charges read.
    tree = json.loads(encode_charges(lost.charges()))
    for spoilt in SPOILT:
        with pytest.raises(ConfigError, match="no charges"):
            decode_charges(json.dumps({**tree, **spoilt}).encode())


LEDGER = "SELECT run_id, round_number, attempt, pseudonym, channel, status FROM ledger"


def test_it_stops_with_the_sentence_and_nothing_is_released_or_priced_anew(fed: Lost) -> None:
    own, back = fed.own_ledgers(), fed.restored_coordinator()
    charged = back.rows(LEDGER)
    said = "round 3, attempt 1 .*none after round 1, attempt 1"
    for _ in range(2):
        with pytest.raises(CoordinatorBehind, match=said):
            fed.go_on(back)
    assert fed.own_ledgers() == own
    assert back.rows(LEDGER) == charged
    fed.go_on()


@pytest.mark.slow
def test_clients_that_the_next_round_would_not_ask_are_heard_too(tmp_path: Path) -> None:
    """Of a cohort of three in four, one would not notice; its charge would be lost here."""
    fed = Lost(tmp_path, Holders.written(tmp_path))
    fed.begin("cohort.size=3")
    fed.back_up_coordinator()
    fed.hold_rounds(1)
    with pytest.raises(CoordinatorBehind, match="round 2, attempt 1"):
        fed.go_on(fed.restored_coordinator())


@pytest.mark.slow
def test_one_that_nobody_is_ahead_of_goes_on(fed: Lost) -> None:
    (fed.folder / "backup").unlink()
    fed.back_up_coordinator()
    back = fed.restored_coordinator()
    fed.go_on(back)
    assert [run["problems"] for run in audited(back.url)["runs"]] == [[]]
    places = [(row.round_number, row.attempt) for row in fed.own_ledgers()[NAMES[0]]]
    assert places == [(1, 1), (2, 1), (3, 1), (4, 1)]
