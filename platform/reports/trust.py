"""Whom a claim trusts, and what is left of it if the server, or some clients, lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from platform.protection.charging import as_releases
from platform.protection.secure_terms import SecureTerms
from platform.reports.blocks import Block, Section, Table, Words, bullets, paragraph, words
from platform.reports.subject import Subject, epsilon_figure
from privacy import IntegerNoise, Release, epsilons

_BEYOND: Final = (1, 2, 5, 10)
"""So many colluding clients more than the run was planned for are priced."""


def trust_section(subject: Subject) -> Section:
    """Return whom the claim trusts."""
    return Section("trust", "Who is trusted, and what breaks if they lie", tuple(_trust(subject)))


def _trust(subject: Subject) -> Iterator[Block]:
    yield paragraph(
        "Each client trusts its own machine and the program on it. Whatever others do, a client's "
        "own program clips and noises what leaves it as configured, checks what it is told, and "
        "keeps a ledger of its own."
        if subject.facts.claims
        else "Each client trusts its own machine and the program on it, and everybody named below."
    )
    yield bullets(*_server(subject), *_clients(subject), *_records(subject))
    yield from _colluders(subject)


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
    elif facts.is_shared_out:
        yield _shared_out(is_active=subject.withstands_liars)
    else:
        yield (
            "The server is not trusted: every client adds all of its noise before anything leaves "
            "it. If the server lies about the model, the cohort or the result, epsilon holds "
            "nevertheless; the model may be useless or somebody else's."
        )
    yield from _masks(terms)


def _shared_out(*, is_active: bool) -> str:
    if is_active:
        return (
            "The server may lie: keys, lists and shares are signed by enrolled identities, and a "
            "client stops where they do not fit. That counts on the enrolment having reached all "
            "clients by a way that the server does not control."
        )
    return (
        "The server is trusted to follow the protocol of the secure sum. If it lies about whose "
        "keys are whose or who is there, it can fill a sum with clients of its own: too few honest "
        "shares of noise are in it then, and the epsilon against it does not hold."
    )


def _masks(terms: SecureTerms | None) -> Iterator[str]:
    if terms is None:
        yield "Secure aggregation is off: the server sees each client's upload by itself."
        return
    graph = "each other" if not terms.degree else f"{terms.degree} neighbours"
    regime = "an active server" if terms.active else "a server that follows the protocol"
    yield (
        f"Secure aggregation is on, against {regime}: clients mask with {graph}, a sum holds at "
        f"least {terms.smallest_sum} clients, and {terms.threshold} shares open a client's mask."
    )


def _clients(subject: Subject) -> Iterator[str]:
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
    yield (
        f"Peers may upload anything. {_lying(subject)} The model may be shifted by any amount: a "
        "vector's honesty is not checked, only the plausibility of a sum with all its noise."
    )


def _lying(subject: Subject) -> str:
    """Return how many clients may lie about their uploads."""
    if subject.facts.is_shared_out and subject.terms is not None:
        return (
            f"Up to {subject.terms.corrupt} clients may lie about their uploads, for a lie may be "
            "to leave out a share of the noise; if more do, sums have less noise than epsilon "
            "counts."
        )
    return (
        "However many clients lie about their uploads, the privacy of honest clients is as stated."
    )


def _opening(terms: SecureTerms) -> str:
    """Return who can open one upload."""
    if not terms.degree:
        return f"From {terms.threshold} clients on, together with the server, they"
    return (
        f"The graph was drawn for so many; if more collude, {terms.threshold} of one client's "
        f"{terms.degree} neighbours may be among them, and they, together with the server,"
    )


def _records(subject: Subject) -> Iterator[str]:
    if subject.is_simulated:
        yield (
            "All clients were simulated in one process, so all records are one person's. That "
            "they agree shows care, and proves nothing against whoever ran it."
        )
    else:
        yield (
            "The coordinator's ledger is its own word. Each client keeps another on its own "
            "machine, out of the coordinator's reach, and can compare."
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
    """Return a release with the noise that honest shares leave; None where none is left."""
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
