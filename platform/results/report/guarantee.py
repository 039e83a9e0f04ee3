"""The guarantee: its unit, its meaning in guesses, the trust that it requires, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from platform.experiment.caveats import caveats_of
from platform.protection.charging import as_releases
from platform.results.report.blocks import (
    Block,
    Figure,
    Paragraph,
    Piece,
    Section,
    Words,
    bullets,
    of_a_hundred,
    paragraph,
    table,
)
from platform.results.report.subject import Subject
from platform.rounds.documents import ADVERSARIES
from privacy import IntegerNoise, epsilons

SEES: Final = {
    "server": "the coordinator: who takes part, the sums, and pool entries as they are uploaded",
    "peers": (
        "the other clients, which may upload anything: the model of every round, the experts that "
        "they receive, the roster"
    ),
    "observer": "anyone who gets the final model, and nothing else of the run",
}
UNITS: Final = {
    "client": (
        "one client with all of its data. If a client is an institution, the guarantee covers the "
        "institution; if a client is a person's device, the guarantee covers that person"
    ),
    "record": (
        "one record (one example) of one client. A person with several records is protected less "
        "than epsilon says. The guarantee does not hide that a client took part"
    ),
}
RELATIONS: Final = {
    "replace_one": "in one world the {unit}'s data are real, in the other they are any other data",
    "add_or_remove_one": "in one world the {unit} is in its client's data, in the other it is not",
    "zero_vector": "in one world the client sends its update, in the other it sends zeros, with "
    "the same noise and the same participants. The guarantee does not hide that a client takes "
    "part",
}
QUESTIONS: Final = {
    "replace_one": "whether one {unit}'s data are the real ones or other data in their place",
    "add_or_remove_one": "whether one {unit} was in its client's data or was not",
    "zero_vector": "whether one client sent its update or zeros in its place",
}
"""By relation; for whole clients `add_or_remove_one` compares with the zero vector."""


def unit_section(subject: Subject) -> Section:
    """Return the unit of privacy, and the two worlds that are compared."""
    unit, relation = subject.facts.unit, subject.agreed.config.relation
    if unit is None:
        sentences = [
            f"Differential privacy protects nothing here. Mechanism {subject.facts.name} adds no "
            "noise, so there is no unit, no neighbouring relation and no finite epsilon."
        ]
    else:
        sentences = [
            f"The unit of privacy is {UNITS[unit]}.",
            f"The neighbouring relation is {relation}: two worlds are compared that differ in one "
            f"{unit} only; {_of(RELATIONS, unit, relation)}. All numbers below say how well an "
            "adversary can tell these two worlds apart, whatever else the adversary knows already.",
            "The guarantee does not cover a person whose data several clients hold, or whom other "
            "people's data describe, as one unit.",
        ]
    return Section("unit", "What is protected", tuple(map(paragraph, sentences)))


def _of(texts: Mapping[str, str], unit: str, relation: str) -> str:
    is_of_client = unit == "client" and relation == "add_or_remove_one"
    return texts["zero_vector" if is_of_client else relation].format(unit=unit)


def odds_section(subject: Subject) -> Section:
    """Return one sentence for each adversary, and the numbers that it follows from."""
    blocks: list[Block] = []
    if subject.facts.unit is not None:
        so_far = "" if subject.summary is not None else " The numbers are so far: the run goes on."
        question = _of(QUESTIONS, subject.facts.unit, subject.agreed.config.relation)
        blocks.append(
            paragraph(
                f"An adversary guesses {question}. Without the run, 50 of 100 such guesses are "
                f"right, as with a coin. 100 of 100 is certainty.{so_far}"
            )
        )
    blocks += [
        *(_sentence(subject, name) for name in ADVERSARIES),
        table(
            "Epsilon of the run and what it means, by who looks",
            ("Who looks", "What they see", "Epsilon", "Right guesses of 100, at most"),
            (
                (
                    *(name, SEES[name], subject.epsilon(name)),
                    right_guesses(subject, name) or "not known yet",
                )
                for name in ADVERSARIES
            ),
        ),
        paragraph(
            "The number of right guesses follows from all that the accountant proves of the noise "
            "in the ledger, and is rounded up. It bounds every attack, known or unknown. It does "
            "not bound what other people's data tell about a person: anyone can learn that a "
            "trait is common, with or without that person."
        ),
        paragraph(
            "A fourth adversary reads the coordinator's disk after the run; see what is not "
            "protected. Against this adversary only linking is claimed, and no epsilon."
        ),
    ]
    return Section("odds", "What that means in guesses", tuple(blocks))


def _sentence(subject: Subject, adversary: str) -> Paragraph:
    share = right_guesses(subject, adversary)
    whom = {"server": "the server", "peers": "peers", "observer": "an observer"}[adversary]
    is_infinite = subject.epsilons[adversary] == math.inf
    if share is None:
        return paragraph(f"Against {whom}: no release has been charged yet, so nothing is known.")
    said = "of 100 guesses that would be right 50 times without the run, at most "
    end = " are with it."
    if subject.is_void and not is_infinite:
        said = (
            "nobody is protected, because anyone with the seed can remove the noise. With noise "
            f"from the operating system, {said}"
        )
        end = " would be with it."
    elif share.value == 100.0 and is_infinite:
        said = (
            "nothing is proven. Of 100 guesses that would be right 50 times without the run, all "
        )
        end = " may be right with it."
    return paragraph(f"Against {whom}: {said}", share, end)


def right_guesses(subject: Subject, adversary: str) -> Figure | None:
    """Return how many guesses of a hundred may be right; None before a release is priced."""
    if subject.right_guesses is None:
        return None
    share = subject.right_guesses[adversary]
    basis = subject.basis("all charged ledger rows, composed by the accountant", subject.rows)
    return Figure(of_a_hundred(share), 100.0 * share, basis)


def guess_words(document: Mapping[str, Any]) -> str:
    """Return in a sentence what a summary or budget proves about guesses at even odds."""
    shares, unit = document["right_guesses"], document["unit"]
    if unit is None:
        return "nothing is proven: all guesses may be right"
    if document.get("noise_source") == "seeded":
        return "nobody is protected: anyone with the seed can remove the noise"
    counts = {name: of_a_hundred(share) for name, share in shares.items()}
    most = [f"{count} ({name})" for name, count in counts.items()]
    if len(set(counts.values())) == 1:
        most = [counts["server"]]
    question = _of(QUESTIONS, unit, document["relation"])
    return (
        "of 100 guesses that would be right 50 times without the run, at most "
        f"{', '.join(most)} are with it: guesses {question}"
    )


_BEYOND: Final = (1, 2, 5, 10)
"""The report prices this many more colluding clients than were planned for."""


def trust_section(subject: Subject) -> Section:
    """Return the parties that the claim trusts, and what a lie of each party would break."""
    own = paragraph(
        "Each client trusts its own machine and the program on it. Whatever others do, a client's "
        "own program clips and noises all that leaves it as configured, checks the messages that "
        "it gets, and keeps its own ledger."
        if subject.facts.claims
        else "Each client trusts its own machine and the program on it, and everybody named below."
    )
    records = (
        "One process simulated all clients, so one person owns all records. That the records "
        "agree shows care, but proves nothing against that person."
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
            "The noise of this run came from a seed, so it protects nobody. The following is true "
            "of a run whose noise comes from the operating system."
        )
    if not facts.claims:
        yield "The server is trusted with every sum it opens: nothing bounds what these reveal."
    elif facts.is_bare_to_server:
        yield (
            "The server is trusted entirely: it sees the sums without noise and adds the noise "
            "itself. If the server lies, or somebody breaks into it, no epsilon here holds."
        )
    elif facts.is_shared_out and terms is not None and terms.active:
        yield (
            "The server may lie. Enrolled identities sign keys, lists and shares, and a client "
            "stops if a signature does not fit. This requires that the enrolment reached all "
            "clients by a way that the server does not control."
        )
    elif facts.is_shared_out:
        yield (
            "The server is trusted to follow the protocol of the secure sum. A server that lies "
            "about keys or participants can fill a sum with clients of its own. The sum then has "
            "too few honest shares of noise, and the epsilon against the server does not hold."
        )
    else:
        yield (
            "The server is not trusted: every client adds all of its noise before anything leaves "
            "it. If the server lies about the model, the cohort or the result, epsilon holds "
            "nevertheless, but the model may be useless."
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
    lying = (
        "However many clients lie about their uploads, the privacy of honest clients is as stated."
    )
    if terms is not None:
        opening = f"From {terms.threshold} clients on, together with the server, they"
        if terms.degree:
            opening = (
                "The graph was drawn for so many; if more collude, "
                f"{terms.threshold} of one client's {terms.degree} neighbours may be among them, "
                "and they, together with the server,"
            )
        if facts.is_shared_out:
            yield (
                f"Up to {terms.corrupt} clients may tell the server all they know, and the claim "
                f"against it holds. {opening} can open a single client's upload, and nothing "
                "is claimed."
            )
            if terms.corrupt < 1:
                yield (
                    "A client knows its own share of the noise, so nothing is claimed against "
                    "peers."
                )
            lying = (
                f"Up to {terms.corrupt} clients may lie about their uploads, because a lie may "
                "leave out a share of the noise. If more clients lie, sums have less noise than "
                "epsilon counts."
            )
        elif facts.claims and facts.noises_alone:
            yield (
                f"{opening} can open a single client's masked upload. That upload has all the "
                "noise that its epsilon counts."
            )
        else:
            yield (
                f"{opening} can open a single client's masked upload; nothing bounds what that "
                "upload reveals."
            )
    yield (
        f"Peers may upload anything. {lying} Uploads may shift the model by any amount: the "
        "coordinator checks only whether a sum with all its noise is plausible."
    )


def _colluders(subject: Subject) -> Iterator[Block]:
    """Price the run again as if more clients had told the server their shares of the noise."""
    worst, terms = subject.worst("server"), subject.terms
    # A graph with few neighbours was drawn for the planned number, so no larger one is claimed.
    if worst is None or terms is None or not subject.facts.is_shared_out or terms.degree:
        return
    config = subject.agreed.config
    releases = as_releases(subject.rows_of(worst.pseudonym), config.mechanisms)
    if not releases or math.isinf(subject.budget.epsilons.server):
        return
    numbers = {terms.corrupt, *(terms.corrupt + more for more in _BEYOND), terms.threshold}
    rows: list[tuple[Piece, Piece | Words]] = []
    for colluding in sorted(number for number in numbers if number <= terms.threshold):
        basis = subject.basis(
            f"the rows of the client that has spent most, with {colluding} shares of noise known",
            subject.rows,
        )
        weakened = []
        for release in releases:
            noise = release.law
            if isinstance(noise, IntegerNoise) and release.mechanism.is_shared_out:
                # Only the honest shares' noise is left, if one share is honest.
                honest = noise.shares - (colluding - noise.corrupt)
                if honest < 1:
                    break
                deviation = release.standard_deviation * math.sqrt(honest / noise.shares)
                law = replace(noise, shares=honest, corrupt=colluding)
                release = replace(release, standard_deviation=deviation, law=law)
            weakened.append(release)
        if colluding >= terms.threshold or len(weakened) < len(releases):
            rows.append((str(colluding), (basis.epsilon(math.inf), ": nothing is claimed")))
            continue
        privacy = config.privacy
        found = epsilons(weakened, privacy.target_delta, privacy.accountant).server
        planned = " (as planned)" if colluding == terms.corrupt else ""
        rows.append((f"{colluding}{planned}", basis.epsilon(found)))
    yield table(
        "What is left of epsilon against the server if k clients tell it their shares of the noise",
        ("Clients that collude", "Epsilon against the server"),
        rows,
    )


def limits_section(subject: Subject) -> Section:
    """Return the section about leaks that no epsilon bounds."""
    return Section(
        "limits",
        "What is not protected",
        (
            paragraph("No epsilon in this document bounds the following, except where it says so."),
            bullets(*_seen(subject), *_chosen(subject), *_kept(subject)),
        ),
    )


def _seen(subject: Subject) -> Iterator[str]:
    sizes = (
        "clients do not send their number of examples, as all clients weigh alike here"
        if subject.facts.claims
        else "clients weigh by their number of examples, and sums tell of these numbers"
    )
    yield f"Sizes: {sizes}; the number of clients is public."
    who = (
        "who was drawn is the coordinator's secret, and the observer's epsilon counts on it"
        if any(row.cohort_kind is not None for row in subject.rows)
        else "the server, and partly others, know who takes part in which round"
    )
    yield f"Participation: {who}. Its pattern over rounds may single out a client."
    yield (
        "Timing: the time that a client takes, delays, losses, memory and power are not hidden. "
        "On the network nothing hides who sends how much, and when."
    )


def _chosen(subject: Subject) -> Iterator[str]:
    yield (
        "Tuning: somebody may have chosen learning rate, clipping norm, rounds or the method by "
        "trying them out on the same data. Each trial uses the data. No ledger here counts it, "
        "unless the trial is a run with its own charge."
    )
    evaluation = subject.agreed.config.evaluation
    if evaluation.selection == "last":
        yield "Selection: none was made; the model is the last round's."
    elif evaluation.release == "noised":
        yield (
            "Selection: the best round was chosen by noised accuracies that are charged with the "
            "uploads; choosing among them costs nothing more."
        )
    else:
        yield (
            "Selection: the best round was chosen by exact accuracies on the clients' validation "
            "data. The choice tells of these data, and no noise covers it."
        )
    if subject.is_simulated:
        yield (
            "Accuracies in this document are exact: the experimenter has all the data. Anyone who "
            "publishes these accuracies releases them without noise."
        )


def _kept(subject: Subject) -> Iterator[str]:
    """Yield what pool, model and machines hold."""
    has_pool = any(one.code == "expert-pool" for one in caveats_of(subject.summary or {}))
    if has_pool or any(row.channel == "pool" for row in subject.rows):
        yield (
            "The expert pool is linkable: server and peers can tell its entries apart, and "
            "somebody who knows something about a client may find its entry. Only epsilon bounds "
            "what the entry tells."
        )
        yield (
            "Of the coordinator's disk, after the run, it is claimed that no row ties a pool entry "
            "to its client better than chance. That is a claim about linking, not an epsilon."
            if subject.agreed.config.privacy.noise_source == "os"
            else "With seeded randomness nothing is claimed of the coordinator's disk either."
        )
    yield (
        "Inference from the population: a good model tells what is true of many people, and so "
        "tells something about a similar person, whether or not that person took part."
    )
    yield (
        "A client's own machine: its data, personal state and failures are there in the clear, "
        "readable by anyone with access to its files."
    )
    if subject.terms is not None and not subject.facts.claims:
        yield (
            "Sums of several rounds or runs may be subtracted from each other, and a server may "
            "choose the models it sends so that sums tell more; masks prevent neither."
        )
    if subject.agreed.config.privacy.subspace != "none":
        yield (
            "The directions that uploads live in, and their number, count as fixed in advance. No "
            "record shows that nobody tried them out on these data."
        )


def composition_section(subject: Subject) -> Section:
    """Return the section about composition and about free post-processing."""
    source = subject.agreed.config.phase_two_of
    second = (
        f"This is the second phase of run {source}: it released nothing itself, and its epsilons "
        "are those of that run."
    )
    return Section(
        "composition",
        "Composition, and what may be done with the results",
        (
            paragraph(
                "The named accountant composed all rounds, attempts and channels of the run into "
                "the epsilons above. They hold although each round depends on the results of "
                "earlier rounds. Each unit is counted by itself: the run's epsilon is the largest "
                "over clients, not a sum over them."
            ),
            bullets(
                "A failed attempt stays charged if anything may have left a client. A new attempt "
                "draws new noise and is charged again. The same bytes sent again are free.",
                "Anything computed from released results alone (the final model, its exports, "
                "predictions, this document's epsilons) is post-processing and costs nothing.",
                "Anything that uses the clients' data again (another run, another phase that "
                "releases, tuning) is no post-processing, and adds to their spending.",
                "Other releases of the same data, by other means and without noise, do not become "
                "safer by this run.",
                *([] if source is None else [second]),
            ),
        ),
    )
