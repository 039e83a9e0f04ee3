"""TRIP: M expert prompts, averaged, mixed for each image by how its tokens fall on static keys.

Gong et al. 2025, "Token-level prompt mixture with parameter-free routing for federated domain
generalization". The routing here is a softmax over cosines in place of capacity-aware clustering;
what matters is that the prompt depends on the image, so no encoder is free of data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods import (
    Aggregate,
    Arrays,
    Examples,
    LocalResult,
    Method,
    Need,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
)
from methods._prompt import (
    PromptConfig,
    PromptEncoder,
    PromptMethod,
    as_tensor,
    build_encoder,
    require_backbone,
)

EXPERTS = "experts"
KEY_SEED = 20
TOKEN_WIDTH = 32
"""Width of the image tower's tokens, as the contract suite hands them out."""


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options."""

    context_tokens: Annotated[int, Ge(1)] = 2
    prompts: Annotated[int, Ge(1)] = 3


@dataclass(frozen=True)
class MixedPromptObjective:
    """Cross-entropy with a prompt of its own for each image."""

    encoder: PromptEncoder
    classes: tuple[str, ...]
    keys: Tensor
    embeddings: Tensor
    end_of_text: Tensor
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Nothing is free of data."""
        return {}

    def logits(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """CLIP's logits (B, C), each row under its own prompt."""
        tokens = functional.normalize(batch["tokens"], dim=-1)
        shares = (tokens @ self.keys.T).softmax(-1).mean(1)
        contexts = torch.einsum("bm,mld->bld", shares, parameters[EXPERTS])
        text = self._text_features(contexts)
        scale = self.encoder.backbone.logit_scale
        return scale * torch.einsum("bd,bcd->bc", batch["features"], text)

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Cross-entropy of each example, shape (B,)."""
        logits = self.logits(parameters, batch)
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def _text_features(self, contexts: Tensor) -> Tensor:
        size, length = contexts.shape[:2]
        rows = (size, len(self.classes), -1, -1)
        start = self.embeddings[:, :1].unsqueeze(0).expand(rows)
        rest = self.embeddings[:, 1 + length :].unsqueeze(0).expand(rows)
        whole = torch.cat((start, contexts.unsqueeze(1).expand(rows), rest), dim=2)
        ends = self.end_of_text.repeat(size)
        text = self.encoder.backbone.encode_embeddings(whole.flatten(0, 1), ends)
        return text.unflatten(0, (size, len(self.classes)))


@dataclass(frozen=True)
class Trip(PromptMethod):
    """Token-level mixture of prompts."""

    config: Config
    keys: Tensor
    needs: frozenset[Need] = field(default=frozenset(("features", "tokens")), init=False)

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        return {EXPERTS: TensorSpec((self.config.prompts, *self.encoder.spec.shape))}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        drawn = [self.encoder.init_context(rng, None) for _ in range(self.config.prompts)]
        return {EXPERTS: np.stack(drawn)}

    def client_update(
        self,
        broadcast: Arrays,
        experts: Sequence[Arrays],
        personal: Arrays,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> LocalResult:
        start = broadcast[EXPERTS]
        group = ParameterGroup((EXPERTS,))
        objective = self._objective(self.classes)
        trained = trainer.fit(objective, {EXPERTS: start}, data.arrays, groups=(group,), rng=rng)
        return LocalResult({EXPERTS: trained[EXPERTS] - start}, None, personal)

    def server_update(
        self,
        state: Arrays,
        aggregate: Aggregate,
        pool: Sequence[Arrays],
        rng: np.random.Generator,
    ) -> Arrays:
        return {EXPERTS: (state[EXPERTS] + aggregate.values[EXPERTS]).astype(np.float32)}

    def predict(
        self,
        broadcast: Arrays,
        experts: Sequence[Arrays],
        personal: Arrays,
        batch: Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32]:
        backbone = self.encoder.backbone
        tensors = {name: as_tensor(value, backbone) for name, value in batch.items()}
        parameters = {EXPERTS: as_tensor(broadcast[EXPERTS], backbone)}
        with torch.no_grad():
            logits = self._objective(tuple(classes)).logits(parameters, tensors)
        return logits.cpu().numpy().astype(np.float32)

    def _objective(self, classes: tuple[str, ...]) -> MixedPromptObjective:
        prefix = "X " * self.config.context_tokens
        texts = self.encoder.backbone.embed_tokens([f"{prefix}{name}." for name in classes])
        return MixedPromptObjective(
            self.encoder, classes, self.keys, texts.embeddings, texts.end_of_text
        )


def build(config: Config, task: Task) -> Method:
    """Builds the method with its static keys, orthonormal rows from a fixed seed."""
    rng = np.random.default_rng(KEY_SEED)
    columns, _ = np.linalg.qr(rng.normal(size=(TOKEN_WIDTH, config.prompts)))
    keys = as_tensor(columns.T.astype(np.float32), require_backbone(task))
    return Trip(build_encoder(config, task), config, task.classes, keys)
