"""The hazards of NIST SP 800-226, each answered from the run's records or left open in words.

The list follows the sections of "Guidelines for Evaluating Differential Privacy Guarantees" (Near,
Darais et al.), whose boxes name what commonly goes wrong between the mathematics and the world. The
words are ours. `answered`: the records show that it was avoided. `open`: no record can tell, and
somebody has to. `hazard`: the records show that it is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from platform.agreement import Agreed
from platform.agreement.attempts import stopping_warnings
from platform.agreement.statements import stopping_of
from platform.experiment.caveats import canary_warnings, privacy_warnings
from platform.reports.blocks import Section, Table, epsilon_text, paragraph, words
from platform.reports.subject import Subject
from platform.rounds.documents import in_rounds

Status = Literal["answered", "open", "hazard"]

STRONG: Final = 1.0
"""At most so much is commonly taken for strong protection."""
LARGE: Final = 20.0
"""Beyond it epsilon may mean little in practice."""


@dataclass(frozen=True)
class Answer:
    """How one hazard stands in one run.

    Attributes:
        status: Whether records answer it, leave it open, or show it.
        says: Why.
    """

    status: Status
    says: str


_answered, _open, _hazard = (partial(Answer, status) for status in get_args(Status))
_NOTHING_CLAIMED: Final = Answer("hazard", "nothing is claimed: the mechanism adds no noise")


def large_epsilon(subject: Subject) -> Answer:
    """Say whether epsilon is so large that it means little."""
    known = {name: value for name, value in subject.epsilons.items() if value is not None}
    if not known:
        return _open("nothing has been charged yet")
    infinite = [name for name, value in known.items() if math.isinf(value)]
    if infinite:
        return _hazard(f"against {', '.join(infinite)} epsilon is infinite: nothing is proven")
    name, most = max(known.items(), key=lambda item: item[1])
    said = f"the largest epsilon, against {name}, is {epsilon_text(most)}"
    if most <= STRONG:
        return _answered(f"{said}, at most {STRONG:g}")
    if most <= LARGE:
        return _open(f"{said}: between {STRONG:g} and {LARGE:g} it depends on the case")
    return _hazard(f"{said}, above {LARGE:g}: so much may give no meaningful protection")


def catastrophic_delta(subject: Subject) -> Answer:
    """Say whether delta leaves room for a mechanism that shows one unit to everybody."""
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    delta, clients = subject.delta, subject.agreed.config.task.clients
    if subject.facts.unit == "record":
        return _open(
            f"delta is {delta:g}; it should be far below one over the number of records, which no "
            "record tells, as it is the clients' secret"
        )
    if delta > 1.0 / clients:
        return _hazard(f"delta is {delta:g}, above 1/clients = {1 / clients:g}")
    return _answered(
        f"delta is {delta:g}, below 1/clients = {1 / clients:g}, and comes from a conversion: the "
        "noise itself has no event in which everything is shown"
    )


def unit_of_privacy(subject: Subject) -> Answer:
    """Say whether the unit of privacy covers the person whom an attacker wants to single out."""
    if subject.facts.unit is None:
        return _NOTHING_CLAIMED
    if subject.facts.unit == "client":
        return _open(
            "the unit is a whole client; whether a client is one person, and whether a person is "
            "at one client only, is for whoever operates the run to say"
        )
    return _hazard(
        "the unit is one record: who has several records, and that a client took part, is not "
        "covered"
    )


def comparable(subject: Subject) -> Answer:
    """Say under which conditions epsilons of runs are comparable."""
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    return _answered(
        f"unit {subject.facts.unit}, relation {subject.agreed.config.relation} and delta "
        f"{subject.delta:g} stand before every epsilon; others are not comparable, and a "
        "comparison of runs says so"
    )


def converted(subject: Subject) -> Answer:
    """Say whether the numbers before the conversion to epsilon and delta are given."""
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    return _answered(
        "noise, bound, sampling and accountant of every kind of release are given, so that "
        "anybody can convert at another delta"
    )


def other_releases(subject: Subject) -> Answer:
    """Say whether something else of the same data is released without noise."""
    evaluation = subject.agreed.config.evaluation
    is_noised = subject.facts.claims and evaluation.release == "noised"
    if evaluation.selection != "last" and not is_noised:
        return _hazard(
            "a round was chosen by exact accuracies of the clients' validation data, which no "
            "noise covers"
        )
    if subject.is_simulated and subject.summary is not None:
        return _hazard("this document holds exact accuracies of the clients' data, without noise")
    return _open("whether anything else of the same data is published is in no record of a run")


def own_code(subject: Subject) -> Answer:
    """Say which parts of the mathematics are this package's own code."""
    if subject.method_origin is not None:
        return _hazard("the method is code from outside this package")
    return _open(
        "accounting and primitives come from libraries in wide use, but clipping, noise and "
        "secure sums are this package's own code; its tests and audits are public"
    )


