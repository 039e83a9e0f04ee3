"""The one form in which every accountant is handed a ledger: a multiset of what was charged.

What a sequence of releases costs does not depend on its order, its rounds or its channels, only on
how often each (noise relative to C, sampling) occurs. Reducing a ledger to that makes the result
independent of order by construction and lets results be cached.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from privacy.errors import UnsupportedEvent
from privacy.events import IntegerNoise, Relation, Release

_DIGITS = 12


@dataclass(frozen=True, order=True)
class Term:
    """Equal releases, counted.

    Attributes:
        noise_to_clip: Standard deviation over C, whatever the relation, to 12 digits.
        sampling_probability: Of a Poisson sample; 1 is no sampling.
        count: How often.
    """

    noise_to_clip: float
    sampling_probability: float
    count: int


@dataclass(frozen=True, order=True)
class IntegerTerm:
    """Equal releases with integer noise, counted.

    Attributes:
        noise_to_clip: As in `Term`, of the sum of the shares.
        noise: What it is made of.
        count: How often.
    """

    noise_to_clip: float
    noise: IntegerNoise
    count: int


@dataclass(frozen=True)
class Composition:
    """Everything that one client is charged for, under one relation; hashable.

    Attributes:
        relation: Of every release in it.
        terms: With Gaussian noise; sorted and without duplicates.
        integer_terms: With integer noise; likewise.
        is_noised: False where anything was released without noise: epsilon is infinite then.
    """

    relation: Relation
    terms: tuple[Term, ...]
    is_noised: bool = True
    integer_terms: tuple[IntegerTerm, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was charged."""
        return self.is_noised and not self.terms and not self.integer_terms

    @property
    def is_sampled(self) -> bool:
        """Whether any term is amplified by sampling."""
        return any(term.sampling_probability < 1.0 for term in self.terms)


def compose(releases: Iterable[Release]) -> Composition:
    """Reduce a ledger to the multiset that accountants price, dropping what is not charged.

    The ratio sd / C is rounded to 12 digits, half a unit of which moves epsilon by less than one
    part in 10^11. Without that, z x C / C would differ from z in its last bit for some C, and a
    run calibrated to fit its budget exactly would miss it by rounding.

    Args:
        releases: Rows of one client's ledger, in any order.

    Returns:
        Their composition; the empty one has no terms.

    Raises:
        UnsupportedEvent: Relations are mixed, or integer noise is to be amplified by sampling.
    """
    charged = [release for release in releases if release.charged]
    if not all(map(_noise_to_clip, charged)):
        return Composition(charged[0].relation, (), is_noised=False)
    relations = sorted({release.relation for release in charged})
    if len(relations) > 1:
        raise UnsupportedEvent(
            "a ledger mixes the relations replace_one and add_or_remove_one; one epsilon has one"
        )
    relation = relations[0] if relations else "replace_one"
    return Composition(
        relation,
        _terms(release for release in charged if release.integer_noise is None),
        integer_terms=_integer_terms(charged),
    )


def _terms(charged: Iterable[Release]) -> tuple[Term, ...]:
    counts: Counter[tuple[float, float]] = Counter()
    for release in charged:
        counts[_noise_to_clip(release), release.sampling_probability] += release.count
    return tuple(sorted(Term(*key, count) for key, count in counts.items()))


def _integer_terms(charged: Iterable[Release]) -> tuple[IntegerTerm, ...]:
    counts: Counter[tuple[float, IntegerNoise]] = Counter()
    for release in charged:
        if release.integer_noise is None:
            continue
        if release.sampling != "none":
            raise UnsupportedEvent("no accountant here amplifies integer noise by sampling")
        counts[_noise_to_clip(release), release.integer_noise] += release.count
    return tuple(sorted(IntegerTerm(*key, count) for key, count in counts.items()))


def _noise_to_clip(release: Release) -> float:
    if release.standard_deviation == 0.0:
        return 0.0
    return round_digits(release.standard_deviation / release.clipping_norm)


def round_digits(value: float, digits: int = _DIGITS) -> float:
    """Round a positive number to that many significant digits; 0 and infinity stay."""
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value
