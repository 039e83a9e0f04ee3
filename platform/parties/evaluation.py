"""Accuracy, as a simulation sees it: every client's model on its own test images, and on others.

Beside its own test images, a protocol may measure every client on sets that all have in common.
*Base to novel* (FedPGP, section 4.1): all test images of the classes that were dealt out, and of
those that nobody trained on, with the harmonic mean of the three. *Leave one domain out* (FedPGP,
section 4.1): all test images of a domain that nobody holds.

Validation images, which a client neither trains on nor is tested on, choose among rounds; clients
that never took part are measured at the end.

It is the experimenter's view and no message: in a federation nothing of it would leave a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from methods import Arrays, ClientView, Examples, Method
from platform.parties.profile import PersonalState
from platform.wire.transport import ClientId

LOCAL: Final = "local"
# A large test set at once would need the intermediate results of all its rows at once.
_ROWS: Final = 512


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over clients.

    Attributes:
        mean: Unweighted mean over clients, in [0, 1].
        weighted: Mean weighted by test images.
        std: Standard deviation over clients (population form).
        worst: The worst client's.
        per_client: Each client's, in the clients' order.
    """

    mean: float
    weighted: float
    std: float
    worst: float
    per_client: tuple[float, ...]

    def document(self) -> dict[str, Any]:
        """Return it as `summary.json` states it."""
        return {
            "mean": self.mean,
            "weighted": self.weighted,
            "std": self.std,
            "worst": self.worst,
            "per_client": list(self.per_client),
        }


@dataclass(frozen=True)
class EvaluationSet:
    """Test images with the classes that are told apart on them, labels counting these."""

    examples: Examples
    classes: tuple[str, ...]


@dataclass(frozen=True)
class NewClient:
    """A client that never takes part: what it personalises on, and what it is measured on."""

    train: Examples
    test: Examples


@dataclass(frozen=True)
class EvaluationPlan:
    """What a protocol measures on.

    Attributes:
        protocol: `client_mean`, `base_to_novel` or `leave_one_domain_out`.
        classes: The classes that are told apart on clients' own test images.
        own: Each client's own test images.
        common: What every client is measured on beside them: `base` and `novel`, or `target`.
        validation: Each client's validation images, empty without.
        new_clients: Clients that never take part.
        remarks: What a report must say of these images.
    """

    protocol: str
    classes: tuple[str, ...]
    own: Mapping[ClientId, Examples]
    common: Mapping[str, EvaluationSet]
    validation: Mapping[ClientId, Examples] = field(default_factory=dict)
    new_clients: Mapping[ClientId, NewClient] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def own_only(self) -> EvaluationPlan:
        """Return the plan without what all clients have in common."""
        return self.on(self.own)

    def on(self, sets: Mapping[ClientId, Examples]) -> EvaluationPlan:
        """Return each client on a set of its own, over the classes that are dealt out."""
        return EvaluationPlan("client_mean", self.classes, sets, {})


@dataclass(frozen=True)
class Model:
    """What one client predicts with."""

    client: ClientId
    broadcast: Arrays
    state: PersonalState


@dataclass(frozen=True)
class Measured:
    """All clients' accuracy under a protocol.

    Attributes:
        protocol: The protocol's name.
        sets: Accuracy on each set: `local`, the clients' own test images, and the common ones.
    """

    protocol: str
    sets: Mapping[str, Accuracy]

    @property
    def local(self) -> Accuracy:
        """Accuracy on the clients' own test images."""
        return self.sets[LOCAL]

    @property
    def headline(self) -> float:
        """The protocol's one number: client mean, harmonic mean, or mean on the target domain."""
        if self.protocol == "base_to_novel":
            return harmonic_mean([accuracy.mean for accuracy in self.sets.values()])
        return self.sets["target"].mean if "target" in self.sets else self.local.mean

    def document(self) -> dict[str, Any]:
        """Return the protocol's numbers as `summary.json` states them."""
        if self.protocol == "base_to_novel":
            means = {name: accuracy.mean for name, accuracy in self.sets.items()}
            return {"name": self.protocol, **means, "harmonic_mean": self.headline}
        if self.protocol == "leave_one_domain_out":
            target = self.sets["target"]
            return {"name": self.protocol, LOCAL: self.local.mean, "target": target.document()}
        return {"name": self.protocol}


