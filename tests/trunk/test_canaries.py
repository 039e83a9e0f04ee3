"""Canary clients in a run: what they show, what they cost, and that nothing else counts on them."""

from __future__ import annotations

import dataclasses
import math
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection

from platform.agreement.checking import faults_of
from platform.cli.running import exit_code_of
from platform.disk.opening import open_existing
from platform.errors import ConfigError, RunStopped
from platform.experiment.finishing import execute
from platform.experiment.planning import reopen_run
from platform.experiment.simulation import KEY_FILE, CanaryMethod
from platform.parties.client import Client
from platform.protection.building import protect_run
from platform.protection.sums import secure_terms, terms_of_others
from platform.rounds.observing import SilentObserver
from privacy import CentralNoise, central
from privacy.auditing import Canaries, canary_bound, commitment_to
from tests.trunk._canaries import (
    AUDIT,
    CANARIES,
    CENTRAL,
    CLIENTS,
    KEY,
    MECHANISMS,
    NAMES,
    ROUNDS,
    SHARED,
    details,
    fix_key,
    halve_central_noise,
    halve_shares,
    shown,
)
from tests.trunk._reports import report_on, section, sentences
from tests.trunk._runs import (
    ONCE,
    OS,
    SMALL,
    Finished,
    Storage,
    crashed,
    losing,
    opened,
    slow,
    warnings_of,
)
from tests.trunk._tampering import edit, execute_and_rehash
from tests.trunk.conftest import MakeStorage


@pytest.fixture(scope="module")
def known(make_storage: MakeStorage) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        return make_storage("canaries-known").run(*CENTRAL, AUDIT)


@pytest.fixture(scope="module", params=["known", *map(slow, MECHANISMS)])
def audited(request: pytest.FixtureRequest, make_storage: MakeStorage) -> Finished:
    """The known run, and one under each mechanism with noise and coins that nobody chose."""
    if request.param == "known":
        return request.getfixturevalue("known")
    return make_storage(f"canaries-{request.param}").run(*MECHANISMS[request.param], AUDIT, OS)


@pytest.mark.slow
def test_the_bound_is_what_the_model_and_the_open_coins_say(audited: Finished):
    found = shown(audited)
    (revealed,) = details(audited.storage, "canaries.revealed")
    with opened(audited.storage.reopen(audited.run_id)) as simulation:
        terms = simulation.run.terms
    (name,) = terms.protection.layout.spec
    before, after = terms.initial_state()[name], audited.state()[name]
    moved = CLIENTS * (after.astype(float) - before.astype(float)).ravel()
    canaries = Canaries(bytes.fromhex(revealed["key"]), CANARIES, 1, moved.size, "replace_one")
    direction = canaries.upload(0)
    along = float(moved @ direction)
    across = np.linalg.norm(moved - along * direction) / math.sqrt(moved.size - 1)
    # All 32 lie on one line, so together they are 32 long, and replacing one moves twice as far.
    assert found["seen_mu"] == pytest.approx(2.0 * along / across / CANARIES, rel=1e-9)
    bound = canary_bound(
        canaries, moved, claimed_mu=found["claimed_mu"], delta=1e-5, sent=float(ROUNDS)
    )
    assert (found["lower_bound"], found["ceiling"]) == (bound.epsilon, bound.ceiling)
    assert found["share"] == pytest.approx(bound.epsilon / found["claimed"])


def test_a_right_run_shows_what_its_noise_lets_it(audited: Finished):
    found = shown(audited)
    claimed, final = found["claimed"], audited.summary["final"]["epsilon"]
    assert claimed == final["observer"] == pytest.approx(3.12, abs=1e-3)
    assert (found["is_refuted"], found["is_blind"]) == (False, False)
    # Ends of six deviations: 2 / 32 of one look, and 1 / sqrt(2 d) of the noise's own.
    shares = 4 if audited.summary["mechanism"] == "distributed_noise" else CLIENTS
    expected = math.sqrt(CLIENTS / shares)
    spread = 1.0 / math.sqrt(2 * found["dimension"])
    assert found["seen_deviation"] == pytest.approx(expected, abs=6 * spread + 0.05)
    truth = found["claimed_mu"] / expected
    assert found["seen_mu"] == pytest.approx(truth, abs=6 * math.hypot(2 / 32, truth * spread))
    assert 0.7 < found["ceiling"] / claimed < 0.9


