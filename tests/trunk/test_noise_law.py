"""The law of the noise: declared, drawn, stored and priced, and refused where nobody prices it.

The attack was a sixth mechanism, built as CONTRIBUTING shows, that drew Laplace noise. It passed a
run and was charged as Gaussian: epsilon 3.709 for three rounds at four times C, where the noise of
as much variance leaves at least 5.54 once an update is spread over many coordinates.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from platform.bootstrap import create_run, plan_run
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.mechanisms import BUILT_IN, Mechanism, Settings
from platform.privacy_auditing.audit import AuditPlan, audit_run
from platform.protection.charging import as_releases, as_row
from platform.rounds.observing import SilentObserver
from privacy import (
    GAUSSIAN,
    Grid,
    NoiseLaw,
    NoiseSource,
    NoiseState,
    Protected,
    ProtectedUpload,
    ReleaseKey,
    UnsupportedEvent,
    clip,
    epsilons,
    release_of_upload,
)
from storage import InvalidRecordError
from tests.trunk._runs import FIXED, NO_POOL, Finished, Storage
from tests.trunk._toy_mechanism import FACTS, TOY_NOISE, ToyNoise
from tests.trunk.test_toy_mechanism import config, surroundings


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
    with pytest.raises(ConfigError, match="laplace_noise adds noise of the law laplace, which no"):
        config(storage, *ASKED, mechanism=mechanism())
    assert not storage.file.exists()


def test_a_declaration_that_its_rows_contradict_is_refused(storage: Storage) -> None:
    taken = mechanism(declared="gaussian")
    asked = config(storage, *ASKED, mechanism=taken)
    with pytest.raises(ConfigError, match="law laplace, and is declared to build gaussian"):
        create_run(asked, SilentObserver(), surroundings(taken))
    assert not storage.file.exists()


def test_noise_of_another_law_than_stated_is_refuted_by_the_audit(tmp_path: Path) -> None:
    """A mechanism that states one law and draws from another is no matter of types."""
    liar = mechanism(declared="gaussian", stated=GAUSSIAN)
    storage = Storage(tmp_path, surroundings(liar))
    asked = config(storage, *ASKED, mechanism=liar)
    plan = plan_run(asked, SilentObserver(), storage.surroundings)
    (verdict,) = audit_run(AuditPlan(plan, 120), lambda *told: None)
    assert not verdict.passed
    assert any("the noise is not normal" in reason for reason in verdict.reasons)


# --- in the ledger --------------------------------------------------------------------------------


KEY = ReleaseKey(run_id="r", round_number=1, attempt=1, pseudonym="a")


def test_a_stored_law_that_nobody_knows_stays_what_it_is_and_has_no_price(storage: Storage) -> None:
    toy = BUILT_IN.adding(TOY_NOISE)
    release = release_of_upload(ToyNoise(1.0, 4.0, "replace_one"), 8, KEY)
    row = dataclasses.replace(as_row(release), noise_kind="laplace")
    (read,) = as_releases([row], toy)
    assert read.law == NoiseLaw("laplace")
    assert as_row(read) == row
    with pytest.raises(UnsupportedEvent, match="no accountant prices toy_noise's noise of the law"):
        epsilons([read], 1e-5)


def test_a_row_from_before_laws_were_named_is_gaussian() -> None:
    toy = BUILT_IN.adding(TOY_NOISE)
    release = release_of_upload(ToyNoise(1.0, 4.0, "replace_one"), 8, KEY)
    old = dataclasses.replace(as_row(release), noise_kind=None)
    assert as_releases([old], toy) == [release]
    quiet = release_of_upload(ToyNoise(1.0, 0.0, "replace_one"), 8, KEY)
    assert as_releases([dataclasses.replace(as_row(quiet), noise_kind=None)], toy) == [quiet]
    assert quiet.law == NoiseLaw("none")


def test_no_new_row_is_without_a_law(own_copy: Finished) -> None:
    row = as_row(release_of_upload(ToyNoise(1.0, 4.0, "replace_one"), 8, KEY))
    silent = dataclasses.replace(row, run_id=own_copy.run_id, round_number=99, noise_kind=None)
    database = open_existing(own_copy.storage.url)
    try:
        with (
            pytest.raises(InvalidRecordError, match="noise_kind"),
            database.unit_of_work() as unit,
        ):
            unit.ledger.reserve([silent])
    finally:
        database.close()
