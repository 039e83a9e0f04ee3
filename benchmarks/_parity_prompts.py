"""Adapters of `parity.py` for prompts of CLIP: the published modules beside our methods."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import open_clip
import torch
from _parity_kit import (
    CLASSES,
    SEED,
    ClientView,
    Examples,
    Pair,
    clip_pair,
    gradients,
    mean_of,
    ours,
    rng,
    settings,
    task,
    trainer,
)
from torch import Tensor, nn
from torch.nn import functional

from methods.networks.routing import ROUTING, ROUTING_INFERENCE

BATCH, TOKENS = 6, 4
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
DESIGN = {
    **{"trainer": "CoOp", "vision_depth": 0, "language_depth": 0},
    **{"vision_ctx": 0, "language_ctx": 0},
}
"""What builders of MaPLe's kin ask for: no prompts in the towers."""


def published_clip(module: str = "clip.model", **design: Any) -> Any:
    """The folder's own CLIP, with the weights of ours."""
    build = importlib.import_module(module).build_model
    return build(dict(clip_pair()[1]), {**DESIGN, **design}).float()


def drawn_batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(SEED)
    return torch.randn(BATCH, 3, 32, 32), torch.randint(len(CLASSES), (BATCH,))


def encoded(images: Tensor, labels: Tensor) -> dict[str, Any]:
    """The batch as our methods get it."""
    model: Any = clip_pair()[0].image_module
    with torch.no_grad():
        features = functional.normalize(model(images), dim=-1)
    return {"features": features.numpy(), "labels": labels.numpy()}


def pfedmoap(folder: Path) -> Iterator[Pair]:
    """Local and mixed logits, a step of both optimisers, and the mean of prompts."""
    # Where the weights of OpenAI's models would be kept; asked for at import.
    os.environ["PROJECT"] = str(folder)
    their = importlib.import_module("trainers.pfedmoap")
    cfg = settings(
        TRAINER__PFEDMOAP__N_CTX=TOKENS,
        TRAINER__PFEDMOAP__CTX_INIT="",
        TRAINER__PFEDMOAP__CSC=False,
        TRAINER__PFEDMOAP__CLASS_TOKEN_POSITION="end",
        TRAINER__PFEDMOAP__LMBDA=0.5,
        TRAINER__PFEDMOAP__GATING_HEADS=4,
        TRAINER__PFEDMOAP__GATING_EMBED_DIM=32,
        TRAINER__PFEDMOAP__SCALING=10.0,
        INPUT__SIZE=(32, 32),
    )
    model = their.CustomCLIP(cfg, list(CLASSES), published_clip())
    images, labels = drawn_batch()
    batch = encoded(images, labels)
    with torch.no_grad():
        shown = functional.normalize(model.image_encoder(images), dim=-1)
    yield "image features", shown, batch["features"]

    method = ours(
        "pfedmoap",
        task([name.replace("_", " ") for name in CLASSES]),
        context_tokens=TOKENS,
        experts=2,
        gate_dim=32,
        gate_heads=4,
        gate_scale="10",
        gate_pool="stride",
        moe_similarity="dot",
    )
    experts = [{"context": rng(k).normal(0, 0.02, (TOKENS, 128)).astype("float32")} for k in (1, 2)]
    context = model.prompt_learner.ctx.detach().numpy().copy()
    gate = {
        f"gate.{name}.{part}": getattr(getattr(model.gating, layer), part).detach().numpy().copy()
        for name, layer in zip(
            ("query", "key", "value", "output"), ("W_q", "W_k", "W_v", "W_o"), strict=True
        )
        for part in ("weight", "bias")
    }
    alone = ClientView({"context": context}, (), {})
    names = method.classes
    yield "logits without experts", model(images), method.predict(alone, batch, names)
    model.nonlocal_ctx = [torch.from_numpy(entry["context"]) for entry in experts]
    model._compute_nonlocal_text_features()
    view = ClientView({"context": context}, experts, gate)
    yield "logits of the mixture", model(images), method.predict(view, batch, names)

    trained = [model.prompt_learner.ctx, *model.gating.parameters()]
    loss = functional.cross_entropy(model(images), labels)
    slopes = torch.autograd.grad(loss, trained)
    own_loss, own = gradients(
        method._objective(experts, names), {"context": context, **gate}, batch
    )
    order = ["context", *(name for name in gate)]
    yield "loss", loss, own_loss
    yield "gradients", slopes, [own[name] for name in order]

    # Both optimisers take three steps on one batch, as in `model_backward_and_update`.
    optimisers = [
        torch.optim.SGD([model.prompt_learner.ctx], lr=0.002, **SGD),
        torch.optim.SGD(model.gating.parameters(), lr=0.01, **SGD),
    ]
    for _ in range(3):
        loss = functional.cross_entropy(model(images), labels)
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    result = method.client_update(
        view, Examples(batch), trainer(3, BATCH, 0.002, **SGD), rng()
    )
    yield "change after three steps", trained[0] - torch.from_numpy(context), result.update["context"]
    yield "gate after three steps", trained[1:], [result.personal[name] for name in order[1:]]
    kept = ClientView({"context": context}, experts, result.personal)
    yield "prediction after training", model(images), method.predict(kept, batch, names)

    average = importlib.import_module("utils.fed_utils").average_weights
    contexts = [context, experts[0]["context"], experts[1]["context"]]
    shares = (0.5, 0.3, 0.2)
    uploads = [{"ctx": torch.from_numpy(one.copy())} for one in contexts]
    averaged = average(uploads, [0, 1, 2], [50, 30, 20], islist=False)["ctx"]
    updates = [{"context": one - context} for one in contexts]
    state = method.server_update({"context": context}, mean_of(updates, shares), (), rng())
    yield "mean of prompts", averaged, state["context"]


