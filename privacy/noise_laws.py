"""The law of a release's noise: what a ledger row states, what accountants price, what is drawn.

A mechanism draws through the law that it states (`NoiseSource.draw`), so that what is charged and
what is added are one thing. A law is open: whoever adds one gives it a name and draws from it, and
a name that is read from a ledger is a law even where nothing here draws it. Accountants are closed:
they price the laws in `PRICED_LAWS` and refuse every other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from privacy._validate import require_member, require_not_negative, require_positive
from privacy.errors import UnsupportedEvent
from privacy.integer_noise import discrete_gaussian_from, skellam_from
from privacy.randomness import NoiseSource

NoiseKind = Literal["discrete_gaussian", "skellam"]
NOISE_KINDS: tuple[str, ...] = get_args(NoiseKind)
PRICED_LAWS: tuple[str, ...] = ("gaussian", *NOISE_KINDS)


@dataclass(frozen=True, order=True)
class NoiseLaw:
    """A law of noise without parameters but its standard deviation.

    Attributes:
        name: The word in the ledger.
    """

    name: str

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        """Return independent draws; `NoiseSource.draw` is how a mechanism asks for them.

        Args:
            source: Where they come from.
            deviation: Their standard deviation.
            size: How many.

        Raises:
            UnsupportedEvent: This is the name of a law that nothing here draws.
        """
        if self != GAUSSIAN:
            raise UnsupportedEvent(f"nothing here draws noise of the law {self.name!r}")
        return deviation * source.standard_normal(size)


@dataclass(frozen=True, order=True)
class IntegerNoise(NoiseLaw):
    """Noise that is an integer on a grid, as a sum of equal and independent shares.

    Only shares that whoever looks does not know count: those of honest clients. Their sum has the
    release's standard deviation, so the grid's step is that over `share_deviation` sqrt(`shares`).

    Attributes:
        name: Law of one share, of `NOISE_KINDS`.
        share_deviation: Its standard deviation in steps of the grid.
        shares: How many honest shares are in the sum for certain, at least 1.
        dimension: How many coordinates carry noise, at least 1.
        corrupt: How many clients may show their share to whoever looks without touching `shares`.
    """

    share_deviation: float
    shares: int
    dimension: int
    corrupt: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        require_member(NOISE_KINDS, name=self.name)
        require_positive(
            share_deviation=self.share_deviation, shares=self.shares, dimension=self.dimension
        )
        require_not_negative(corrupt=self.corrupt)

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        """Return exact draws of one share, `deviation` being in steps of the grid."""
        draw = skellam_from if self.name == "skellam" else discrete_gaussian_from
        return draw(source.uniform_bytes, deviation, size)


GAUSSIAN = NoiseLaw("gaussian")
"""Independent Gaussian noise on the reals."""
NO_NOISE = NoiseLaw("none")
"""Of what is released as it is: its standard deviation is 0 and its price infinite."""


def gaussian_of(standard_deviation: float) -> NoiseLaw:
    """Return the law of Gaussian noise of this deviation: none where it is 0."""
    return GAUSSIAN if standard_deviation else NO_NOISE
