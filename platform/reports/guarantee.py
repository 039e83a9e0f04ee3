"""What is protected and what that means in guesses; whom the claim trusts, and what lies break."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from platform.protection.charging import as_releases
from platform.protection.secure_terms import SecureTerms
from platform.reports.blocks import (
    Block,
    Figure,
    Paragraph,
    Section,
    Table,
    Words,
    bullets,
    of_a_hundred,
    paragraph,
    words,
)
from platform.reports.subject import Subject, epsilon_figure
from platform.rounds.documents import ADVERSARIES
from privacy import IntegerNoise, Release, epsilons, largest_share_of_right_guesses

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
    unit, relation = subject.facts.unit, subject.agreed.config.relation
    if unit is None:
        sentences = [
            f"Nothing is protected in the sense of differential privacy. Mechanism "
            f"{subject.facts.name} adds no noise, so there is no unit, no neighbouring relation "
            "and no finite epsilon."
        ]
    else:
        sentences = [
            f"The unit of privacy is {UNITS[unit]}.",
            f"The neighbouring relation is {relation}: two worlds are compared that differ in one "
            f"{unit} only; {_of(RELATIONS, unit, relation)}. Everything below is about telling "
            "these two worlds apart, whatever else the one who looks knows already.",
            "A person whose data are held by several clients, or who is described by other "
            "people's data, is not one unit, and is not covered by one unit's epsilon.",
        ]
    return Section("unit", "What is protected", tuple(map(paragraph, sentences)))


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


_BEYOND: Final = (1, 2, 5, 10)
"""So many colluding clients more than the run was planned for are priced."""


def trust_section(subject: Subject) -> Section:
    """Return whom the claim trusts."""
    own = paragraph(
        "Each client trusts its own machine and the program on it. Whatever others do, a client's "
        "own program clips and noises what leaves it as configured, checks what it is told, and "
        "keeps a ledger of its own."
        if subject.facts.claims
        else "Each client trusts its own machine and the program on it, and everybody named below."
    )
    records = (
        "All clients were simulated in one process, so all records are one person's. That "
        "they agree shows care, and proves nothing against whoever ran it."
        if subject.is_simulated
        else "The coordinator's ledger is its own word. Each client keeps another on its own "
        "machine, out of the coordinator's reach, and can compare."
    )
    others = bullets(*_server(subject), *_of_clients(subject), records)
    title = "Who is trusted, and what breaks if they lie"
    return Section("trust", title, (own, others, *_colluders(subject)))


def _server(subject: Subject) -> Iterator[str]:
    facts, terms = subject.facts, subject.terms
    if subject.is_void:
        yield (
            "The noise of this run came from a seed, so it protects nobody. What follows is true "
            "of a run whose noise comes from the operating system."
        )
    if not facts.claims:
        yield "The server is trusted with every sum it opens: nothing bounds what these reveal."
    elif facts.is_bare_to_server:
        yield (
            "The server is trusted entirely: it adds the noise itself and sees the sums without. "
            "If it lies, or is broken into, no epsilon here holds against anybody."
        )
    elif facts.is_shared_out and subject.withstands_liars:
        yield (
            "The server may lie: keys, lists and shares are signed by enrolled identities, and a "
            "client stops where they do not fit. That counts on the enrolment having reached all "
            "clients by a way that the server does not control."
        )
    elif facts.is_shared_out:
        yield (
            "The server is trusted to follow the protocol of the secure sum. If it lies about "
            "whose keys are whose or who is there, it can fill a sum with clients of its own: too "
            "few honest shares of noise are in it then, and the epsilon against it does not hold."
        )
    else:
        yield (
            "The server is not trusted: every client adds all of its noise before anything leaves "
            "it. If the server lies about the model, the cohort or the result, epsilon holds "
            "nevertheless; the model may be useless or somebody else's."
        )
    if terms is None:
        yield "Secure aggregation is off: the server sees each client's upload by itself."
        return
    graph = "each other" if not terms.degree else f"{terms.degree} neighbours"
    regime = "an active server" if terms.active else "a server that follows the protocol"
    yield (
        f"Secure aggregation is on, against {regime}: clients mask with {graph}, a sum holds at "
        f"least {terms.smallest_sum} clients, and {terms.threshold} shares open a client's mask."
    )


def _of_clients(subject: Subject) -> Iterator[str]:
    facts, terms = subject.facts, subject.terms
    if facts.is_shared_out and terms is not None:
        yield (
            f"Up to {terms.corrupt} clients may tell the server all they know, and the claim "
            f"against it holds. {_opening(terms)} can open a single client's upload, and nothing "
            "is claimed."
        )
        if terms.corrupt < 1:
            yield "A client knows its own share of the noise, so nothing is claimed against peers."
    elif terms is not None:
        yield (
            f"{_opening(terms)} can open a single client's masked upload; "
            + (
                "what they see then carries all the noise that its epsilon counts."
                if facts.claims and facts.noises_alone
                else "nothing bounds what that upload reveals."
            )
        )
    lying = (
        "However many clients lie about their uploads, the privacy of honest clients is as stated."
    )
    if facts.is_shared_out and terms is not None:
        lying = (
            f"Up to {terms.corrupt} clients may lie about their uploads, for a lie may be to leave "
            "out a share of the noise; if more do, sums have less noise than epsilon counts."
        )
    yield (
        f"Peers may upload anything. {lying} The model may be shifted by any amount: a "
        "vector's honesty is not checked, only the plausibility of a sum with all its noise."
    )


def _opening(terms: SecureTerms) -> str:
    """Return who can open one upload."""
    if not terms.degree:
        return f"From {terms.threshold} clients on, together with the server, they"
    return (
        f"The graph was drawn for so many; if more collude, {terms.threshold} of one client's "
        f"{terms.degree} neighbours may be among them, and they, together with the server,"
    )


def _colluders(subject: Subject) -> Iterator[Block]:
    """Price the run again as if more clients had shown their shares of the noise."""
    worst, terms = subject.worst("server"), subject.terms
    if worst is None or terms is None or not subject.facts.is_shared_out or terms.degree:
        # On a graph that was drawn for so many, nothing is claimed of more.
        return
    stored = [row for row in subject.rows if row.pseudonym == worst.member.pseudonym]
    releases = as_releases(stored, subject.agreed.config.mechanisms)
    if not releases or math.isinf(subject.budget.epsilons.server):
        return
    numbers = [terms.corrupt, *(terms.corrupt + more for more in _BEYOND), terms.threshold]
    numbers = [k for k in sorted(set(numbers)) if k <= terms.threshold]
    yield Table(
        "What is left of epsilon against the server if k clients tell it their shares of the noise",
        ("Clients that collude", "Epsilon against the server"),
        tuple(_collusion(subject, releases, k) for k in numbers),
    )


def _collusion(subject: Subject, releases: Sequence[Release], colluding: int) -> tuple[Words, ...]:
    terms, section = subject.terms, subject.agreed.config.privacy
    basis = subject.basis(
        f"the rows of the client that has spent most, with {colluding} shares of noise known",
        subject.rows,
    )
    left = [_weakened(release, colluding) for release in releases]
    reached = terms is not None and colluding >= terms.threshold
    if reached or any(release is None for release in left):
        return words(str(colluding)), words(epsilon_figure(math.inf, basis), ": nothing is claimed")
    rows = [release for release in left if release is not None]
    found = epsilons(rows, section.target_delta, section.accountant).server
    planned = " (as planned)" if terms is not None and colluding == terms.corrupt else ""
    return words(f"{colluding}{planned}"), words(epsilon_figure(found, basis))


def _weakened(release: Release, colluding: int) -> Release | None:
    """Return a release with only the honest shares' noise; None if no honest share is left."""
    noise = release.law
    if not (isinstance(noise, IntegerNoise) and release.mechanism.is_shared_out):
        return release
    honest = noise.shares - (colluding - noise.corrupt)
    if honest < 1:
        return None
    return replace(
        release,
        standard_deviation=release.standard_deviation * math.sqrt(honest / noise.shares),
        law=replace(noise, shares=honest, corrupt=colluding),
    )
