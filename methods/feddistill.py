"""FedDistill: clients share mean logits of each class, and learn from the mean over all clients.

Jeong et al. 2018, "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data" (arXiv 1811.11479), by published code, as the paper's text
was not available: FedGen's (github.com/zhuangdizhu/FedGen at dd5807c), which PM-MoE compares with,
and PFLlib's (github.com/TsingZ0/PFLlib at d832e76).

A client's whole network is its own. It minimises, for each example of class y,

    CE(own output, y) + gamma * KL(softmax(row y of the table) || own output),

where the table (C, C) has the server's mean logits of each class. Where there is no row, and so in
the whole first round, the second term is absent. Afterwards the client sends the mean of its logits
for each of its classes. With gamma = 0 it is local training.

`target: logits` is PFLlib's: its cross-entropy treats the row itself as probabilities. This loss
has no lower bound; it is here for comparison.

FedGen's code differs in three more ways, which look like slips: it counts one example of each class
too many, it never clears its sums, so that logits of all rounds count, and classes that a client
does not have enter the mean as zeros. Here the server averages each class over the clients that
have it, as PFLlib does (`methods.networks.class_tables` describes the message). Logits are of the
trained network; in both codes they are of the network while it moves. A class that no client of a
round has keeps its row. As we remember the paper, it leaves a client out of its own teacher, which
neither code does: after clipping and noise a client cannot tell its own part of a mean. The variant
that also averages networks (FedGen's FedDistill-FL) is left out.

`dp_sgd` is refused: mean logits are statistics of records that do not come from a noised step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.networks.class_tables import KNOWN, TABLE, TableConfig, TableMethod
from methods.networks.layers import Parameters

VARIANTS = ({"network": "features", "target": "logits"},)


@dataclass(frozen=True)
class Config(TableConfig):
    """Options.

    Attributes:
        distillation_weight: gamma, factor of the distillation term.
        target: Whether a row teaches through its softmax, or as it is.
    """

    distillation_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    target: Literal["softmax", "logits"] = "softmax"


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
        """Return cross-entropy plus the table's term, (B,)."""
        weight, labels = self.config.distillation_weight, batch["labels"]
        if not weight:
            return self.cross_entropies(parameters, batch)
        logits = self.logits(parameters, batch)
        supervised = functional.cross_entropy(logits, labels, reduction="none")
        taught = self.distances(logits, parameters[TABLE][labels])
        return supervised + weight * parameters[KNOWN][labels] * taught

    def distances(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the distance (B,) of logits (B, C) from rows (B, C) of the table."""
        own = logits.log_softmax(dim=1)
        if self.config.target == "logits":
            return -(rows * own).sum(dim=1)
        taught = rows.log_softmax(dim=1)
        return (taught.exp() * (taught - own)).sum(dim=1)


build = FedDistill.built