def fedpgp(folder: Path) -> Iterator[Pair]:
    """The four text features, both terms of the loss, a step, and the mean of prompts."""
    their = importlib.import_module("trainers.fedpgp")
    cfg = settings(
        TRAINER__FEDPGP__N_CTX=TOKENS,
        TRAINER__FEDPGP__CTX_INIT="",
        TRAINER__FEDPGP__CSC=False,
        TRAINER__FEDPGP__CLASS_TOKEN_POSITION="end",
        TRAINER__FEDPGP__BOTTLENECK=2,
        TRAINER__FEDPGP__N=1,
        TRAINER__FEDPGP__PREC="fp32",
        INPUT__SIZE=(32, 32),
    )
    clip = published_clip(trainer="FedPGP")
    model = their.CustomCLIP(cfg, list(CLASSES), clip)
    images, labels = drawn_batch()
    batch = encoded(images, labels)
    learner = model.prompt_learner
    held = {
        "context": learner.sigma.detach()[0].numpy().copy(),
        "adapter.left": learner.U.detach()[0].numpy().copy(),
        "adapter.right": learner.V.detach()[0].numpy().copy(),
    }
    names = [name.replace("_", " ") for name in CLASSES]
    method = ours(
        "fedpgp",
        task(names),
        context_tokens=TOKENS,
        bottleneck=2,
        mu=0.5,
        clip_reference="placeholder",
    )
    model.train()
    anchor, common, _, personal, logits = model(images)
    yield "reference features z_C", anchor, method.reference.features(method.classes)
    objective = method._objective(set(held))
    with torch.no_grad():
        own = objective.encode({name: torch.from_numpy(value) for name, value in held.items()})
    yield "global features z_G", common, own["global"]
    yield "personal features z_i", personal, own["text"]

    trainee: Any = their.FedPGP.__new__(their.FedPGP)
    optimiser = torch.optim.SGD(learner.parameters(), lr=0.001, **SGD)
    losses: list[Tensor] = []
    trainee.__dict__ |= {
        "model": model,
        "device": torch.device("cpu"),
        "cfg": cfg,
        "mu": 0.5,
        "temp": 0.5,
        "optim": optimiser,
        "batch_idx": 0,
        "num_batches": 2,
    }

    def step(loss: Tensor) -> None:
        losses.append(loss.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    trainee.model_backward_and_update = step
    given = {"img": images, "label": labels}
    own_loss, slopes = gradients(objective, held, batch, method._contrast)
    trainee.forward_backward(given)
    yield "loss", losses[0], own_loss
    order = ("context", "adapter.left", "adapter.right")
    published = [learner.sigma.grad, learner.U.grad, learner.V.grad]
    yield "gradients", published, [slopes[name] for name in order]
    for _ in range(2):
        trainee.forward_backward(given)
    own_held = {name: held[name] for name in order[1:]}
    view = ClientView({"context": held["context"]}, (), own_held)
    result = method.client_update(
        view, Examples(batch), trainer(3, BATCH, 0.001, **SGD), rng()
    )
    moved = learner.sigma.detach()[0] - torch.from_numpy(held["context"])
    yield "change after three steps", moved, result.update["context"]
    yield "adapter after three steps", [learner.U, learner.V], [
        result.personal[name] for name in order[1:]
    ]
    model.eval()
    after = ClientView({"context": learner.sigma.detach()[0].numpy()}, (), result.personal)
    yield "prediction after training", model(images), method.predict(
        after, batch, method.classes
    )

    average = importlib.import_module("fed_utils").average_weights
    contexts = [rng(k).normal(0, 0.02, (TOKENS, 128)).astype("float32") for k in range(3)]
    uploads = [{"sigma": torch.from_numpy(one.copy())} for one in contexts]
    averaged = average(uploads, [0, 1, 2], [50, 30, 20], islist=False)["sigma"]
    updates = [{"context": one - held["context"]} for one in contexts]
    learned = mean_of(updates, (0.5, 0.3, 0.2))
    yield "mean of prompts", averaged, method.server_update(
        {"context": held["context"]}, learned, (), rng()
    )["context"]


def trip(folder: Path) -> Iterator[Pair]:
    """Clusters and shares of tokens, the loss of mixed prompts, a step, and prediction.

    The published code runs on a GPU in 16 bits; here `cuda` and `half` do nothing.
    """
    # Its copy of CLIP's tokenizer lacks the vocabulary, of which open_clip has the same file.
    words = importlib.util.spec_from_file_location(
        "clip.simple_tokenizer", folder / "clip" / "simple_tokenizer.py"
    )
    assert words is not None
    assert words.loader is not None
    sys.modules[words.name] = tokenizer = importlib.util.module_from_spec(words)
    words.loader.exec_module(tokenizer)
    vocabulary = str(Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz")
    tokenizer.SimpleTokenizer.__init__.__defaults__ = (vocabulary,)
    same = lambda tensor, *given: tensor  # noqa: E731
    with patch.object(Tensor, "cuda", same), patch.object(Tensor, "half", Tensor.float):
        yield from _trip()


def _trip() -> Iterator[Pair]:
    routing = importlib.import_module("utils.generate_weights_multi")
    their = importlib.import_module("nets.coop2_NR_data")
    names = [name.replace("_", " ") for name in CLASSES]
    method = ours(
        "trip",
        task(names),
        context_tokens=TOKENS,
        experts=3,
        expert_init="independent",
        beta=0.8,
        clustering="published",
    )
    # Tokens in loose bunches, so that capacities bind and several rounds are needed.
    bunches = rng(1).normal(size=(BATCH, 1, 5, 128)) + rng(2).normal(size=(BATCH, 12, 5, 128))
    tokens = bunches.reshape(BATCH, 60, 128)[:, :58].astype("float32")
    images, labels = drawn_batch()
    batch = {**encoded(images, labels)}
    seats = np.random.default_rng([0, 1]).permutation(58)
    batch |= method.prepare({**batch, "tokens": tokens})
    keys = torch.from_numpy(method.router.keys)
    found: dict[float, list[Tensor]] = {1.0: [], 2.0: []}
    for factor, shares in found.items():
        for image in torch.from_numpy(tokens):
            with patch.object(torch, "randperm", lambda count: torch.from_numpy(seats[:count])):
                _, centroids, sizes, _ = routing.balanced_kmeans_lagrangian(
                    image, factor, 3, eta=1e-4
                )
            shares.append(routing.expert_weights(centroids, keys, sizes))
    yield "shares of experts, training", found[1.0], batch[ROUTING]
    yield "shares of experts, prediction", found[2.0], batch[ROUTING_INFERENCE]

    args = SimpleNamespace(
        **{"N_CTX": TOKENS, "INPUT_SIZE": (32, 32), "CSC": False, "num_experts": 3, "CTP": "end"},
        **{"route_emb": 0, "gamma": 0.8, "lamba": 0.0, "alpha": 0.8},
    )
    clip = published_clip("clip.clip")
    with patch.object(their, "load_clip_to_cpu", lambda *given: clip):
        model = their.CustomCLIP(args, list(CLASSES), clip)
    experts = np.stack([rng(k).normal(0, 0.02, (TOKENS, 128)) for k in range(3)]).astype("float32")
    learner = model.prompt_learner
    learner.VPTctxList = nn.ParameterList(
        [nn.Parameter(torch.from_numpy(one.copy())) for one in experts]
    )
    model.fixed_embeddings = teacher = method.captions.features(method.classes)
    weights = torch.from_numpy(batch[ROUTING])
    scaled = method.encoder.backbone.logit_scale * torch.from_numpy(batch["features"]) @ teacher.T
    # The published loss is a cross-entropy where ours is a divergence: a constant apart.
    entropy = -(scaled.softmax(-1) * scaled.log_softmax(-1)).sum(-1).mean()
    loss = model(images, weights, labels, Training=True)
    slopes = torch.autograd.grad(loss, list(learner.VPTctxList))
    own_loss, own = gradients(method.training_objective(), {"experts": experts}, batch)
    yield "loss", loss - 0.8 * entropy, own_loss
    yield "gradients", slopes, own["experts"]

    plan = {"betas": (0.9, 0.98), "eps": 1e-7, "weight_decay": 0.01}
    optimiser = torch.optim.AdamW(learner.VPTctxList, lr=4e-4, **plan)
    for _ in range(3):
        optimiser.zero_grad()
        model(images, weights, labels, Training=True).backward()
        optimiser.step()
    view = ClientView({"experts": experts}, (), {})
    own_trainer = trainer(3, BATCH, 4e-4, optimizer="adamw", **plan)
    update = method.client_update(view, Examples(batch), own_trainer, rng()).update["experts"]
    moved = [p - torch.from_numpy(one) for p, one in zip(learner.VPTctxList, experts, strict=True)]
    yield "change after three steps", moved, update
    after = ClientView({"experts": np.stack([p.detach().numpy() for p in learner.VPTctxList])})
    theirs = model(images, torch.from_numpy(batch[ROUTING_INFERENCE]))
    yield "prediction after training", theirs, method.predict(after, batch, method.classes)
