"""A mechanism is one value in one file: one from outside runs, and all that must know of it does.

What does not know a mechanism refuses it. Nothing takes it for another one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from platform import mechanisms
from platform.agreement import faults_of, require_agreement
from platform.config import Sources, parse_config
from platform.disk.opening import open_existing
from platform.errors import ConfigError, RecordsDisagree
from platform.experiment.planning import Surroundings, create_run, plan_run, reopen_run
from platform.experiment.privacy_auditing.audit import AuditPlan, audit_failing
from platform.mechanisms import BUILT_IN, Mechanism, Mechanisms, Settings, Steps, Sums
from platform.parties.client_state import OwnSpending
from platform.protection.charging import Limits, as_releases, as_row
from platform.rounds.observing import SilentObserver
from privacy import (
    GAUSSIAN,
    BudgetExhausted,
    Grid,
    NoiseLaw,
    NoiseSource,
    NoiseState,
    Protected,
    ProtectedUpload,
    ReleaseKey,
    UnknownMechanism,
    UnsupportedEvent,
    UploadNoise,
    clip,
    epsilons,
    release_of_upload,
)
from storage import InvalidRecordError, LedgerRow
from tests.trunk._audits import audited
from tests.trunk._runs import FIXED, NO_POOL, SMALL, Finished, Storage, warnings_of
from tests.trunk._toy_mechanism import FACTS, TOY_NOISE, ToyNoise, build
from tests.trunk.conftest import MakeStorage

WITH_TOY = BUILT_IN.adding(TOY_NOISE)
TOY = ("privacy.mechanism=toy_noise",)
GIVEN = (*TOY, "privacy.target_epsilon=null", "privacy.noise_multiplier=4.0")


def surroundings(*more: Mechanism) -> Surroundings:
    return Surroundings(sources=Sources(mechanisms=BUILT_IN.adding(*more)))


def config(storage: Storage, *overrides: str, mechanism: Mechanism = TOY_NOISE):
    tree = {**yaml.safe_load(SMALL), "storage": {"url": storage.url}}
    return parse_config(tree, overrides, surroundings(mechanism).sources)


@pytest.fixture(scope="module")
def ran(make_storage: MakeStorage) -> tuple[Storage, Finished]:
    """A whole run under the toy mechanism, calibrated to a budget."""
    storage = dataclasses.replace(make_storage("toy"), surroundings=surroundings(TOY_NOISE))
    begun = create_run(config(storage, *TOY), SilentObserver(), storage.surroundings)
    return storage, storage.finish(begun)


def test_its_ledger_says_its_own_name(ran):
    storage, run = ran
    rows = storage.rows("SELECT DISTINCT mechanism, channel, status FROM ledger")
    assert set(rows) == {("toy_noise", "sum", "released"), ("toy_noise", "sum", "reserved")}
    assert (run.summary["mechanism"], run.summary["unit"]) == ("toy_noise", "client")
    assert run.summary["relation"] == "replace_one"
    assert any(text.startswith("toy_noise") for text in warnings_of(run.summary))


def test_its_epsilon_is_that_of_its_noise(ran, noised_run):
    """Gaussian noise of one multiplier costs the same whatever the mechanism is called."""
    storage, run = ran
    spent = run.summary["final"]["epsilon"]
    assert 7.9 < spent["server"] <= 8.0
    assert spent["server"] == spent["peers"] == spent["observer"]
    (row,) = storage.rows("SELECT DISTINCT standard_deviation, clipping_norm FROM ledger")
    assert noised_run.summary["final"]["epsilon"] == spent
    query = "SELECT DISTINCT standard_deviation, clipping_norm FROM ledger"
    assert noised_run.storage.rows(query) == [row]


def test_its_records_agree_where_it_is_known_and_nowhere_else(ran):
    storage, run = ran
    with open_existing(storage.url) as database:
        agreed = require_agreement(database, run.run_id, WITH_TOY)
        assert agreed.config.mechanism is TOY_NOISE
        with pytest.raises((ConfigError, RecordsDisagree), match="'toy_noise'"):
            require_agreement(database, run.run_id)
        with pytest.raises(ConfigError, match=r"privacy\.mechanism: 'toy_noise'"):
            reopen_run(run.run_id, storage.url, SilentObserver(), Surroundings())
        assert faults_of(database, run.run_id, None, WITH_TOY)[1] == []


def test_a_lifetime_counts_what_it_spent(ran):
    """A client reads rows of mechanisms that the run which asks it does not have."""
    storage, run = ran
    with open_existing(storage.url) as database, database.unit_of_work(read_only=True) as uow:
        spent = uow.ledger.rows(run.run_id)
    key = ReleaseKey(run_id="next", round_number=1, attempt=1, pseudonym=spent[0].pseudonym)
    mine = [row for row in spent if row.pseudonym == key.pseudonym]
    planned = [release_of_upload(UploadNoise(1.0, 4.0), 8, key)]

    class Store:
        sessions = SimpleNamespace(of_other_runs=lambda run_id: ())

        def rows(self, run_id: str | None = None, place: object = None) -> list[LedgerRow]:
            return [row for row in mine if run_id in (None, row.run_id)]

    def spend(budget: float, known: Mechanisms) -> None:
        limits = Limits(delta=1e-5, accountant="auto", lifetime_budget=budget, mechanisms=known)
        OwnSpending(store=Store(), run_id=key.run_id, limits=limits).require(None, planned)

    spend(9.0, WITH_TOY)
    with pytest.raises(BudgetExhausted, match="lifetime_budget"):
        spend(8.0, WITH_TOY)
    with pytest.raises(UnknownMechanism, match="'toy_noise'"):
        spend(9.0, BUILT_IN)


@pytest.mark.slow
def test_the_audit_judges_it(storage):
    asked = config(storage, *GIVEN, "pool.noise=independent")
    plan = plan_run(asked, SilentObserver(), surroundings(TOY_NOISE))
    found = {(one.channel, one.mechanism, one.passed) for one in audited(plan, 120)}
    assert found == {("sum", "toy_noise", True), ("pool", "toy_noise", True)}
    assert audit_failing(AuditPlan(plan, canaries=120)).passed


def test_a_name_that_nobody_knows_is_refused_with_those_that_are(storage: Storage):
    with pytest.raises(ConfigError, match=r"privacy\.mechanism: 'toy_noise'") as refused:
        storage.config(*TOY)
    assert all(name in str(refused.value) for name in BUILT_IN.names)
    with pytest.raises(ValueError, match="one name"):
        WITH_TOY.adding(TOY_NOISE)


@pytest.mark.parametrize(
    ("declared", "changes"),
    [
        *((FACTS, {"name": "two words"}), (FACTS, {"unit": "household"})),
        *((FACTS, {"unit": None, "is_shared_out": True}), (FACTS, {"unit": "record"})),
        *((FACTS, {"is_in_steps": True}), (FACTS, {"may_amplify": True})),
        (FACTS, {"is_shared_out": True, "is_bare_to_server": True}),
        *((TOY_NOISE, {"relations": ()}), (TOY_NOISE, {"relations": ("swap",)})),
        (TOY_NOISE, {"relations": ("replace_one", "replace_one")}),
        *((TOY_NOISE, {"distributions": ()}), (TOY_NOISE, {"entry": None})),
        (TOY_NOISE, {"training": lambda settings: None}),
        *(
            (TOY_NOISE, {"facts": BUILT_IN.named(name).facts})
            for name in ("none", "dp_sgd", "distributed_noise")
        ),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(declared, changes):
    with pytest.raises(ValueError, match=r"\w"):
        dataclasses.replace(declared, **changes)


NUMBERS = {"value_bound": 8.0, "clipping_norm": 1.0, "noise_multiplier": 2.0}
SETTINGS = Settings(
    relation="replace_one", distribution="gaussian", sums=None, steps=None, **NUMBERS
)


def as_another(settings: Settings) -> UploadNoise:
    """What the attack was: a new name in the configuration, and another one in the ledger."""
    return UploadNoise(settings.norm, settings.multiplier, settings.relation)


def test_a_mechanism_that_would_be_charged_as_another_is_not_built(storage: Storage):
    # An entry may well have another mechanism's noise, and says so: those of sums do.
    other = dataclasses.replace(TOY_NOISE, entry=as_another)
    assert other.build_entry(SETTINGS) == as_another(SETTINGS)
    taken = dataclasses.replace(TOY_NOISE, upload=as_another)
    wrong = config(storage, *GIVEN, mechanism=taken)
    with pytest.raises(UnknownMechanism, match="say upload_noise"):
        create_run(wrong, SilentObserver(), surroundings(taken))
    assert not storage.file.exists()


def test_an_entry_of_noise_that_needs_a_sum_is_not_built():
    central = BUILT_IN.named("central_noise")
    exposed = dataclasses.replace(TOY_NOISE, entry=central.upload)
    with pytest.raises(UnknownMechanism, match="protects no entry"):
        exposed.build_entry(SETTINGS)


@pytest.mark.parametrize("missing", ["protect", "relation"])
def test_a_mechanism_without_a_part_is_not_built(missing: str):
    class Partial:
        def __getattr__(self, name: str) -> Any:
            if name == missing:
                raise AttributeError(name)
            return getattr(build(SETTINGS), name)

    partial = dataclasses.replace(TOY_NOISE, upload=lambda settings: Partial())
    with pytest.raises(UnknownMechanism, match=f"it has no {missing}"):
        partial.build_upload(SETTINGS)


def test_every_file_of_the_folder_is_registered_and_the_other_way_round():
    folder = Path(mechanisms.__file__).parent
    shared = {"__init__", "mechanism", "registry", "settings"}
    assert {path.stem for path in folder.glob("*.py")} - shared == set(BUILT_IN.names)


FULL = dataclasses.replace(
    SETTINGS, sums=Sums(smallest=5, corrupt=1), steps=Steps(0.5, 0.1, 3, batch_size=8)
)


@pytest.mark.parametrize("mechanism", tuple(BUILT_IN), ids=lambda one: one.name)
def test_each_is_charged_under_its_own_name(mechanism: Mechanism):
    settings = dataclasses.replace(FULL, distribution=(*mechanism.distributions, None)[0])
    training, upload = mechanism.build_training(settings), mechanism.build_upload(settings)
    charged = upload.facts if training is None else training.facts
    assert charged.name == mechanism.name
    assert math.isfinite(upload.client_deviation)


@pytest.mark.parametrize("name", [name for name in BUILT_IN.names if name != "none"])
def test_none_is_built_without_what_it_needs(name: str):
    mechanism = BUILT_IN.named(name)
    bare = dataclasses.replace(FULL, clipping_norm=None, noise_multiplier=None, sums=None)
    builder: Callable[[Settings], object] = mechanism.training or mechanism.upload
    with pytest.raises(ValueError, match="missing"):
        builder(dataclasses.replace(bare, steps=None))


class Laplace(NoiseLaw):
    """Both sides of an exponential law."""

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        words = np.frombuffer(source.uniform_bytes(8 * size), "<u8")
        uniform = (words.astype(np.float64) + 0.5) * 2.0**-64 - 0.5
        scale = deviation / math.sqrt(2.0)
        return -scale * np.sign(uniform) * np.log1p(-2.0 * np.abs(uniform))


LAPLACE = Laplace("laplace")
OWN_FACTS = dataclasses.replace(FACTS, name="laplace_noise")
ASKED = (*NO_POOL, *FIXED, "privacy.mechanism=laplace_noise")


@dataclasses.dataclass(frozen=True)
class LaplaceNoise(ToyNoise):
    """Clip to C and add Laplace noise; what its row says of that is asked of it."""

    facts: Any = OWN_FACTS
    stated: NoiseLaw = LAPLACE

    def protect(
        self, vector: Any, grid: Grid, noise: NoiseSource, state: NoiseState
    ) -> ProtectedUpload:
        clipped = clip(vector, self.clipping_norm)
        drawn = noise.draw(LAPLACE, self.client_deviation, clipped.vector.size)
        sent = grid.quantise(clipped.vector + drawn)  # type: ignore[attr-defined]
        return ProtectedUpload(sent.levels, clipped.norm, clipped.was_clipped, sent.saturated)

    def protected(self, dimension: int) -> Protected:
        return dataclasses.replace(super().protected(dimension), law=self.stated)


def mechanism(*, declared: str = "laplace", stated: NoiseLaw = LAPLACE) -> Mechanism:
    def build(settings: Settings) -> LaplaceNoise:
        return LaplaceNoise(settings.norm, settings.multiplier, settings.relation, stated=stated)

    return dataclasses.replace(
        TOY_NOISE, facts=OWN_FACTS, distributions=(declared,), upload=build, entry=build
    )


def test_a_law_that_nobody_prices_is_refused_before_anything_is_made(storage: Storage) -> None:
    with pytest.raises(ConfigError, match="law laplace"):
        config(storage, *ASKED, mechanism=mechanism())
    assert not storage.file.exists()


def test_a_declaration_that_its_rows_contradict_is_refused(storage: Storage) -> None:
    taken = mechanism(declared="gaussian")
    asked = config(storage, *ASKED, mechanism=taken)
    with pytest.raises(ConfigError, match=r"law laplace.*gaussian"):
        create_run(asked, SilentObserver(), surroundings(taken))
    assert not storage.file.exists()


def test_noise_of_another_law_than_stated_is_refuted_by_the_audit(storage: Storage) -> None:
    """A mechanism that states one law and draws from another is no matter of types."""
    liar = mechanism(declared="gaussian", stated=GAUSSIAN)
    asked = config(storage, *ASKED, mechanism=liar)
    plan = plan_run(asked, SilentObserver(), surroundings(liar))
    (verdict,) = audited(plan, 120)
    assert not verdict.passed
    assert any("not normal" in reason for reason in verdict.reasons)


KEY = ReleaseKey(run_id="r", round_number=1, attempt=1, pseudonym="a")


def test_a_stored_law_that_nobody_knows_stays_what_it_is_and_has_no_price() -> None:
    release = release_of_upload(ToyNoise(1.0, 4.0, "replace_one"), 8, KEY)
    row = dataclasses.replace(as_row(release), noise_kind="laplace")
    (read,) = as_releases([row], WITH_TOY)
    assert read.law == NoiseLaw("laplace")
    assert as_row(read) == row
    with pytest.raises(UnsupportedEvent, match="no accountant prices"):
        epsilons([read], 1e-5)


def test_a_row_from_before_laws_were_named_is_gaussian() -> None:
    for multiplier, law in ((4.0, GAUSSIAN), (0.0, NoiseLaw("none"))):
        release = release_of_upload(ToyNoise(1.0, multiplier, "replace_one"), 8, KEY)
        old = dataclasses.replace(as_row(release), noise_kind=None)
        assert as_releases([old], WITH_TOY) == [release]
        assert release.law == law


def test_no_new_row_is_without_a_law(own_copy: Finished) -> None:
    row = as_row(release_of_upload(ToyNoise(1.0, 4.0, "replace_one"), 8, KEY))
    silent = dataclasses.replace(row, run_id=own_copy.run_id, round_number=99, noise_kind=None)
    refused = pytest.raises(InvalidRecordError, match="noise_kind")
    with open_existing(own_copy.storage.url) as database, refused, database.unit_of_work() as unit:
        unit.ledger.reserve([silent])
