"""Accuracy in a simulation: the results of clients on their images, taken over all clients.

Beside its own test images, a protocol may measure every client on common sets. *All classes*: all
test images of all clients; accuracy is then on these. *Base to novel* (FedPGP, section 4.1): all
test images of the classes that were dealt out, and of the classes that no client trained on, with
the harmonic mean of the three. *Leave one domain out* (FedPGP, section 4.1): all test images of a
domain that no client holds.

Validation images are for choosing among rounds, and never for training or testing. New clients,
who never took part, are measured at the end. Each client counts on its own images and answers with
the counts; a client of a federation would not answer (`platform.parties.client`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples
from platform.errors import ClientsSilent, RunStopped
from platform.parties.scoring import (
    LOCAL,
    OWN,
    VALIDATION,
    CommonScores,
    EvaluationSet,
    MeasuredSets,
)
from platform.rounds.asking import Question, ask_all
from platform.rounds.documents import NO_ACCURACY
from platform.rounds.run import Progress, Run
from platform.wire.codec import Attempt, Envelope
from platform.wire.outside_rounds import (
    Examination,
    Scores,
    Tally,
    decode_scores,
    encode_examination,
)
from platform.wire.transport import ClientId
from privacy import NonFiniteUpdate


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracy over clients that have images to be measured on.

    Attributes:
        mean: Unweighted mean over clients, in [0, 1].
        weighted: Mean weighted by test images.
        std: Standard deviation over clients (population form).
        worst: The worst client's.
        per_client: Each client's, in the clients' order; None for a client without such images.
    """

    mean: float
    weighted: float
    std: float
    worst: float
    per_client: tuple[float | None, ...]

    def document(self) -> dict[str, Any]:
        """Return the numbers as `summary.json` states them."""
        return {**asdict(self), "per_client": list(self.per_client)}


class NewClient(NamedTuple):
    """The examples of a new client: for personalising, and for testing."""

    train: Examples
    test: Examples


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The sets and clients that a protocol measures.

    Attributes:
        protocol: `client_mean`, `all_classes`, `base_to_novel` or `leave_one_domain_out`.
        classes: The classes among which models choose on clients' own test images.
        own: Each client's own test images.
        measured: The clients that are measured, in the clients' order.
        remarks: Remarks on them for the report.
        everything: Under `all_classes` the test images of all clients, as each client sees them,
            new clients included; clients that see the same share one set object.
        common: Common sets of all clients: `base` and `novel`, or `target`.
        validation: Each client's validation images; empty without any.
        new_clients: The examples of new clients.
    """

    protocol: str
    classes: tuple[str, ...]
    own: Mapping[ClientId, Examples]
    measured: tuple[ClientId, ...]
    remarks: tuple[str, ...] = ()
    everything: Mapping[ClientId, EvaluationSet] = field(default_factory=dict)
    common: Mapping[str, EvaluationSet] = field(default_factory=dict)
    validation: Mapping[ClientId, Examples] = field(default_factory=dict)
    new_clients: Mapping[ClientId, NewClient] = field(default_factory=dict)

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the sets for final models."""
        return (LOCAL, *self.common, *((OWN,) if self.everything else ()))

    def sets_of(self, client: ClientId, shared: CommonScores) -> MeasuredSets:
        """Return the sets of a client, old or new; clients share counts in `shared`."""
        new = self.new_clients.get(client)
        test = EvaluationSet(self.own[client] if new is None else new.test, self.classes)
        sets, common = {OWN if self.everything else LOCAL: test}, dict(self.common)
        if self.everything:
            common[LOCAL] = self.everything[client]
        if client in self.validation:
            sets[VALIDATION] = EvaluationSet(self.validation[client], self.classes)
        return MeasuredSets(sets, common, shared)


