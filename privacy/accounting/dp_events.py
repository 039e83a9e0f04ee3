"""What both dp_accounting adapters share: terms become its events, its refusals become ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    PrivacyAccountant,
    SampledWithoutReplacementDpEvent,
    UnsupportedEventError,
)

from privacy.accounting.composition import Composition, FixedSizeTerm, Term
from privacy.errors import UnsupportedEvent


def compose_all(accountant: PrivacyAccountant, composition: Composition, unit: float) -> None:
    """Compose every term with Gaussian noise into a fresh accountant.

    Args:
        accountant: Of dp_accounting, without events so far.
        composition: What was charged; all of it noised.
        unit: What this accountant measures noise in, as a multiple of C.

    Raises:
        UnsupportedEvent: dp_accounting refuses a term; its reason is in the message.
    """
    terms: tuple[Term | FixedSizeTerm, ...] = (*composition.terms, *composition.fixed_size_terms)
    for term in terms:
        try:
            with quiet():
                accountant.compose(_event(term, unit), term.count)
        except UnsupportedEventError as error:
            name = type(accountant).__name__
            raise UnsupportedEvent(f"{name} refuses a release: {_reason(error)}") from error


def _reason(error: UnsupportedEventError) -> str:
    """Leave out the event's own numbers, which stand before and after the reason."""
    return str(error).partition("Error: [")[2].partition("] caused by")[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence dp_accounting's log, which tells of Renyi orders that it leaves out.

    The bound is the best over the orders that are left and none the worse for it.
    """
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _event(term: Term | FixedSizeTerm, unit: float) -> DpEvent:
    gaussian = GaussianDpEvent(term.noise_to_clip / unit)
    if isinstance(term, FixedSizeTerm):
        return SampledWithoutReplacementDpEvent(term.population, term.size, gaussian)
    if term.sampling_probability == 1.0:
        return gaussian
    return PoissonSampledDpEvent(term.sampling_probability, gaussian)
