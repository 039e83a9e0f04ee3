"""The hazards of NIST SP 800-226, each answered from the run's records or left open in words.

The list follows the sections of "Guidelines for Evaluating Differential Privacy Guarantees" (Near,
Darais et al.), whose boxes name common faults between the mathematics and the world. The words are
ours. `answered`: the records show that the run avoids the hazard. `open`: no record can tell, and a
person has to judge. `hazard`: the records show that the run has the hazard.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from platform.agreement import Agreed
from platform.agreement.attempts import stopping_warnings
from platform.agreement.statements import stopping_of
from platform.experiment.caveats import canary_warnings, caveats_of, privacy_warnings
from platform.results.report.blocks import Section, epsilon_text, paragraph, table
from platform.results.report.subject import Subject
from platform.rounds.documents import in_rounds

STRONG: Final = 1.0
"""Epsilons up to this one are commonly taken for strong protection."""
LARGE: Final = 20.0
"""Epsilons above this one may mean little in practice."""

Answer = tuple[str, str]
"""`answered`, `open` or `hazard`, and the reason."""

_NOTHING_CLAIMED: Final = ("hazard", "nothing is claimed: the mechanism adds no noise")


def _large_epsilon(subject: Subject) -> Answer:
    known = {name: value for name, value in subject.epsilons.items() if value is not None}
    if not known:
        return "open", "nothing has been charged yet"
    infinite = [name for name, value in known.items() if math.isinf(value)]
    if infinite:
        return "hazard", f"against {', '.join(infinite)} epsilon is infinite: nothing is proven"
    name, most = max(known.items(), key=lambda item: item[1])
    said = f"the largest epsilon, against {name}, is {epsilon_text(most)}"
    if most <= STRONG:
        return "answered", f"{said}, at most {STRONG:g}"
    if most <= LARGE:
        return "open", f"{said}: between {STRONG:g} and {LARGE:g} it depends on the case"
    return "hazard", f"{said}, above {LARGE:g}: such an epsilon may protect nobody in practice"


def _catastrophic_delta(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    delta, clients = subject.delta, subject.agreed.config.task.clients
    if subject.facts.unit == "record":
        return "open", (
            f"delta is {delta:g}; it should be far below one over the number of records, which is "
            "the clients' secret and in no record of the run"
        )
    if delta > 1.0 / clients:
        return "hazard", f"delta is {delta:g}, above 1/clients = {1 / clients:g}"
    return "answered", (
        f"delta is {delta:g}, below 1/clients = {1 / clients:g}, and comes from a conversion: "
        "with this noise, no event shows everything"
    )


def _unit_of_privacy(subject: Subject) -> Answer:
    if subject.facts.unit is None:
        return _NOTHING_CLAIMED
    if subject.facts.unit == "client":
        return "open", (
            "the unit is a whole client; the operator has to say whether a client is one person, "
            "and whether each person is at one client only"
        )
    return "hazard", (
        "the unit is one record: it covers neither a person with several records nor the fact "
        "that a client took part"
    )


def _comparable(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    return "answered", (
        f"every epsilon is for unit {subject.facts.unit}, relation "
        f"{subject.agreed.config.relation} and delta {subject.delta:g}; a comparison with another "
        "run names each difference in these"
    )


def _converted(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    return "answered", (
        "noise, bound, sampling and accountant of every kind of release are given, so that "
        "anybody can convert at another delta"
    )


def _other_releases(subject: Subject) -> Answer:
    evaluation = subject.agreed.config.evaluation
    is_noised = subject.facts.claims and evaluation.release == "noised"
    if evaluation.selection != "last" and not is_noised:
        return "hazard", (
            "a round was chosen by exact accuracies on the clients' validation data, which no "
            "noise covers"
        )
    if subject.is_simulated and subject.summary is not None:
        return "hazard", (
            "this document holds exact accuracies of the clients' data, without noise"
        )
    return "open", "no record of a run shows whether the same data are published in another way"


def _own_code(subject: Subject) -> Answer:
    if "method" in subject.origins:
        return "hazard", "the method is code from outside this package"
    return "open", (
        "accounting and primitives come from libraries in wide use, but clipping, noise and "
        "secure sums are this package's own code; its tests and audits are public"
    )


def _small_groups(subject: Subject) -> Answer:
    if subject.summary is None or subject.summary["final"]["accuracy"]["worst"] is None:
        return "open", "no measurement shows the results of small groups of clients"
    return "open", (
        "the worst client's accuracy and the spread over clients are shown; no record tells about "
        "groups of people within clients"
    )


def _statistical_bias(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return "answered", "nothing is clipped or noised"
    return "open", (
        "clipping shortens long updates and so biases sums; the rounds say how often, if it was "
        "measured, and the accuracies shown are those of the resulting models"
    )


def _contributions(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return "hazard", "nothing bounds the contribution of one client"
    return "answered", "every unit's part is clipped to C before noise, and noise is scaled to C"


def _memorised(subject: Subject) -> Answer:
    if subject.is_void:
        return (
            "hazard",
            "the noise can be removed again, so nothing bounds what the model remembers",
        )
    if any(value is None or math.isinf(value) for value in subject.epsilons.values()):
        return "hazard", "for at least one adversary no epsilon bounds what the model remembers"
    return "answered", (
        "epsilon bounds what the model can remember of one unit, for every adversary"
    )


def _interactive(subject: Subject) -> Answer:
    fixed = "the rounds are fixed in advance, and each is charged before it starts"
    if subject.agreed.config.privacy.target_epsilon is not None:
        return "answered", f"{fixed}; a limit ends the run before it would be passed"
    return "open", f"{fixed}; no limit ends the run"


def _trust(subject: Subject) -> Answer:
    facts, terms = subject.facts, subject.terms
    if subject.is_void:
        return "hazard", (
            "everybody who has the configuration, and so the seed, is trusted entirely"
        )
    if not facts.claims or facts.is_bare_to_server:
        return "hazard", "the server is trusted entirely; nothing is claimed against it"
    if not facts.is_shared_out:
        return "answered", "no server need be trusted: each client adds all of its noise itself"
    if terms is not None and terms.active:
        return "open", "the claim requires that the enrolment reached all clients another way"
    return "open", (
        "the claim against the server requires that it follows the protocol, and that at most "
        f"{subject.agreed.config.secure_aggregation.corrupt} clients collude with it; a person "
        "has to judge whether that is so"
    )


def _implementation(subject: Subject) -> Answer:
    if not subject.facts.claims:
        return _NOTHING_CLAIMED
    if subject.is_void:
        return "hazard", "the noise comes from a seed, so it can be removed again"
    if subject.agreed.config.noise_distribution == "gaussian":
        return "hazard", (
            "noise is drawn in floating point, and its lowest bits may tell about the data"
        )
    return "open", (
        "noise is exact and from the system's entropy; timing and memory are not covered"
    )


def _trusted_records(subject: Subject) -> Answer:
    log = subject.log
    if log is None or not log.is_signed:
        return "hazard", (
            "no head of the log is signed by a key that is known: anyone who can write all files "
            "can make up another past in which they agree"
        )
    if log.was_lost:
        return "hazard", (
            "a new key took the log over without the old one's signature: nothing shows which "
            "earlier heads are genuine"
        )
    return "open", (
        "heads of the log are signed, but the coordinator's operator has the key: compare the "
        "head in this document with one that a client or somebody else kept"
    )


HAZARDS: Final[tuple[tuple[str, str, Callable[[Subject], Answer] | Answer], ...]] = (
    ("2.2", "Epsilon is too large to mean much", _large_epsilon),
    ("2.3", "Delta leaves room for a complete failure", _catastrophic_delta),
    ("2.3", "The numbers before the conversion are withheld, or delta flatters", _converted),
    ("2.4", "The unit does not cover what people fear, or is no person", _unit_of_privacy),
    ("2.5", "Guarantees with other units or deltas are compared", _comparable),
    ("2.6", "The same data are released elsewhere without noise", _other_releases),
    ("3", "Home-made implementations", _own_code),
    ("3.3.1", "Noise harms small groups most", _small_groups),
    (
        "3.3.2",
        "Results are touched up to look right",
        ("answered", "no released number was rounded, cut or smoothed to look better"),
    ),
    ("3.3.3", "Statistical bias", _statistical_bias),
    ("3.4", "What one unit contributes is not bounded", _contributions),
    (
        "3.4",
        "The shape of the result follows from the data",
        (
            "answered",
            "the shapes, names and numbers of all messages, and the list of classes, are fixed "
            "before training; other shapes and names are refused",
        ),
    ),
    ("3.5", "Models memorise", _memorised),
    ("3.6", "Synthetic data without a guarantee", ("answered", "a run releases no synthetic data")),
    (
        "3.7",
        "Images and texts: whose data are they?",
        (
            "open",
            "an image or a text may show other people than its owner; the unit does not cover "
            "them, and the operator has to say who is in the data",
        ),
    ),
    ("4.1", "Questions come one after the other, without end", _interactive),
    ("4.2", "The trust that is assumed does not hold", _trust),
    ("4.3", "Randomness, floating point, side channels", _implementation),
    (
        "4.4",
        "Data security fails",
        (
            "open",
            "only their owner's account can read the files; the operator has to secure disks, "
            "backups and machines",
        ),
    ),
    (
        "4.4",
        "Access control fails",
        ("open", "the operator has to say who may read database, stores and this document"),
    ),
    (
        "4.5",
        "More data are collected than needed",
        ("open", "whoever collected the data has to say whether fewer would have been enough"),
    ),
    ("beside it", "The records themselves are made up", _trusted_records),
)


def hazards_section(subject: Subject) -> Section:
    """Return the checklist."""
    answers = [
        (place, name, *(answer(subject) if callable(answer) else answer))
        for place, name, answer in HAZARDS
    ]
    counts = Counter(status for _, _, status, _ in answers)
    return Section(
        "hazards",
        "Checklist of hazards",
        (
            paragraph(
                f"This run has {counts['hazard']} of {len(answers)} hazards. {counts['open']} are "
                f"left open because no record can tell, and {counts['answered']} are answered by "
                "the records. The sections are those of NIST SP 800-226, Guidelines for Evaluating "
                "Differential Privacy Guarantees, in shorter words."
            ),
            table(
                "Each hazard and how it stands in this run",
                ("Hazard", "Section", "Status", "Why"),
                [(name, place, status, why) for place, name, status, why in answers],
            ),
        ),
    )


def stated_warnings(agreed: Agreed) -> list[str]:
    """Return the warnings that a reader of a run's numbers needs, finished or not."""
    if agreed.summary is not None:
        return [one.text for one in caveats_of(agreed.summary)]
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
        # Nothing was charged, so nothing was released.
        return []
    stopping = stopping_of(agreed.spending, agreed.config)
    return [*stopping_warnings(stopping), *privacy_warnings(agreed.config)]


def unfinished_words(document: Mapping[str, Any], over: int) -> str:
    """Return the state of an unfinished run in words; `over` rounds are over."""
    status = document["status"]
    # A killed process cannot write down that it was killed.
    status = "running, unless its process was killed" if status == "running" else status
    rounds = f"{over} of {document['planned_rounds']} rounds"
    return f"has not finished ({status}): {rounds} are over, and all numbers are so far only"


def report_warnings(subject: Subject) -> tuple[str, ...]:
    """Return the warnings of a report: of canaries, of hazards, and those that the run states."""
    # The most important hazard comes first.
    warned = (_large_epsilon, _unit_of_privacy, _other_releases, _own_code, _trusted_records)
    answers = [answer(subject) for answer in warned]
    problems = {one.lifetime.problem for one in subject.budget.clients}
    found = (
        *canary_warnings((subject.summary or {}).get("canaries")),
        *(why for status, why in answers if status == "hazard"),
        *(
            f"a client's spending over its lifetime has no epsilon: {problem}"
            for problem in sorted(text for text in problems if text is not None)
        ),
        *stated_warnings(subject.agreed),
    )
    return tuple(dict.fromkeys(found))
