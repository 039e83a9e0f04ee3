"""How the noise comes about: mechanism, randomness, arithmetic, and what runs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from platform.reports.blocks import Block, Facts, Section, Words, bullets, words
from platform.reports.subject import Subject
from privacy import MechanismFacts

LAWS: Final = {
    "gaussian": "Gaussian, drawn in floating point",
    "discrete_gaussian": "discrete Gaussian, drawn as integers on a grid",
    "skellam": "Skellam, drawn as integers on a grid",
}


def construction_section(subject: Subject) -> Section:
    """Return how the noise comes about."""
    return Section(
        "construction",
        "Mechanism, randomness, floating point, side channels",
        tuple(_construction(subject)),
    )


def _construction(subject: Subject) -> Iterator[Block]:
    config = subject.agreed.config
    mechanism = config.mechanism
    yield Facts(
        (
            ("Mechanism", words(f"{mechanism.name}: {_where(mechanism.facts)}")),
            ("Law of the noise", words(_law(config.noise_distribution))),
            ("Randomness of the noise", words(_source(subject))),
            ("Keys and masks", words("always the operating system's entropy")),
            ("Floating point", words(_arithmetic(config.noise_distribution))),
            ("Clipping", words(_clipping(subject))),
            ("Sampling counted on", _sampling(subject)),
        )
    )
    yield bullets(*_side_channels(subject))


def _where(facts: MechanismFacts) -> str:
    if not facts.claims:
        return "no noise anywhere"
    if facts.is_in_steps:
        return "noise in every local training step, on the client"
    if facts.is_shared_out:
        return "every client adds a share of the noise, and only a sum has enough of it"
    if facts.is_bare_to_server:
        return "the coordinator adds noise to the sum, having seen it without"
    return "every client adds all of the noise to its clipped upload"


def _law(distribution: str | None) -> str:
    return "none" if distribution is None else LAWS[distribution]


def _source(subject: Subject) -> str:
    if not subject.facts.claims:
        return "none is needed"
    if subject.agreed.config.privacy.noise_source == "seeded":
        return (
            "a seed that stands in the configuration: whoever has it can compute the noise and "
            "take it off again, so it protects nobody"
        )
    return "the operating system's entropy"


def _arithmetic(distribution: str | None) -> str:
    if distribution is None:
        return "there is no noise that its lowest bits could betray"
    if distribution == "gaussian":
        return (
            "not covered: floating-point noise is not a real Gaussian, and the lowest bits of a "
            "noised number may tell of the number without noise"
        )
    return "covered: noise and what it is added to are integers, and samplers are exact"


def _clipping(subject: Subject) -> str:
    facts, section = subject.facts, subject.agreed.config.privacy
    if facts.is_in_steps:
        return f"each record's gradient to {section.per_sample_clipping_norm:g}"
    if not facts.claims:
        return "none"
    adaptive = section.adaptive_clipping is not None
    how = ", then following a noised quantile that is charged with the upload" if adaptive else ""
    return f"each client's whole upload to {section.clipping_norm:g}{how}"


def _sampling(subject: Subject) -> Words:
    if subject.summary is not None:
        return words(str(subject.summary["sampling"] or "none"))
    return words("see the kinds of release")


def _side_channels(subject: Subject) -> Iterator[str]:
    if subject.facts.unit == "client":
        yield (
            "Failures: whatever fails inside a client between its data and its upload becomes the "
            "zero vector, noised and charged like any other, so that nobody sees who failed."
        )
    elif subject.facts.unit == "record":
        yield "Failures: a record that is not finite counts as zero inside the noised sum."
    else:
        yield "Failures: a client that fails says so, and who fails may tell of its data."
    yield (
        "Timing, memory, power and crashes of native code: not covered. Python cannot reliably "
        "erase secrets from memory."
    )
    yield ("Who sends how much and when is not hidden; neither is a client that is late or silent.")
    origin = subject.method_origin
    if origin is not None:
        yield (
            f"The method {subject.agreed.config.method.name!r} is code from outside this package "
            f"({origin}); that it keeps to its side of the interface is not this package's word."
        )
