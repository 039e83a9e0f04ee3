"""PromptFL with FedAMP: the server keeps a message of its own for every client.

Huang et al. 2021, "Personalized Cross-Silo Federated Learning on Non-IID Data" (AAAI), Algorithm 1
over the context vectors of PromptFL (Guo et al. 2023). The server mixes the clients' prompts w_j
into one message for each client, with more weight on similar prompts (one step of size alpha_k on
the attention term, with A(x) = 1 - exp(-x / sigma)):

    u_i = (1 - alpha_k sum_{j != i} A'(||w_i - w_j||^2)) w_i
          + alpha_k sum_{j != i} A'(||w_i - w_j||^2) w_j

and client i minimises F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2, inexactly. The clients of the
round get new messages; the others keep theirs, and a client without a message gets the first
prompt. Without others the message is the client's own prompt, and one client with no proximal term
is PromptFL.

A message is a convex combination only if alpha_k is small enough; the paper says so and leaves the
size open. Here larger values are refused, and None takes the value that mixes equal prompts evenly.
lambda / alpha_k is one option, so that a change of alpha_k does not also change the clients' loss.
The paper leaves open where the inexact minimisation starts; here it starts from the message.

The server needs each single client's prompt, which secure sums and noise on sums hide: the method
is refused under them. An upload with its own noise (`upload_noise`, `dp_sgd`) is admitted.

Published code (PFLlib) departs: `start: own` starts from the client's own last prompt, and
`proximal: norm` does not square the norm. It also computes that term on detached tensors, so that
it has no gradient: `start: own` with `proximal_weight: 0`, which is local training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptMethod,
    as_tensor,
    half_norm,
    half_square,
    pull_near,
)

MESSAGE = "message/"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        sigma: Scale of A in squared distance between prompts.
        alpha: Step size alpha_k, at most sigma / (clients - 1); None for sigma / clients.
        proximal_weight: lambda / alpha_k, factor of the proximal term.
        proximal: Half the squared norm of w - u_i, or half the norm.
        start: Start of local training: the message, or the client's own last prompt.
    """

    sigma: Annotated[float, Gt(0.0), Le(1e6)] = 1.0
    alpha: Annotated[float, Ge(0.0), Le(1e6)] | None = None
    proximal_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    proximal: Annotated[Literal["squared", "norm"], CountsWith("proximal_weight")] = "squared"
    start: Literal["message", "own"] = "message"


class PromptFedAMP(PromptMethod):
    """Attentive message passing between prompts."""

    config: Config
    has_personal_state = True
    visibility = m.Visibility.PER_CLIENT
    averaged = frozenset[str]()
    """Nothing: every client gets a message of its own."""

    @property
    def alpha(self) -> float:
        """alpha_k."""
        given = self.config.alpha
        return self.config.sigma / self.task.population if given is None else given

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the client's message, the first prompt before it has one."""
        return {CONTEXT: state.get(f"{MESSAGE}{client}", state[CONTEXT])}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train near the message; the result is the client's own prompt."""
        message = view.broadcast[CONTEXT]
        own = view.personal.get(CONTEXT, message)
        start = own if self.config.start == "own" else message
        anchor, weight = as_tensor(message, self.encoder.backbone), self.config.proximal_weight
        distance = half_square if self.config.proximal == "squared" else half_norm
        pull = pull_near(anchor, weight, distance)
        context = self.train_prompt(start, data, trainer, rng, penalty=pull)
        return m.LocalResult({CONTEXT: context - message}, None, {CONTEXT: context})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Return new messages for the clients of the round, whose single updates they need."""
        updates = aggregate.each()
        if not updates:
            return state
        prompts = [
            self.broadcast(state, key)[CONTEXT].astype(np.float64) + update[CONTEXT]
            for key, update in updates.items()
        ]
        messages = attentive_messages(
            np.stack(prompts), sigma=self.config.sigma, alpha=self.alpha
        ).astype(np.float32)
        named = {f"{MESSAGE}{key}": messages[i] for i, key in enumerate(updates)}
        return {**state, **named}


def attentive_messages(
    prompts: NDArray[np.float64], *, sigma: float, alpha: float
) -> NDArray[np.float64]:
    """Return the messages u_i (N, ...) of all clients, from their prompts (N, ...)."""
    rows = prompts.reshape(len(prompts), -1)
    # Inner products are of differences to the mean: small numbers lose nothing against large ones.
    centred = rows - rows.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2.0 * centred @ centred.T
    weights = alpha / sigma * np.exp(-np.maximum(distances, 0.0) / sigma)
    np.fill_diagonal(weights, 0.0)
    own = 1.0 - weights.sum(axis=1, keepdims=True)
    messages: NDArray[np.float64] = own * rows + weights @ rows
    return messages.reshape(prompts.shape)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse an `alpha` with which messages are no convex combinations."""
    method = PromptFedAMP.built(config, task)
    alpha = method.alpha
    if alpha * (task.population - 1) > config.sigma:
        raise MethodError(
            f"method.alpha: {alpha} is too large for messages to be convex combinations; valid "
            f"with task.clients = {task.population}: 0 to "
            f"{config.sigma / (task.population - 1):g}, method.sigma / (task.clients - 1)"
        )
    return method