@dataclass(frozen=True)
class Measured:
    """All clients' accuracy under a protocol.

    Attributes:
        sets: Accuracy on each set: `local`, the clients' own test images or under `all_classes`
            those of all clients, and the common sets.
    """

    protocol: str
    sets: Mapping[str, Accuracy]

    @property
    def local(self) -> Accuracy:
        """Accuracy on the clients' own test images, or under `all_classes` on those of all."""
        return self.sets[LOCAL]

    @property
    def headline(self) -> float:
        """The protocol's one number: client mean, harmonic mean, or mean on the target domain."""
        if self.protocol == "base_to_novel":
            return harmonic_mean([accuracy.mean for accuracy in self.sets.values()])
        return self.sets["target"].mean if "target" in self.sets else self.local.mean

    @property
    def per_client(self) -> list[float | None] | None:
        """The clients' parts of the one number; None of a harmonic mean, which no client has."""
        if self.protocol == "base_to_novel":
            return None
        return list(self.sets.get("target", self.local).per_client)

    def document(self) -> dict[str, Any]:
        """Return the protocol's numbers as `summary.json` states them."""
        if self.protocol == "base_to_novel":
            means = {name: accuracy.mean for name, accuracy in self.sets.items()}
            return {"name": self.protocol, **means, "harmonic_mean": self.headline}
        if self.protocol == "leave_one_domain_out":
            target = self.sets["target"]
            return {"name": self.protocol, LOCAL: self.local.mean, "target": target.document()}
        if OWN in self.sets:
            return {"name": self.protocol, OWN: self.sets[OWN].document()}
        return {"name": self.protocol}


@dataclass(frozen=True)
class Examined:
    """The measurements of all clients after certain commits.

    Attributes:
        test: On test images.
        validation: On validation images, None without any.
        weights: Mean weight of each expert over clients; None without experts, or if the
            coordinator did not ask.
    """

    test: Measured
    validation: Accuracy | None
    weights: list[float] | None = None


UNMEASURED: Final = {"accuracy": NO_ACCURACY, "validation": NO_ACCURACY, "protocol": None}
"""The accuracies of a round that is not measured."""


def measure_round(
    plan: EvaluationPlan, run: Run, round_number: int, after: Progress
) -> Mapping[str, Any]:
    """Return the accuracies of a round's document, before clients personalise.

    They are on the clients' own images only, unless validation may choose this round; null in
    rounds that are not measured. `ClientsSilent` if a client cannot be heard, or has gone on;
    `RunStopped` if the method predicts NaN.
    """
    every, last = run.terms.config.evaluation.every, run.terms.training_rounds[-1]
    if (round_number - run.terms.protection.first_round + 1) % every and round_number < last:
        return UNMEASURED
    protocol, tests = plan.protocol, plan.tests
    if run.terms.config.evaluation.selection == "last":
        protocol, tests = protocol if plan.everything else "client_mean", (LOCAL,)
    names = (*tests, *((VALIDATION,) if plan.validation else ()))
    committed = {client: after.committed.get(client) for client in plan.measured}
    try:
        scores = examine(run, after.state, committed, names)
    except NonFiniteUpdate as error:
        raise RunStopped(f"run {run.run_id}: in round {round_number} {error}") from error
    gone = [client for client, s in scores.items() if s.after != committed[client]]
    if gone:
        raise ClientsSilent(
            f"run {run.run_id}: {gone[0]} no longer has the model that it is asked to measure; "
            f"resume with --resume {run.run_id}"
        )
    found = _examined(protocol, tests, scores)
    return {
        "accuracy": found.test.local.document(),
        "validation": accuracy_document(found.validation),
        "protocol": found.test.document(),
    }


def examine_last(plan: EvaluationPlan, run: Run, state: Arrays) -> Examined:
    """Return the measurements of all clients on all sets after personalising."""
    names = (*plan.tests, *((VALIDATION,) if plan.validation else ()))
    last = dict.fromkeys(plan.measured, run.terms.final_attempt)
    return _examined(plan.protocol, plan.tests, examine(run, state, last, names, weighs=True))