def test_canaries_are_charged_like_everybody_and_said_to_be_there(audited: Finished):
    query = "SELECT pseudonym, round_number, status, standard_deviation, clipping_norm FROM ledger"
    rows = audited.storage.rows(query)
    names = {name: pseudonym for name, (pseudonym, _) in audited.identities().items()}
    assert sorted(names) == sorted([*NAMES, *[f"client-{i:05d}" for i in range(CLIENTS)]])
    assert sorted(row[:3] for row in rows) == sorted(
        (name, number, "released") for name in names.values() for number in range(1, ROUNDS + 1)
    )
    assert len({row[3:] for row in rows}) == 1
    found = audited.summary["canaries"]
    assert found["pseudonyms"] == sorted(names[name] for name in NAMES)
    assert [r["cohort"] for r in audited.summary["rounds"]] == [CLIENTS + CANARIES] * ROUNDS
    assert any(w.startswith(f"{CANARIES} canary") for w in warnings_of(audited.summary))


def test_a_key_is_committed_to_before_anything_and_opened_with_the_verdict(audited: Finished):
    (created,) = details(audited.storage, "run.created")
    (revealed,) = details(audited.storage, "canaries.revealed")
    file = audited.folder / KEY_FILE
    key = bytes.fromhex(file.read_text())
    assert created["canaries"] == commitment_to(key)
    assert revealed["key"] == key.hex()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {k: v for k, v in revealed.items() if k != "key"} == audited.summary["canaries"]
    actions = [a for (a,) in audited.storage.rows("SELECT action FROM audit ORDER BY sequence")]
    assert actions[-2:] == ["canaries.revealed", "run.finished"]