def small_groups(subject: Subject) -> Answer:
    """Say whether the report shows how small groups of people fare."""
    if subject.summary is None or subject.summary["final"]["accuracy"]["worst"] is None:
        return _open("nothing was measured that would show how clients that are few fare")
    return _open(
        "the worst client's accuracy and the spread over clients are shown; of groups of people "
        "within clients no record tells"
    )


def human_judgement(subject: Subject) -> Answer:
    """Say whether somebody edited noisy numbers to make them look better."""
    return _answered("no released number was rounded, cut or smoothed to look better")


def statistical_bias(subject: Subject) -> Answer:
    """Say whether released numbers are biased."""
    if not subject.facts.claims:
        return _answered("nothing is clipped or noised")
    return _open(
        "clipping shortens long updates and so biases sums; how often is in the rounds where it "
        "was measured, and the accuracy shown is of the models that came of it"
    )


def contributions(subject: Subject) -> Answer:
    """Say whether the contribution of one unit is bounded."""
    if not subject.facts.claims:
        return _hazard("nothing bounds what one client adds")
    return _answered("every unit's part is clipped to C before noise, and noise is scaled to C")


def domain_from_data(subject: Subject) -> Answer:
    """Say whether the data decide the shape of a release."""
    return _answered(
        "shapes, names and numbers of all that is sent, and the list of classes, are fixed before "
        "training; what does not fit is refused"
    )


def memorised(subject: Subject) -> Answer:
    """Say whether the model may have memorised its training data."""
    if subject.is_void:
        return _hazard("the noise can be taken off again, so nothing bounds what is remembered")
    if any(value is None or math.isinf(value) for value in subject.epsilons.values()):
        return _hazard("for at least one adversary no epsilon bounds what the model remembers")
    return _answered("epsilon bounds what the model can remember of one unit, for every adversary")


def synthetic_data(subject: Subject) -> Answer:
    """Say whether synthetic data are released."""
    return _answered("a run releases no synthetic data")


def unstructured(subject: Subject) -> Answer:
    """Say whose data an image or a text is."""
    return _open(
        "an image or a text may show others than the one who gave it; they are no unit, and "
        "whoever operates the run has to say who is in the data"
    )


def interactive(subject: Subject) -> Answer:
    """Say whether queries come one after the other."""
    limited = subject.agreed.config.privacy.target_epsilon is not None
    limit = "and a limit ends the run before it is passed" if limited else "and no limit ends it"
    answer = _answered if limited else _open
    return answer(f"rounds are fixed beforehand, each is charged before it is asked for, {limit}")


def trust(subject: Subject) -> Answer:
    """Say whether the trust that is assumed holds."""
    facts = subject.facts
    if subject.is_void:
        return _hazard("whoever has the configuration, and so the seed, is trusted entirely")
    if not facts.claims or facts.is_bare_to_server:
        return _hazard("the server is trusted entirely; nothing is claimed against it")
    if facts.is_shared_out and not subject.withstands_liars:
        return _open(
            "the claim against the server counts on it following the protocol, and on at most "
            f"{subject.agreed.config.secure_aggregation.corrupt} clients colluding with it; "
            "whether that is so somebody has to judge"
        )
    if facts.is_shared_out:
        return _open("the claim counts on the enrolment having reached all clients another way")
    return _answered("no server need be trusted: each client adds all of its noise itself")


def implementation(subject: Subject) -> Answer:
    """Say whether randomness and arithmetic fulfil the assumptions of the proofs."""
    config = subject.agreed.config
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    if subject.is_void:
        return _hazard("the noise comes from a seed and can be taken off again")
    if config.noise_distribution == "gaussian":
        return _hazard("noise is drawn in floating point, whose lowest bits may tell of the data")
    return _open("noise is exact and from the system's entropy; timing and memory are not covered")


def data_security(subject: Subject) -> Answer:
    """Say whether data and records are kept safe."""
    return _open(
        "files are for their owner's account only; disks, backups and machines are the operator's"
    )


def access_control(subject: Subject) -> Answer:
    """Say who may read the records."""
    return _open("who may read database, stores and this document is the operator's to say")


def collection(subject: Subject) -> Answer:
    """Say whether the data had to be collected."""
    return _open("whether fewer data would have done is for whoever collected them to say")


def trusted_records(subject: Subject) -> Answer:
    """Say whether the records themselves could have been made up."""
    log = subject.log
    if log is None or not log.is_signed:
        return _hazard(
            "no head of the log is signed by a key that is known: whoever can write all files can "
            "make up another past in which they agree"
        )
    if log.was_lost:
        return _hazard(
            "a new key took the log over without the old one's signature: what was signed before "
            "cannot be told from what was made up"
        )
    return _open(
        "heads of the log are signed, by a key that whoever runs the coordinator has: hold this "
        "document's against one that a client or somebody else kept"
    )


