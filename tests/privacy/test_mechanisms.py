"""What is done to an upload is what the ledger says was done."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import privacy
from privacy.accounting.composition import compose
from privacy.accounting.gaussian import total_mu
from privacy.errors import PrivacyError, UploadSaturated
from privacy.events import Relation
from privacy.grids import Quantiser
from privacy.mechanisms import (
    FloatMechanism,
    NoProtection,
    ProtectedUpload,
    UploadNoise,
)
from privacy.randomness import NoiseSource, SeededNoise, SystemNoise
from tests.privacy._rows import release_of

DIMENSION = 200_000


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def quantiser_for(mechanism: FloatMechanism, dimension: int, bits: int = 24) -> Quantiser:
    return Quantiser(mechanism.reach(dimension), bits)


def upload(
    vector: NDArray[np.float64], mechanism: FloatMechanism, noise: NoiseSource | None
) -> tuple[ProtectedUpload, NDArray[np.float64]]:
    quantiser = quantiser_for(mechanism, vector.size)
    result = mechanism.protect(vector, quantiser, noise)
    return result, quantiser.dequantise(result.levels)


@pytest.mark.parametrize(("clipping_norm", "noise_multiplier"), [(0.3, 4.0), (10.0, 0.05)])
def test_noise_on_the_wire_has_the_variance_of_the_ledger(
    clipping_norm: float, noise_multiplier: float
) -> None:
    alpha = 1e-9
    mechanism = UploadNoise(clipping_norm, noise_multiplier)
    row = release_of(mechanism)
    _, sent = upload(np.zeros(DIMENSION), mechanism, SystemNoise())
    square = float(np.sum((sent / row.standard_deviation) ** 2))
    assert stats.chi2.ppf(alpha / 2, DIMENSION) < square < stats.chi2.isf(alpha / 2, DIMENSION)
    assert abs(sent.mean()) / row.standard_deviation < stats.norm.isf(alpha / 2) / math.sqrt(
        DIMENSION
    )


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_neighbours_are_as_far_apart_as_the_accountant_believes(relation: Relation) -> None:
    # The worst neighbours under each relation, both far beyond C, through the whole mechanism:
    # the distance of their means over the noise's deviation is the accountant's mu.
    mechanism = UploadNoise(2.0, 0.8, relation)
    direction = np.zeros(4_096)
    direction[17] = 1.0
    neighbour = (-1e3 if relation == "replace_one" else 0.0) * direction
    _, sent = upload(1e3 * direction, mechanism, seeded(1))
    _, reference = upload(neighbour, mechanism, seeded(1))
    row = release_of(mechanism)
    distance = float(np.linalg.norm(sent - reference))
    mu = total_mu(compose([row]))
    assert distance / row.standard_deviation == pytest.approx(mu, rel=1e-4)
    assert distance == pytest.approx(row.sensitivity, rel=1e-4)


def test_upload_is_clipped_then_noised_then_quantised() -> None:
    mechanism = UploadNoise(5.0, 1.0)
    result, sent = upload(np.array([30.0, 40.0]), mechanism, seeded(2))
    noise = seeded(2).standard_normal(2)
    step = quantiser_for(mechanism, 2).step
    np.testing.assert_allclose(sent, [3.0, 4.0] + 5.0 * noise, atol=step)
    assert (result.norm, result.was_clipped, result.saturated) == (50.0, True, 0)
    assert result.levels.dtype == np.uint64


@pytest.mark.parametrize("dimension", [1, 10**7])
@pytest.mark.parametrize("noise_multiplier", [0.5, 20.0])
def test_headroom_bounds_the_chance_of_saturation(dimension: int, noise_multiplier: float) -> None:
    assert UploadNoise(0.4, 0.0).reach(dimension) == 0.4
    bound = UploadNoise(0.4, noise_multiplier).reach(dimension)
    # The worst coordinate sits at C; the union bound over all of them.
    chance = 2 * dimension * stats.norm.sf((bound - 0.4) / (0.4 * noise_multiplier))
    assert 2.0**-42 < chance < 2.0**-40


def test_saturation_of_noise_is_counted_and_not_refused() -> None:
    mechanism = UploadNoise(1.0, 10.0)
    result = mechanism.protect(np.zeros(10_000), Quantiser(10.0, 16), seeded())
    # One standard deviation: 31.7 % of the coordinates.
    assert stats.binomtest(result.saturated, 10_000, 2 * stats.norm.sf(1.0)).pvalue > 1e-6
    assert int(result.levels.max()) == 2**16 - 1


def test_none_refuses_saturation_and_names_the_worst_coordinate() -> None:
    vector = np.array([0.0, 8.5, -9.25, 8.0])
    with pytest.raises(UploadSaturated) as caught:
        NoProtection(8.0).protect(vector, Quantiser(8.0, 16), None)
    assert caught.value.index == 2
    # Of the data it states neither the coordinate, nor its place, nor how many there are.
    said = "a coordinate is beyond secure_aggregation.value_bound 8; raise the bound"
    assert str(caught.value) == said


def test_what_was_noised_before_is_cut_and_counted() -> None:
    vector = np.array([0.0, 8.5, -9.25, 8.0])
    result, sent = upload(vector, NoProtection(8.0, cuts=True), None)
    np.testing.assert_allclose(sent, [0.0, 8.0, -8.0, 8.0], atol=1e-6)
    assert (result.saturated, result.was_clipped) == (2, False)
    assert result.norm == pytest.approx(float(np.linalg.norm(vector)))


@pytest.mark.parametrize(
    ("clipping_norm", "noise_multiplier"), [(0.0, 1.0), (1.0, -1.0), (1.0, math.nan)]
)
def test_meaningless_mechanisms_are_refused(clipping_norm: float, noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match=r"clipping_norm|noise_multiplier"):
        UploadNoise(clipping_norm, noise_multiplier)
    with pytest.raises(ValueError, match="relation"):
        UploadNoise(1.0, 1.0, "swap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="value_bound"):
        NoProtection(0.0)
    with pytest.raises(ValueError, match="dimension"):
        UploadNoise(1.0, 1.0).reach(0)


def test_every_error_has_one_root() -> None:
    errors = [getattr(privacy.errors, name) for name in dir(privacy.errors)]
    own = [error for error in errors if isinstance(error, type)]
    assert own
    assert all(issubclass(error, PrivacyError) for error in own)
    assert privacy.ThresholdNotMet(phase="unmask").phase == "unmask"
    assert "unmask" in str(privacy.ThresholdNotMet(phase="unmask"))
