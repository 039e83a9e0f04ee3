"""PromptFL with fine-tuning: PromptFL's rounds, then each client for itself."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, coop, promptfl_ft
from methods.prompts.prompt import CONTEXT
from tests.methods._training import rng, trainer


def build(task, **options):
    return promptfl_ft.build(promptfl_ft.Config(**{"context_tokens": 4, **options}), task)


def test_fine_tuning_is_local_training_from_the_last_prompt(task, examples):
    method, local = build(task), coop.build(coop.Config(context_tokens=4), task)
    last = method.init_server(rng(1))
    tuned = method.personalise(ClientView(last), examples, trainer(), rng(3))
    alone = local.client_update(ClientView({}, personal=last), examples, trainer(), rng(3))
    assert np.array_equal(tuned[CONTEXT], alone.personal[CONTEXT])
    assert np.abs(tuned[CONTEXT] - last[CONTEXT]).max() > 1e-4


@pytest.mark.parametrize(("steps", "taken"), [(None, 3), (7, 7)])
def test_its_length_is_an_option(task, examples, steps, taken):
    learner = trainer(steps=3)
    method = build(task, finetune_steps=steps)
    method.personalise(ClientView(method.init_server(rng(1))), examples, learner, rng())
    assert [report.steps for report in learner.reports] == [taken]
