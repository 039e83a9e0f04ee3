"""The form in which every accountant receives a ledger: a multiset of charged releases.

What a sequence of releases costs does not depend on its order, its rounds or its channels, only on
how often each (noise relative to C, sampling) occurs. Reducing a ledger to that makes the result
independent of order by construction and lets results be cached.

A Poisson cohort is to an accountant what a Poisson batch is, a coin for each that may take part, so
it becomes the same kind of term. A cohort of fixed size has a theorem, and a term, of its own.

A release whose noise has a law that no accountant knows becomes no term: it is refused here, before
any of them is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from privacy.errors import UnsupportedEvent
from privacy.events import GAUSSIAN, NO_NOISE, PRICED_LAWS, IntegerNoise, Relation, Release

# Far above the last bit of a float64 and far below what any calibration resolves (1e-6).
_DIGITS = 12


@dataclass(frozen=True, order=True)
class Term:
    """Equal releases, counted.

    Attributes:
        noise_to_clip: Standard deviation over C, whatever the relation, to 12 digits.
        sampling_probability: Of a Poisson sample, to 12 digits; 1 is no sampling.
        count: How often.
    """

    noise_to_clip: float
    sampling_probability: float
    count: int


@dataclass(frozen=True, order=True)
class FixedSizeTerm:
    """Equal Gaussian releases of cohorts drawn without replacement, counted.

    Attributes:
        noise_to_clip: As in `Term`.
        size: Clients of a cohort, at least 1.
        population: Clients that they are drawn from, more than `size`.
        count: How often.
    """

    noise_to_clip: float
    size: int
    population: int
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
        fixed_size_terms: With Gaussian noise and cohorts of fixed size; likewise.
        is_noised: False where anything was released without noise: epsilon is infinite then.
    """

    relation: Relation
    terms: tuple[Term, ...]
    is_noised: bool = True
    integer_terms: tuple[IntegerTerm, ...] = ()
    fixed_size_terms: tuple[FixedSizeTerm, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was charged."""
        return self.is_noised and not (self.terms or self.integer_terms or self.fixed_size_terms)

    @property
    def is_sampled(self) -> bool:
        """Whether any term is amplified by sampling."""
        sampled = any(term.sampling_probability < 1.0 for term in self.terms)
        return sampled or bool(self.fixed_size_terms)


def every_cohort(release: Release) -> bool:
    """Grant amplification by the draw of its cohort to a release, whichever it is."""
    return True


def no_cohort(release: Release) -> bool:
    """Grant amplification by the draw of its cohort to no release."""
    return False


def compose(
    releases: Iterable[Release], is_amplified: Callable[[Release], bool] = every_cohort
) -> Composition:
    """Reduce a ledger to the multiset that accountants price, dropping what is not charged.

    The ratio sd / C is rounded to 12 digits, half a unit of which moves epsilon by less than one
    part in 10^11. Without that, z x C / C would differ from z in its last bit for some C, and a run
    calibrated to fit its budget exactly would miss it by rounding.

    `is_amplified` says whether the draw of a release's cohort amplifies it. Where it does not, the
    release counts as if all clients had been drawn.

    `UnsupportedEvent` if no accountant knows the law of a release's noise, relations are mixed, or
    integer noise is to be amplified by sampling.
    """
    charged = [row for row in releases if row.charged]
    for row in charged:
        if not (isinstance(row.law, IntegerNoise) or row.law in (GAUSSIAN, NO_NOISE)):
            raise UnsupportedEvent(
                f"no accountant prices {row.mechanism.name}'s noise of the law {row.law.name!r}; "
                f"they know {', '.join(PRICED_LAWS)}"
            )
    # One release without noise makes everything else worthless; its relation and sampling do not
    # matter any more, and no accountant is asked about an infinite loss.
    if not all(map(_noise_to_clip, charged)):
        return Composition(charged[0].relation, (), is_noised=False)
    relations = sorted({row.relation for row in charged})
    if len(relations) > 1:
        raise UnsupportedEvent(
            "a ledger mixes the relations replace_one and add_or_remove_one; one epsilon has one"
        )
    # An empty ledger costs nothing under either.
    relation = relations[0] if relations else "replace_one"
    plain: Counter[tuple[float, float]] = Counter()
    integer: Counter[tuple[float, IntegerNoise]] = Counter()
    fixed_size: Counter[tuple[float, int, int]] = Counter()
    for row in charged:
        # Without amplification the client counts as if it were in every round: an upper bound,
        # whatever the draw was.
        cohort = row.cohort
        # A cohort of all amplifies nothing, and the theorem on fixed sizes does not cover it.
        if cohort is not None and (cohort.size == cohort.population or not is_amplified(row)):
            cohort = None
        noise = _noise_to_clip(row)
        if isinstance(row.law, IntegerNoise):
            # Of which shares a sum is made changes its price, at the same variance.
            if row.sampling != "none" or cohort is not None:
                raise UnsupportedEvent("no accountant here amplifies integer noise by sampling")
            integer[noise, row.law] += row.count
        elif cohort is not None and cohort.kind == "fixed_size":
            fixed_size[noise, cohort.size, cohort.population] += row.count
        else:
            # Either coin is one for each that may take part, so the theorem is the same.
            coin = cohort.probability if cohort is not None else row.sampling_probability
            plain[noise, round_digits(coin)] += row.count
    return Composition(
        relation,
        tuple(sorted(Term(*key, count) for key, count in plain.items())),
        integer_terms=tuple(sorted(IntegerTerm(*key, n) for key, n in integer.items())),
        fixed_size_terms=tuple(sorted(FixedSizeTerm(*key, n) for key, n in fixed_size.items())),
    )


def _noise_to_clip(release: Release) -> float:
    # Before the division: without noise there may be no clipping norm either.
    if release.standard_deviation == 0.0:
        return 0.0
    return round_digits(release.standard_deviation / release.clipping_norm)


def round_digits(value: float, digits: int = _DIGITS) -> float:
    """Return a positive number rounded to that many significant digits; 0 and infinity stay."""
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value