def examine_before(plan: EvaluationPlan, run: Run, after: Progress) -> Accuracy | None:
    """Return accuracy before clients personalise; None if a client has personalised already."""
    committed = {client: after.committed.get(client) for client in plan.measured}
    scores = examine(run, after.state, committed, [LOCAL])
    if any(each.after != committed[client] for client, each in scores.items()):
        return None
    return over_clients([each.tallies[LOCAL] for each in scores.values()])


def examine(
    run: Run,
    state: Arrays,
    committed: Mapping[ClientId, Attempt | None],
    names: Sequence[str],
    *,
    weighs: bool = False,
) -> dict[ClientId, Scores]:
    """Return clients' counts on these sets.

    Each client gets a broadcast of the state, and is asked about the commit of its personal part;
    `weighs` asks for experts' weights too. If a client cannot be heard, nothing has changed.
    """

    def questions() -> Iterator[Question]:
        for client, last in committed.items():
            envelope = Envelope(run.run_id, 0 if last is None else last[0], 0, last)
            broadcast = run.terms.method.broadcast(state, client)
            asked = Examination(envelope, broadcast, tuple(names), weighs)
            yield Question(client, envelope, encode_examination(asked))

    found = dict(ask_all(run.transport, "evaluate", questions(), decode_scores))
    for client, scores in found.items():
        if set(scores.tallies) != set(names):
            raise ClientsSilent(f"run {run.run_id}: {client} has measured something else")
    return found


def _examined(protocol: str, tests: Sequence[str], scores: Mapping[ClientId, Scores]) -> Examined:
    tallies = [each.tallies for each in scores.values()]
    validation = None
    held_back = [each[VALIDATION] for each in tallies if VALIDATION in each]
    # Some clients may hold no images back.
    if any(count for _, count in held_back):
        validation = over_clients(held_back)
    weights = mean_over_clients([s.weights for s in scores.values() if s.weights is not None])
    return Examined(measured(protocol, tests, tallies), validation, weights)


def measured(
    protocol: str, tests: Sequence[str], tallies: Sequence[Mapping[str, Tally]]
) -> Measured:
    """Return accuracy from clients' counts, on each set with an image of any client."""
    counted = {name: [each[name] for each in tallies] for name in tests}
    sets = {
        name: over_clients(of_it) for name, of_it in counted.items() if any(n for _, n in of_it)
    }
    return Measured(protocol, sets)


def over_clients(tallies: Sequence[Tally]) -> Accuracy:
    """Return mean, standard deviation and worst of clients' accuracies, in the clients' order.

    Clients without such images do not count; at least one client must have some.
    """
    shares = [right / count if count else None for right, count in tallies]
    values = np.asarray([share for share in shares if share is not None], np.float64)
    return Accuracy(
        # Summed exactly, so that the mean of equal numbers is that number.
        mean=math.fsum(values) / len(values),
        weighted=sum(right for right, _ in tallies) / sum(count for _, count in tallies),
        std=float(values.std()),
        worst=float(values.min()),
        per_client=tuple(shares),
    )


def mean_over_clients(means: Sequence[NDArray[np.float64]]) -> list[float] | None:
    """Return unweighted mean of clients' mean weights of experts; None without any experts.

    A missing expert counts zero. Luo et al. 2025 (pFedMoAP), appendix A.4,
    Figure 6: for each image of a client's test set the weights of the local and the non-local
    experts, the non-local ones in descending order, averaged over the test set and over clients.
    """
    if not means:
        return None
    total = np.zeros(max(len(mean) for mean in means))
    for mean in means:
        total[: len(mean)] += mean
    return [float(value) for value in total / len(means)]


def harmonic_mean(values: Sequence[float]) -> float:
    """Return number of values over the sum of their inverses; 0 if one of them is 0."""
    if min(values) <= 0.0:
        return 0.0
    return len(values) / sum(1.0 / value for value in values)


def accuracy_document(accuracy: Accuracy | None) -> Mapping[str, Any]:
    """Return the numbers as `summary.json` states them; all null without a measurement."""
    return NO_ACCURACY if accuracy is None else accuracy.document()