HAZARDS: Final[tuple[tuple[str, str, Callable[[Subject], Answer]], ...]] = (
    ("2.2", "Epsilon is too large to mean much", large_epsilon),
    ("2.3", "Delta leaves room for a complete failure", catastrophic_delta),
    ("2.3", "The numbers before the conversion are withheld, or delta flatters", converted),
    ("2.4", "The unit does not cover what people fear, or is no person", unit_of_privacy),
    ("2.5", "Guarantees with other units or deltas are compared", comparable),
    ("2.6", "The same data are released elsewhere without noise", other_releases),
    ("3", "Home-made implementations", own_code),
    ("3.3.1", "Noise weighs most on those who are few", small_groups),
    ("3.3.2", "Results are touched up to look right", human_judgement),
    ("3.3.3", "Statistical bias", statistical_bias),
    ("3.4", "What one unit contributes is not bounded", contributions),
    ("3.4", "The shape of the result follows from the data", domain_from_data),
    ("3.5", "Models memorise", memorised),
    ("3.6", "Synthetic data without a guarantee", synthetic_data),
    ("3.7", "Images and texts: whose data are they?", unstructured),
    ("4.1", "Questions come one after the other, without end", interactive),
    ("4.2", "The trust that is assumed does not hold", trust),
    ("4.3", "Randomness, floating point, side channels", implementation),
    ("4.4", "Data security fails", data_security),
    ("4.4", "Access control fails", access_control),
    ("4.5", "More data are collected than needed", collection),
    ("beside it", "The records themselves are made up", trusted_records),
)


def hazards_section(subject: Subject) -> Section:
    """Return the checklist."""
    answers = [(place, name, answer_of(subject)) for place, name, answer_of in HAZARDS]
    counts = {
        status: sum(answer.status == status for *_, answer in answers)
        for status in ("hazard", "open", "answered")
    }
    return Section(
        "hazards",
        "Checklist of hazards",
        (
            paragraph(
                f"Of {len(answers)} hazards {counts['hazard']} are there, {counts['open']} are "
                f"left open because no record can tell, and {counts['answered']} are answered by "
                "the records. The sections are those of NIST SP 800-226, Guidelines for Evaluating "
                "Differential Privacy Guarantees; its words are shorter here."
            ),
            Table(
                "Each hazard and how it stands in this run",
                ("Hazard", "Section", "Status", "Why"),
                tuple(
                    (words(name), words(place), words(answer.status), words(answer.says))
                    for place, name, answer in answers
                ),
            ),
        ),
    )


def stated_warnings(agreed: Agreed) -> list[str]:
    """Return the warnings that keep a reader from misreading a run's numbers, finished or not."""
    if agreed.summary is not None:
        return list(agreed.summary["warnings"])
    over = len(in_rounds([row.document for row in agreed.spending.rounds]))
    document = {"status": agreed.records.run.status, "planned_rounds": agreed.config.rounds}
    return [f"the run {unfinished_words(document, over)}", *claim_warnings(agreed)]


def claim_warnings(agreed: Agreed) -> list[str]:
    """Return the warnings about a run's claim that follow from its configuration and ledger."""
    if agreed.is_unpriced:
        return [
            f"mechanism {agreed.config.mechanism.name}: nothing was charged so far; it adds no "
            "noise, so the first release has no finite epsilon"
        ]
    if not agreed.spending.ledger:
        # Where nothing has been charged, nothing was released that could be misread.
        return []
    stopping = stopping_of(agreed.spending, agreed.config)
    return [*stopping_warnings(stopping), *privacy_warnings(agreed.config)]


def unfinished_words(document: Mapping[str, Any], over: int) -> str:
    """Return the state of an unfinished run, in words that cannot be mistaken for an end.

    Args:
        document: Its `status` and `planned_rounds`.
        over: Rounds that are.
    """
    status = document["status"]
    # Nobody can write down that a process was killed.
    status = "running, unless its process was killed" if status == "running" else status
    rounds = f"{over} of {document['planned_rounds']} rounds"
    return f"has not finished ({status}): {rounds} are over, and all numbers are so far only"


ADDED = (
    large_epsilon,
    unit_of_privacy,
    other_releases,
    own_code,
    trusted_records,
)
"""Hazards that a report warns of besides the run's own warnings, most important first."""


def report_warnings(subject: Subject) -> tuple[str, ...]:
    """Return the warnings of a report: hazards of this run first, then the run's own warnings."""
    hazards = [answer_of(subject) for answer_of in ADDED]
    problems = {one.lifetime.problem for one in subject.budget.clients}
    found = (
        *canary_warnings((subject.summary or {}).get("canaries")),
        *(answer.says for answer in hazards if answer.status == "hazard"),
        *(
            f"what a client has spent over its lifetime has no epsilon: {problem}"
            for problem in sorted(text for text in problems if text is not None)
        ),
        *stated_warnings(subject.agreed),
    )
    return tuple(dict.fromkeys(found))
