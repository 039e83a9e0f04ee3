"""What is protected, and what that means in guesses: unit and relation first, then the odds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from platform.reports.blocks import Block, Figure, Paragraph, Section, Table, paragraph, words
from platform.reports.numbers import of_a_hundred
from platform.reports.subject import Subject
from platform.rounds.documents import ADVERSARIES
from privacy import largest_share_of_right_guesses

SEES: Final = {
    "server": "the coordinator: who takes part, the sums, and pool entries as they are uploaded",
    "peers": (
        "the other clients, which may upload anything: the model of every round, experts they are "
        "handed, the roster"
    ),
    "observer": "whoever is given the final model, and nothing else of the run",
}
UNITS: Final = {
    "client": (
        "one client with all of its data. Where a client is an institution, the guarantee is the "
        "institution's; where a client is a person's device, it is that person's"
    ),
    "record": (
        "one record (one example) of one client. Who has several records is protected less than "
        "epsilon says, and that a client took part at all is not protected"
    ),
}
RELATIONS: Final = {
    "replace_one": "in the one {unit}'s data are what they are, in the other they are any others",
    "add_or_remove_one": "in the one the {unit} is in its client's data, in the other it is not",
    "zero_vector": "in the one the client sends its update, in the other zeros in its place, with "
    "the same noise and among the same participants. That a client takes part is not hidden",
}
QUESTIONS: Final = {
    "replace_one": "whether one {unit}'s data are the real ones or any others in their place",
    "add_or_remove_one": "whether one {unit} was in its client's data or was not",
    "zero_vector": "whether one client sent its update or zeros in its place",
}
"""By relation; of whole clients `add_or_remove_one` compares with the zero vector."""


def unit_section(subject: Subject) -> Section:
    """Return whose privacy it is, and which worlds are compared."""
    return Section("unit", "What is protected", tuple(_unit(subject)))


def _unit(subject: Subject) -> Iterator[Block]:
    unit, relation = subject.facts.unit, subject.agreed.config.relation
    if unit is None:
        yield paragraph(
            f"Nothing is protected in the sense of differential privacy. Mechanism "
            f"{subject.facts.name} adds no noise, so there is no unit, no neighbouring relation "
            "and no finite epsilon."
        )
        return
    yield paragraph(f"The unit of privacy is {UNITS[unit]}.")
    yield paragraph(
        f"The neighbouring relation is {relation}: two worlds are compared that differ in one "
        f"{unit} only; {_of(RELATIONS, unit, relation)}. Everything below is about telling "
        "these two worlds apart, whatever else the one who looks knows already."
    )
    yield paragraph(
        "A person whose data are held by several clients, or who is described by other people's "
        "data, is not one unit, and is not covered by one unit's epsilon."
    )


def _of(texts: Mapping[str, str], unit: str, relation: str) -> str:
    is_of_client = unit == "client" and relation == "add_or_remove_one"
    return texts["zero_vector" if is_of_client else relation].format(unit=unit)


def odds_section(subject: Subject) -> Section:
    """Return one sentence for each adversary, and the numbers that it follows from."""
    return Section("odds", "What that means in guesses", tuple(_odds(subject)))


def _odds(subject: Subject) -> Iterator[Block]:
    unit, relation = subject.facts.unit, subject.agreed.config.relation
    if unit is not None:
        so_far = "" if subject.summary is not None else " All of it is so far: the run goes on."
        question = _of(QUESTIONS, unit, relation)
        yield paragraph(
            f"Somebody guesses {question}. Without the run such guesses are right 50 times of "
            f"100, as with a coin. 100 of 100 is certainty.{so_far}"
        )
    for name in ADVERSARIES:
        yield _sentence(subject, name)
    yield Table(
        "Epsilon of the run and what it means, by who looks",
        ("Who looks", "What they see", "Epsilon", "Right guesses of 100, at most"),
        tuple(
            (
                words(name),
                words(SEES[name]),
                words(subject.epsilon(name)),
                words(right_guesses(subject, name) or "not known yet"),
            )
            for name in ADVERSARIES
        ),
    )
    yield paragraph(
        "The number of right guesses follows from epsilon and delta alone, as "
        "100 (e^epsilon + delta) / (e^epsilon + 1), rounded up. It is a bound on every attack, "
        "known or not. It says nothing about what can be learnt of a person from other people's "
        "data: that a trait is common is learnt with or without that person."
    )
    yield paragraph(
        "Somebody who has the coordinator's disk after the fact is a fourth one to look: see "
        "what is not protected. About that one only linking is claimed, and no epsilon."
    )


def _sentence(subject: Subject, adversary: str) -> Paragraph:
    share = right_guesses(subject, adversary)
    whom = {"server": "the server", "peers": "peers", "observer": "an observer"}[adversary]
    if share is None:
        return paragraph(f"Against {whom}: nothing has been charged that could be told.")
    if subject.is_void and subject.epsilons[adversary] != float("inf"):
        return paragraph(
            f"Against {whom}: nobody is protected, as whoever has the seed can take the noise off. "
            "With noise from the operating system in its place, of 100 guesses that would be right "
            "50 times without the run, at most ",
            share,
            " would be with it.",
        )
    if share.value == 100.0 and subject.epsilons[adversary] == float("inf"):
        return paragraph(
            f"Against {whom}: nothing is proven. Of 100 guesses that would be right 50 times "
            "without the run, all ",
            share,
            " may be right with it.",
        )
    return paragraph(
        f"Against {whom}: of 100 guesses that would be right 50 times without the run, at most ",
        share,
        " are with it.",
    )


def right_guesses(subject: Subject, adversary: str) -> Figure | None:
    """Return how many guesses of a hundred may be right; None where nothing tells yet."""
    figure, value = subject.epsilon(adversary), subject.epsilons[adversary]
    if value is None:
        return None
    # Of nothing that was released nothing is learnt, and delta is part of what a release costs.
    delta = subject.delta if subject.charged_rows else 0.0
    share = largest_share_of_right_guesses(value, delta)
    return Figure(of_a_hundred(share), 100.0 * share, figure.basis)
