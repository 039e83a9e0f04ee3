"""FedDistill: clients share mean logits of each class, and are taught by everybody's mean.

Jeong et al. 2018, "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data" (arXiv 1811.11479), by published code, as the paper's text
was not at hand: FedGen's (github.com/zhuangdizhu/FedGen at dd5807c), which PM-MoE compares with,
and PFLlib's (github.com/TsingZ0/PFLlib at d832e76).

A client's whole network is its own. It minimises, for each example of class y,

    CE(own output, y) + gamma * KL(softmax(row y of the table) || own output),

the table (C, C) being the mean logits that the server has of each class; where there is no row, and
so in the whole first round, the second term is absent. Afterwards it sends for each of its classes
the mean of its logits. With gamma = 0 it is local training.

`target: logits` is PFLlib's: the row itself stands where probabilities belong, in a cross-entropy.
That has no lower bound, and is there to compare with.

FedGen's code differs in three more ways, which are taken for slips: it counts one example of each
class too many, it never clears its sums, so that logits of all rounds count, and classes that a
client does not have enter the mean as zeros. Here the server averages each class over the clients
that have it, as PFLlib does (`methods.networks.class_tables` says what is sent). Logits are of the
trained network, those of both codes of the network while it moves. A class that none of a round's
clients has keeps its row. The paper is remembered to leave a client out of its own teacher, which
neither code does: after clipping and noise a client does not know what of a mean is its own. The
variant that also averages networks (FedGen's FedDistill-FL) is left out.

Mean logits are statistics of records that no noised step returned: `dp_sgd` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.interface.method import Method, Task
from methods.networks.class_tables import KNOWN, TABLE, TableConfig, TableMethod
from methods.networks.layers import Parameters

VARIANTS = ({"network": "features", "target": "logits"},)


@dataclass(frozen=True)
class Config(TableConfig):
    """Options.

    Attributes:
        distillation_weight: gamma, factor of the term by which the others teach.
        target: Whether a row teaches through its softmax, or as it is.
    """

    distillation_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    target: Literal["softmax", "logits"] = "softmax"


@dataclass(frozen=True)
class FedDistill(TableMethod):
    """Federated distillation of mean logits."""

    config: Config
    sent: ClassVar[str] = "logits"

    @property
    def row_width(self) -> int:
        """C: a row has a logit for each class."""
        return len(self.classes)

    def rows(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C)."""
        return self.logits(parameters, batch)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy and what the table adds, (B,)."""
        weight, labels = self.config.distillation_weight, batch["labels"]
        if not weight:
            return self.cross_entropies(parameters, batch)
        logits = self.logits(parameters, batch)
        supervised = functional.cross_entropy(logits, labels, reduction="none")
        taught = self.distances(logits, parameters[TABLE][labels])
        return supervised + weight * parameters[KNOWN][labels] * taught

    def distances(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return how far logits (B, C) are from what rows (B, C) teach, (B,)."""
        own = logits.log_softmax(dim=1)
        if self.config.target == "logits":
            return -(rows * own).sum(dim=1)
        taught = rows.log_softmax(dim=1)
        return (taught.exp() * (taught - own)).sum(dim=1)


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return FedDistill.built(config, task)