@dataclass(frozen=True)
class RoundMeasures:
    """What is measured after a round; None where nothing is.

    Attributes:
        test: On test images.
        validation: On the clients' validation images.
    """

    test: Measured | None = None
    validation: Accuracy | None = None


def measure(method: Method, models: Iterable[Model], plan: EvaluationPlan) -> Measured:
    """Return every client's accuracy under a protocol.

    Args:
        method: The method.
        models: One for each client that has test images, taken one by one.
        plan: What is measured on.
    """
    found: dict[str, list[float]] = {name: [] for name in (LOCAL, *plan.common)}
    sizes: dict[str, list[int]] = {name: [] for name in found}
    before: Model | None = None
    for model in models:
        own = EvaluationSet(plan.own[model.client], plan.classes)
        same = before is not None and predict_alike(before, model)
        for name, test in {LOCAL: own, **plan.common}.items():
            sizes[name].append(test.examples.num_examples)
            if same and name != LOCAL:
                found[name].append(found[name][-1])
                continue
            found[name].append(
                client_accuracy(method, model.broadcast, model.state, test.examples, test.classes)
            )
        before = model
    sets = {name: summarise(values, sizes[name]) for name, values in found.items()}
    return Measured(plan.protocol, sets)


def predict_alike(one: Model, other: Model) -> bool:
    """Return whether two clients predict with the same arrays: one measurement serves both.

    Methods that keep nothing on a client leave all clients with one model, and what all are
    measured on may be many thousand images.
    """
    if one.state.experts or other.state.experts or one.state.personal or other.state.personal:
        return False
    names = one.broadcast.keys()
    return names == other.broadcast.keys() and all(
        np.array_equal(one.broadcast[name], other.broadcast[name]) for name in names
    )


def client_accuracy(
    method: Method,
    broadcast: Arrays,
    state: PersonalState,
    test: Examples,
    classes: Sequence[str],
) -> float:
    """Return share of test images whose largest logit is at their label, in [0, 1].

    The images are predicted in blocks of 512 rows, which bounds the memory and changes nothing: a
    prediction depends on its own image only.
    """
    labels, right = test.arrays["labels"], 0
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        batch = {name: value[rows] for name, value in test.arrays.items() if name != "labels"}
        logits = method.predict(
            ClientView(broadcast, state.experts, state.personal), batch, classes
        )
        right += int(np.count_nonzero(logits.argmax(axis=1) == labels[rows]))
    return right / len(labels)


def summarise(accuracies: Sequence[float], sizes: Sequence[int]) -> Accuracy:
    """Return mean, standard deviation and worst of the clients' accuracies.

    Args:
        accuracies: One a client, in [0, 1].
        sizes: Test images of each.
    """
    values = np.asarray(accuracies, np.float64)
    return Accuracy(
        mean=float(values.mean()),
        weighted=float(np.average(values, weights=sizes)),
        std=float(values.std()),
        worst=float(values.min()),
        per_client=tuple(float(v) for v in values),
    )


def harmonic_mean(values: Sequence[float]) -> float:
    """Return number of values over the sum of their inverses; 0 if one of them is 0."""
    if min(values) <= 0.0:
        return 0.0
    return len(values) / sum(1.0 / value for value in values)


def accuracy_document(accuracy: Accuracy | None) -> Mapping[str, Any]:
    """Return it as `summary.json` states it; all null where nothing was measured."""
    if accuracy is None:
        return dict.fromkeys(("mean", "weighted", "std", "worst", "per_client"))
    return accuracy.document()
