"""PromptFL: one prompt for all, averaged over clients each round.

Guo et al. 2023, "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
Models" (IEEE TMC), Algorithm 1: FedAvg over the context vectors, every client predicting with the
global prompt. Everything is in `methods.prompts.prompt`; this method changes nothing of it.
"""

from __future__ import annotations

from methods.prompts.prompt import PromptConfig, PromptMethod

Config = PromptConfig

build = PromptMethod.built
