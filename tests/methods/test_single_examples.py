"""What `dp_sgd` clips: the gradient of each example is that of the example alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from methods import ClientView, fedavg, fedcocoop, fedmaple, fedrod, trip
from platform.contract.examples import draw_examples
from privacy.training.per_sample import per_sample_gradients
from tests.methods._double import double_backbone, to_double
from tests.methods._training import rng, tensors

CASES = {
    "cnn": (fedavg, {"network": "cnn", "image_size": 16, "feature_width": 8}),
    "fasttext": (fedavg, {"network": "fasttext", "feature_width": 8, "buckets": 30}),
    "CLIP's tower": (fedavg, {"network": "clip"}),
    "what is added to CLIP's tower": (fedavg, {"network": "clip", "lora_rank": 2}),
    "two heads": (fedrod, {"network": "fasttext", "buckets": 20, "generic_loss": "cross_entropy"}),
    "a prompt for each image": (fedcocoop, {"context_init": None}),
    "prompts in both towers": (fedmaple, {"depth": 1}),
    **{
        f"{router} routes": (trip, {"context_tokens": 4, "experts": 3, "router": router})
        for router in ("static", "learnable", "image", "random")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_each_examples_gradient_is_that_of_the_example_alone(task, case):
    """Under `vmap` against one backward pass an example; prompts in double precision."""
    module, options = CASES[case]
    data = draw_examples(module.build(module.Config(**options), task), 1, 3)
    is_double = module not in (fedavg, fedrod)
    if is_double:
        task = dataclasses.replace(task, backbone=double_backbone(task.backbone))
    method = module.build(module.Config(**options), task)
    if module is fedrod:
        objective = fedrod.BatchObjective(method.two_losses(None))
    elif module is fedavg:
        objective = method.objective(ClientView({}))
    else:
        objective = method.training_objective()
    state = {**method.init_server(rng(1)), **method.init_client(rng(2), rng(3))}
    # What is added to a tower starts at zero, where its other factor has no gradient.
    read = to_double if is_double else tensors
    parameters = {n: v + 0.01 * n.endswith(".b") for n, v in read(state).items()}
    batch = read(data.arrays)
    near = {"atol": 1e-8, "rtol": 1e-6} if is_double else {"atol": 2e-5, "rtol": 2e-3}
    together = per_sample_gradients(objective, parameters, batch, trained=parameters.keys())
    leaves = {n: v.clone().requires_grad_() for n, v in parameters.items()}
    moved = set()
    for row in range(3):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        loss = objective.losses(leaves, objective.encode(leaves), one)[0]
        alone = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for name, gradient in zip(leaves, alone, strict=True):
            expected = torch.zeros_like(leaves[name]) if gradient is None else gradient
            moved |= {name} if expected.any() else set()
            torch.testing.assert_close(together.gradients[name][row], expected, **near)
    assert moved
