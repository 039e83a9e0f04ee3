"""PromptFL: one prompt for all, averaged over clients each round.

Guo et al. 2023, "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
Models" (IEEE TMC), Algorithm 1: FedAvg over the context vectors, every client predicting with the
global prompt. Everything is in `methods.prompts.prompt`; this method changes nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.interface.method import Method, Task
from methods.prompts.prompt import PromptConfig, PromptMethod, build_encoder


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options: those of every prompt."""


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return PromptMethod(build_encoder(config, task), config, task.classes)
