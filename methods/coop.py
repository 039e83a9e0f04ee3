"""CoOp: each client learns its own prompt and shares nothing.

Zhou et al. 2022, "Learning to Prompt for Vision-Language Models" (IJCV), Eqs. 2-3; the local
baseline of the federated papers. The prompt carries on from round to round: T rounds of E local
epochs are one local training of T x E epochs.
"""

from __future__ import annotations

from collections.abc import Mapping

from methods.interface import method as m
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod

Config = PromptConfig
SENDS_NOTHING = True


class CoOp(PromptMethod):
    """Local prompt learning."""

    has_personal_state = True

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Nothing is shared."""
        return {}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return no state."""
        return {}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the client's own context."""
        return {CONTEXT: self.encoder.init_context(client_rng, self.config.context_init)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Continue the training of the client's own prompt."""
        context = self.train_prompt(view.personal[CONTEXT], data, trainer, rng)
        return m.LocalResult({}, None, {CONTEXT: context})


build = CoOp.built