@pytest.mark.slow
def test_shares_that_are_halved_are_refuted(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    halve_shares(monkeypatch)
    # Noise and coins from a seed: of every 28 runs with half of each share one would pass.
    fix_key(monkeypatch)
    found = shown(storage.run(*SHARED, AUDIT))
    assert found["is_refuted"]
    assert found["lower_bound"] > found["claimed"]


@pytest.mark.slow
def test_a_clip_that_is_twice_too_wide_is_refuted(storage, monkeypatch):
    """Canaries come ten times as long as they may be, so whatever is let through shows."""
    real = central.clip_to_grid

    def wide(vector: Any, mechanism: CentralNoise, **more: Any) -> Any:
        wider = dataclasses.replace(mechanism, clipping_norm=2.0 * mechanism.clipping_norm)
        return real(vector, wider, **more)

    monkeypatch.setattr(central, "clip_to_grid", wide)
    fix_key(monkeypatch)
    masked = "secure_aggregation={enabled: true, threshold: 5}"
    found = shown(storage.run(*CENTRAL, masked, AUDIT))
    assert found["is_refuted"]
    assert found["seen_mu"] == pytest.approx(2.0 * found["claimed_mu"], abs=6 * 2 / 32)
    # Without masks the coordinator clips once more, and what clients let through does no harm.
    assert not shown(storage.run(*CENTRAL, AUDIT))["is_refuted"]


@pytest.mark.slow
def test_canaries_that_fail_are_no_audit(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A failure gives the zero vector, as anybody's does: what shows nothing must not pass."""

    def fail(self: CanaryMethod, *everything: object) -> None:
        raise OSError

    monkeypatch.setattr(CanaryMethod, "client_update", fail)
    fix_key(monkeypatch)
    run = storage.run(*CENTRAL, AUDIT)
    assert run.summary["canaries"]["is_blind"]
    assert warnings_of(run.summary)[0].startswith("BLIND: ")


@pytest.mark.parametrize("overrides", MECHANISMS.values(), ids=MECHANISMS)
def test_nothing_that_protects_others_counts_on_canaries(overrides, storage):
    with opened(storage.create(*overrides, AUDIT)) as simulation:
        run = simulation.run
        alone = storage.config(*overrides)
        method = run.terms.method
        assert run.terms.protection.mechanism == protect_run(alone, method)[0].mechanism
        if run.terms.protection.masked:
            assert terms_of_others(run.terms.config) == secure_terms(alone)
            found = secure_terms(run.terms.config)
            assert (found.smallest_sum, found.threshold) == (5 + CANARIES, 5 + CANARIES)
            assert (found.clients, found.corrupt) == (CLIENTS + CANARIES, 1 + CANARIES)


@pytest.mark.parametrize("overrides", [CENTRAL, slow(SHARED)], ids=MECHANISMS)
def test_thirty_two_canaries_make_no_sum_large_enough(overrides: tuple[str, ...], storage: Storage):
    needed = (*overrides, AUDIT, ONCE, "cohort.minimum=5")
    with opened(storage.create(*needed)) as simulation:
        silent = losing(simulation, lambda *_: frozenset({"client-00003"}))
        with pytest.raises(RunStopped, match="in phase masked_input"):
            execute(silent, SilentObserver())
    assert storage.rows("SELECT count(*) FROM rounds") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", MECHANISMS.values(), ids=MECHANISMS)
def test_canaries_of_zeros_leave_the_run_as_it_is_without_them(
    overrides, make_storage, monkeypatch
):
    """They count in no mean: with all coins out the seeded run is the same but for rounding."""
    name = "zeros-central" if overrides is CENTRAL else "zeros-shared"
    out = (*overrides, "privacy.relation=add_or_remove_one")
    without = make_storage(f"{name}-without").run(*out)
    keys = [bytes([number] * 32) for number in range(99)]
    sides = [Canaries(key, CANARIES, 1, 64, "add_or_remove_one").sides.any() for key in keys]
    fix_key(monkeypatch, keys[sides.index(False)])
    assert "canaries" not in without.summary and not (without.folder / KEY_FILE).exists()
    with_them = make_storage(f"{name}-with").run(*out, AUDIT)
    (one,), (other,) = without.state().values(), with_them.state().values()
    # Shares of the smallest kind: 1.5 of 65,536 steps from each of 32, over five.
    loosest = 1e-6 if overrides is CENTRAL else 6 * 1.5 / 65536 * math.sqrt(32 * ROUNDS) / CLIENTS
    assert np.abs(one - other).max() < loosest
    assert np.abs(one).max() > 100 * loosest
    assert with_them.summary["canaries"]["lower_bound"] == 0.0
    assert with_them.summary["final"]["epsilon"] == without.summary["final"]["epsilon"]
    rounds = zip(without.summary["rounds"], with_them.summary["rounds"], strict=True)
    for mine, theirs in rounds:
        for end in ("low", "high"):
            seen = (mine["signal_to_noise"][end], theirs["signal_to_noise"][end])
            assert seen[0] == pytest.approx(seen[1], rel=0.02, abs=1e-3)


REFUSED = {
    "a method with a pool": ("method={name: pfedmoap, experts: 1}", "audit: pfedmoap"),
    "a federation's own noise": ("privacy.mechanism=upload_noise", "has its noise elsewhere"),
    "a moving norm": ("privacy.adaptive_clipping={}", "privacy.adaptive_clipping"),
    "a server that steps": (
        "method.server_optimizer={name: sgd, learning_rate: 1.0, momentum: 0.5}",
        "method.server_optimizer: a section",
    ),
    "more than there are": ("audit={canaries: 300}", "audit.canaries: 300 canaries"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_canaries_are_not_built_for_is_refused_by_name(case: str, storage: Storage):
    override, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        storage.create(*CENTRAL, AUDIT, override)
    assert not storage.file.exists()


def test_what_is_measured_beside_a_run_is_of_its_clients_alone(storage: Storage):
    measured = "evaluation={local_twins: true, worth_of_sharing: true}"
    few = ("audit={canaries: 3, directions: 1}", "rounds=1")
    run = storage.run(*CENTRAL, measured, *few)
    for part in ("final", "local"):
        assert len(run.summary[part]["accuracy"]["per_client"]) == CLIENTS
    assert run.summary["silent"]["noised"] is not None
    with opened(run.storage.reopen(run.run_id)) as simulation:
        assert len(simulation.population.clients) == CLIENTS
        assert len(simulation.run.roll.clients) == CLIENTS + 3
    place = (run.storage.url, SilentObserver(), run.storage.surroundings)
    again = reopen_run(run.run_id, *place, read_only=True)
    with opened(again) as simulation:
        assert sorted(simulation.population.canaries) == NAMES[:3]


@pytest.mark.slow
def test_a_run_that_was_killed_keeps_coins_and_bound(known, storage, monkeypatch):
    fix_key(monkeypatch)
    # In the middle of round 2, a canary among those who have answered.
    simulation, nth = storage.create(*CENTRAL, AUDIT), CLIENTS + CANARIES + 20
    run_id = crashed(monkeypatch, simulation, Client, "_train", nth, after=True)
    fix_key(monkeypatch, bytes(32))
    assert (storage.folder / run_id / KEY_FILE).read_text().strip() == KEY.hex()
    resumed = storage.resume(run_id)
    assert shown(resumed) == shown(known)
    assert len(details(storage, "canaries.revealed")) == 1


def test_nobody_has_the_key_before_the_end_and_another_one_stops_the_run(storage, monkeypatch):
    fix_key(monkeypatch)
    simulation = storage.create(*CENTRAL, AUDIT)
    run_id = crashed(monkeypatch, simulation, Client, "_train", 20, after=True)
    file = storage.folder / run_id / KEY_FILE

    def tells(needle: bytes) -> list[str]:
        files = [p for p in storage.folder.rglob("*") if p.is_file() and p != file]
        return [p.name for p in files if needle in p.read_bytes()]

    assert not tells(KEY) and not tells(KEY.hex().encode())
    # The needle is one that would be found.
    assert tells(commitment_to(KEY).encode())
    for other, said in (
        (bytes(32).hex(), "is not the one"),
        ("heads", "is missing or no key"),
        (None, "is missing or no key"),
    ):
        file.unlink() if other is None else file.write_text(other)
        with pytest.raises(RunStopped, match=said):
            storage.reopen(run_id)
    assert not details(storage, "canaries.revealed")


CHANGE = "UPDATE audit SET detail = replace(detail, ?, ?) WHERE action = ?"
FORGERIES = {
    "another bound": (
        ('"is_refuted":false', '"is_refuted":true', "canaries.revealed"),
        "what canaries showed",
    ),
    "another key": ((KEY.hex(), bytes(32).hex(), "canaries.revealed"), "is not the one"),
    "no promise": (('"canaries":"', '"canary":"', "run.created"), "commits to no key"),
}


@pytest.mark.parametrize("forgery", sorted(FORGERIES))
def test_a_verdict_that_was_changed_later_is_noticed(forgery: str, known: Finished, tmp_path: Path):
    values, said = FORGERIES[forgery]
    copy = known.storage.copied(tmp_path / "copy")

    def change(connection: Connection) -> None:
        query = "SELECT detail FROM audit WHERE action = ?"
        before = connection.exec_driver_sql(query, values[2:]).all()
        connection.exec_driver_sql(CHANGE, values)
        assert connection.exec_driver_sql(query, values[2:]).all() != before

    edit(copy.file, change)
    execute_and_rehash(copy.file)
    with closing(open_existing(copy.url)) as database:
        _, faults = faults_of(database, known.run_id)
    assert any(said in str(fault) for fault in faults)


def test_the_exit_code_tells_what_canaries_showed():
    found = {"is_above_claim": False, "is_refuted": False, "is_blind": False}
    above = {**found, "is_above_claim": True}
    told = (None, found, above, {**above, "is_refuted": True}, {**found, "is_blind": True})
    assert [exit_code_of(each) for each in told] == [0, 0, 4, 1, 1]


def test_the_command_and_the_report_of_a_refuted_run_warn_first(
    storage, sotto, tmp_path, monkeypatch
):
    fix_key(monkeypatch)
    halve_central_noise(monkeypatch)
    (tmp_path / "audited.yaml").write_text(SMALL)
    given = (*CENTRAL, AUDIT, f"storage.url={storage.url}")
    sets = [part for one in given for part in ("--set", one)]
    answer = sotto("run", str(tmp_path / "audited.yaml"), *sets)
    assert answer.code == 1
    assert answer.out.index("WARNING: REFUTED") < answer.out.index("accuracy")
    (run,) = sotto("runs", "--json", "--storage", storage.url).document
    assert run["status"] == "finished"
    report = report_on(storage, storage.only_run())
    first, *others = (one.startswith("REFUTED") for one in report.warnings)
    assert first and not any(others)
    assert "| REFUTED" in "\n".join(sentences(section(report, "empirical")))
