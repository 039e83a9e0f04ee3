"""PromptFL with FedPer: the first context vectors are shared, the others stay with the client.

Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv 1912.00818),
Algorithm 1: base layers are averaged, personalisation layers behind them are not; both are trained
together by SGD. The federated papers apply it to PromptFL's prompt (Guo et al. 2023) without saying
which part is which. Our reading: context vectors take the place of layers, the first ones are the
base, and those next to the class name are personal, since under CLIP's causal mask a position reads
what is before it only, as a layer does. Half of them are shared unless `shared_tokens` says
otherwise; with all of them shared it is PromptFL.

Both parts go through the trainer in one fit: under `dp_sgd` one clip and one noise cover them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from methods.errors import MethodError
from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
)
from methods.networks.layers import Parameters
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptMethod,
    PromptObjective,
    build_encoder,
)

PERSONAL = "personal_context"

READING = "papers do not say which part of the prompt is shared; here it is the first half"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        shared_tokens: Number of context vectors that are averaged, the first ones; None for half
            of them, rounded up.
    """

    shared_tokens: Annotated[int, Ge(1), Le(64)] | None = None

    @property
    def base_tokens(self) -> int:
        """Number of shared context vectors."""
        return self.shared_tokens or (self.context_tokens + 1) // 2


@dataclass(frozen=True)
class SplitPromptObjective(PromptObjective):
    """Cross-entropy with a context in two parts (s, token width) and (l - s, token width)."""

    encoder_parameters: frozenset[str] = frozenset({CONTEXT, PERSONAL})

    def encode(self, parameters: Parameters) -> Parameters:
        """Return text features (C, d) of all classes behind both parts."""
        whole = torch.cat((parameters[CONTEXT], parameters[PERSONAL]))
        return {"text": self.encoder.text_features(whole, self.classes)}


@dataclass(frozen=True)
class PromptFedPer(PromptMethod):
    """A prompt in two parts."""

    config: Config
    has_personal_state: bool = field(default=True, init=False)

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return the first context vectors, averaged over clients."""
        spec = self.encoder.spec
        return {CONTEXT: replace(spec, shape=(self.config.base_tokens, spec.shape[1]))}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return a fresh base."""
        whole = self.encoder.init_context(rng, self.config.context_init)
        return {CONTEXT: whole[: self.config.base_tokens]}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return the client's own part, drawn by itself as Algorithm 1 has it."""
        whole = self.encoder.init_context(client_rng, self.config.context_init)
        return {PERSONAL: whole[self.config.base_tokens :]}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train both parts together, upload the base's change, keep the rest."""
        base = view.broadcast[CONTEXT]
        trained = trainer.fit(
            SplitPromptObjective(self.encoder, self.classes),
            {CONTEXT: base, PERSONAL: view.personal[PERSONAL]},
            data.arrays,
            groups=(ParameterGroup((CONTEXT, PERSONAL)),),
            rng=rng,
        )
        update = {CONTEXT: trained[CONTEXT] - base}
        return LocalResult(update, None, {PERSONAL: trained[PERSONAL]})

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return CLIP's logits (n, C) under the global base and the own part.

        Raises:
            MethodError: If there is no own part: the base alone is no prompt.
        """
        if PERSONAL not in view.personal:
            raise MethodError(
                "client: none, but a part of the prompt is a client's own; valid: one client"
            )
        whole = np.concatenate((view.broadcast[CONTEXT], view.personal[PERSONAL]))
        return self.prompt_logits(whole, batch, classes)


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If more context vectors are shared than there are.
        BackboneError: If the task has no backbone or the prompt does not fit into it.
    """
    encoder = build_encoder(config, task)
    if config.base_tokens > config.context_tokens:
        raise MethodError(
            f"method.shared_tokens: {config.shared_tokens} is more than method.context_tokens = "
            f"{config.context_tokens}; valid: 1 to {config.context_tokens}"
        )
    return PromptFedPer(encoder, config, task.classes)
