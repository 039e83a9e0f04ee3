"""Adapters of `parity.py` for prompts of CLIP: the published modules beside our methods."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
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

from methods.dp_fpl import factors, local_gradient
from methods.fedtpg import PROJECTIONS
from methods.networks.mixture import Gate
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
    build, state = importlib.import_module(module).build_model, dict(clip_pair()[1])
    takes_design = len(inspect.signature(build).parameters) > 1
    model: Any = build(state, {**DESIGN, **design}) if takes_design else build(state)
    return model.float()


def from_file(name: str, path: Path) -> Any:
    """One file as a module of this name, which may be the name of a package of ours."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        TRAINER__PFEDMOAP__CLASS_TOKEN_POSITION="end",  # noqa: S106
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
    result = method.client_update(view, Examples(batch), trainer(3, BATCH, 0.002, **SGD), rng())
    yield (
        "change after three steps",
        trained[0] - torch.from_numpy(context),
        result.update["context"],
    )
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
        TRAINER__FEDPGP__CLASS_TOKEN_POSITION="end",  # noqa: S106
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
    anchor, common, _, personal, _ = model(images)
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
    result = method.client_update(view, Examples(batch), trainer(3, BATCH, 0.001, **SGD), rng())
    moved = learner.sigma.detach()[0] - torch.from_numpy(held["context"])
    yield "change after three steps", moved, result.update["context"]
    yield (
        "adapter after three steps",
        [learner.U, learner.V],
        [result.personal[name] for name in order[1:]],
    )
    model.eval()
    after = ClientView({"context": learner.sigma.detach()[0].numpy()}, (), result.personal)
    yield "prediction after training", model(images), method.predict(after, batch, method.classes)

    average = importlib.import_module("fed_utils").average_weights
    contexts = [rng(k).normal(0, 0.02, (TOKENS, 128)).astype("float32") for k in range(3)]
    uploads = [{"sigma": torch.from_numpy(one.copy())} for one in contexts]
    averaged = average(uploads, [0, 1, 2], [50, 30, 20], islist=False)["sigma"]
    updates = [{"context": one - held["context"]} for one in contexts]
    learned = mean_of(updates, (0.5, 0.3, 0.2))
    yield (
        "mean of prompts",
        averaged,
        method.server_update({"context": held["context"]}, learned, (), rng())["context"],
    )


def trip(folder: Path) -> Iterator[Pair]:
    """Clusters and shares of tokens, the loss of mixed prompts, a step, and prediction.

    The published code runs on a GPU in 16 bits; here `cuda` and `half` do nothing.
    """
    # Its copy of CLIP's tokenizer lacks the vocabulary, of which open_clip has the same file.
    tokenizer = from_file("clip.simple_tokenizer", folder / "clip" / "simple_tokenizer.py")
    vocabulary = str(Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz")
    tokenizer.SimpleTokenizer.__init__.__defaults__ = (vocabulary,)
    same = lambda tensor, *given: tensor  # noqa: E731
    with (
        patch.object(Tensor, "cuda", same),
        patch.object(Tensor, "half", Tensor.float),
        # Its attention keeps gradients for pictures, and cannot where there are none.
        patch.object(Tensor, "register_hook", lambda tensor, hook: None),
    ):
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


def fedotp(folder: Path) -> Iterator[Pair]:
    """Local features, transported logits, loss, gradients and prompts after three steps."""
    their = importlib.import_module("trainers.GLP_OT")
    cfg = settings(
        TRAINER__GLP_OT__N_CTX=TOKENS,
        TRAINER__GLP_OT__CTX_INIT="",
        TRAINER__GLP_OT__CSC=False,
        TRAINER__GLP_OT__CLASS_TOKEN_POSITION="end",  # noqa: S106
        TRAINER__GLP_OT__N=2,
        TRAINER__GLP_OT__EPS=0.1,
        TRAINER__GLP_OT__THRESH=0.0,
        TRAINER__GLP_OT__OT="COT",
        TRAINER__GLP_OT__TOP_PERCENT=0.8,
        TRAINER__GLP_OT__MAX_ITER=200,
        INPUT__SIZE=(32, 32),
        DATASET__NAME="",
    )
    model = their.CustomCLIP(cfg, list(CLASSES), published_clip(trainer="GLP_OT"))
    images, labels = drawn_batch()
    names = [name.replace("_", " ") for name in CLASSES]
    method = ours("fedotp", task(names), context_tokens=TOKENS, iterations=200)
    backbone = method.encoder.backbone
    with torch.no_grad():
        tokens = backbone.image_tower.tokens(images).numpy()
        local = functional.normalize(model.image_encoder(images)[1:], dim=-1).permute(1, 0, 2)
    batch = {**method.prepare({"tokens": tokens}), "labels": labels.numpy()}
    yield "local features", local, batch["patches"]
    drawn = model.prompt_learner.ctx.detach().numpy().copy()
    held = {"context": drawn[0], "own_contexts": drawn[1:]}
    view = ClientView({"context": drawn[0]}, (), {"own_contexts": drawn[1:]})
    yield "logits", model(images), method.predict(view, batch, method.classes)
    loss = functional.cross_entropy(model(images), labels)
    (slopes,) = torch.autograd.grad(loss, [model.prompt_learner.ctx])
    own_loss, own = gradients(method._objective(held, method.classes), held, batch)
    yield "loss", loss, own_loss
    yield "gradients", slopes, [own["context"], own["own_contexts"]]
    optimiser = torch.optim.SGD([model.prompt_learner.ctx], lr=0.001, **SGD)
    for _ in range(3):
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    result = method.client_update(view, Examples(batch), trainer(3, BATCH, 0.001, **SGD), rng())
    found = [result.update["context"] + drawn[0], result.personal["own_contexts"]]
    yield "prompts after three steps", model.prompt_learner.ctx, found


def fedtpg(folder: Path) -> Iterator[Pair]:
    """Logits of prompts made from names, loss, gradients and the net after three steps.

    The net is as wide as the small model; `cuda` and `half` do nothing.
    """
    # The one function that the code takes of einops, for the one pattern that it uses.
    einops: Any = ModuleType("einops")
    einops.repeat = lambda rows, pattern, b: rows.unsqueeze(0).expand(b, -1, -1)
    sys.modules["einops"] = einops
    same = lambda tensor, *given: tensor  # noqa: E731
    their = importlib.import_module("model.FedTPG")
    sized = partial(their.PromptTranslator, prompt_dim=128, textemb_dim=128, device="cpu")
    cfg = settings(MODEL__N_CTX=TOKENS, MODEL__D_CTX=1, MODEL__DEPTH=0)
    with (
        patch.object(Tensor, "cuda", same),
        patch.object(nn.Module, "half", same),
        patch.object(their, "PromptTranslator", sized),
    ):
        yield from _fedtpg(their.FedTPG(cfg, published_clip(), device="cpu"))


def _fedtpg(model: Any) -> Iterator[Pair]:
    net = model.prompt_learner.meta_net
    attention, forward = net.encoder.cross_attend_blocks
    layers = {
        **{"query_norm": attention.norm, "name_norm": attention.norm_context},
        **{"out": attention.fn.out_proj, "forward_norm": forward.net[0]},
        **{"inner": forward.net[1], "outer": forward.net[3]},
    }

    def parts(value: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The net's arrays under our names, or their gradients; torch keeps three in one."""
        found = {
            f"{name}.{kind}": value(tensor)
            for name, layer in layers.items()
            for kind, tensor in layer.named_parameters()
        }
        for kind in ("weight", "bias"):
            three = value(getattr(attention.fn, f"in_proj_{kind}")).chunk(3)
            found |= {f"{n}.{kind}": t for n, t in zip(PROJECTIONS, three, strict=True)}
        found["queries"] = value(net.soft_prompt)
        return {name: tensor.clone() for name, tensor in sorted(found.items())}

    names = [name.replace("_", " ") for name in CLASSES]
    method = ours("fedtpg", task(names), context_tokens=TOKENS, names="all")
    start = {name: value.numpy() for name, value in parts(Tensor.detach).items()}
    images, labels = drawn_batch()
    batch = encoded(images, labels)
    view = ClientView(start, (), {})
    yield "logits", model(images, CLASSES, "")[0], method.predict(view, batch, method.classes)
    loss = functional.cross_entropy(model(images, CLASSES, "")[0], labels)
    loss.backward()
    own_loss, own = gradients(method.objective(Examples(batch)), start, batch)
    yield "loss", loss, own_loss
    yield "gradients", parts(lambda tensor: cast("Tensor", tensor.grad)), own
    plan = {"momentum": 0.9, "weight_decay": 1e-5}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.03, **plan)
    for _ in range(3):
        optimiser.zero_grad()
        functional.cross_entropy(model(images, CLASSES, "")[0], labels).backward()
        optimiser.step()
    result = method.client_update(view, Examples(batch), trainer(3, BATCH, 0.03, **plan), rng())
    moved = {name: now - start[name] for name, now in parts(Tensor.detach).items()}
    yield "change after three steps", moved, result.update


def dp_fpl(folder: Path) -> Iterator[Pair]:
    """Factors, logits, loss, and the local gradient of the published code, without noise."""
    their = importlib.import_module("trainers.DP_FPL")
    cfg = settings(TRAINER__DP_FPL__N_CTX=TOKENS, INPUT__SIZE=(32, 32))
    cfg.FACTORIZATION, cfg.RANK = "dpfpl", 2
    model = their.CustomCLIP(cfg, list(CLASSES), published_clip(trainer="DP_FPL"))
    learner = model.prompt_learner
    images, labels = drawn_batch()
    batch = encoded(images, labels)
    names = [name.replace("_", " ") for name in CLASSES]
    method = ours("dp_fpl", task(names), context_tokens=TOKENS, rank=2, sign="published")
    shared, local = (p.detach().numpy().copy() for p in (learner.global_ctx, learner.local_ctx))
    view = ClientView({"context": shared}, (), {"local": local})
    drawn = torch.from_numpy(rng(3).normal(size=(128, 2)).astype("float32"))
    with patch.object(torch, "normal", lambda *given, size: drawn):
        logits = model(images)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    yield "logits", logits, method.predict(view, batch, method.classes)
    left, right = factors(torch.from_numpy(local), drawn)
    # A factor's sign is free, and the local gradient does not depend on it.
    there = [
        learner.local_u_ctx @ learner.local_u_ctx.T,
        learner.local_v_ctx.T @ learner.local_v_ctx,
    ]
    yield "projections on the factors", there, [left @ left.T, right.T @ right]
    held = {"context": shared, "local": local}
    own_loss, own = gradients(method.training_objective(), held, batch)
    yield "loss", loss, own_loss
    yield "gradient of the shared prompt", learner.global_ctx.grad, own["context"]
    theirs = their.compute_full_grad(learner.local_u_ctx, learner.local_v_ctx, torch.float32)
    whole = own["local"]
    found = local_gradient(left, right, (whole @ right.T, left.T @ whole), "published")
    yield "local gradient", theirs, found


def fedclip(folder: Path) -> Iterator[Pair]:
    """The adapter after three steps of the symmetric loss, and the mean of adapters.

    Features of length one stand for the towers' outputs on both sides.
    """
    their = from_file("fed_at_clip", folder / "methods" / "fed_at_clip.py")
    images, labels = drawn_batch()
    batch = encoded(images, labels)
    method = ours("fedclip", task(), loss="symmetric", weighting="examples")
    start = method.init_server(rng())
    adapter = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Softmax(dim=1))
    with torch.no_grad():
        for layer, name in ((adapter[0], "inner"), (adapter[2], "outer")):
            layer.weight.copy_(torch.from_numpy(start[f"{name}.weight"]))
            layer.bias.copy_(torch.from_numpy(start[f"{name}.bias"]))
    scale = torch.tensor(method.captions.backbone.logit_scale).log()
    same = SimpleNamespace(
        encode_image=lambda rows: rows,
        encode_text=lambda rows: rows,
        logit_scale=scale,
        eval=lambda: None,
        train=lambda: None,
    )
    model = SimpleNamespace(model=same, img_adap=adapter)
    text = method.captions.features(method.classes)[labels]
    loader = [(torch.from_numpy(batch["features"]), text, labels)]
    optimiser = torch.optim.SGD(adapter.parameters(), lr=0.05)
    for _ in range(3):
        their.train(SimpleNamespace(), model, loader, optimiser, "cpu")
    result = method.client_update(
        ClientView(start), Examples(batch), trainer(3, BATCH, 0.05), rng()
    )
    order = ("inner.weight", "inner.bias", "outer.weight", "outer.bias")
    moved = [
        p - torch.from_numpy(start[n]) for p, n in zip(adapter.parameters(), order, strict=True)
    ]
    yield "change after three steps", moved, [result.update[name] for name in order]
    image = torch.from_numpy(batch["features"])
    adapted = functional.normalize(adapter(image) * image, dim=-1)
    theirs = scale.exp() * adapted @ method.captions.features(method.classes).T
    after = {name: start[name] + result.update[name] for name in order}
    yield "prediction", theirs, method.predict(ClientView(after), batch, method.classes)


def pm_moe(folder: Path) -> Iterator[Pair]:
    """The mixture of clients' heads: output, and the gate and output after training it."""
    moe = importlib.import_module("flcore.trainmodel.moe.moe")
    names = [f"c{number}" for number in range(4)]
    method = ours(
        "pm_moe",
        task(names, backbone=None),
        base="fedper",
        base_options={"network": "cnn", "image_size": 32},
        top_k=2,
        gate_rate=0.1,
        gate_rounds=1,
        gamma=0.0,
        first_relu=True,
    )
    raw = rng(1).integers(0, 256, (BATCH, 3, 32, 32), dtype=np.uint8)
    batch = {"pixels": raw, "labels": np.array([0, 1, 2, 3, 1, 0])}
    shared = method.init_server(rng(2))
    heads = [method.base.init_client(rng(k), rng(k)) for k in range(3)]
    experts = []
    for arrays in heads:
        layer = nn.Linear(512, 4)
        layer.load_state_dict({k.split(".")[1]: torch.from_numpy(v) for k, v in arrays.items()})
        experts.append(layer)
    mixture = moe.ToPMoE(experts, 512, SimpleNamespace(topk=2))
    view = ClientView(shared, heads, heads[0], own=0)
    start = Gate(512, 3, method.config).start(rng(5))
    places = {
        f"moe.{n}.{part}": f"layer{n}.{part}" for n in range(1, 5) for part in ("weight", "bias")
    }
    mixture.gating.load_state_dict({places[n]: torch.from_numpy(v) for n, v in start.items()})
    with torch.no_grad():
        features = method.base.features(
            {n: torch.from_numpy(v) for n, v in shared.items()}, {"pixels": torch.from_numpy(raw)}
        )
    mixture.eval()
    before = {**heads[0], **start, "moe.own": np.array(0, np.int64)}
    own_before = method.predict(ClientView(shared, heads, before, own=0), batch, names)
    yield "logits with a fresh gate", mixture(features), own_before
    # Dropout is off on both sides, as its draws cannot be the same.
    optimiser = torch.optim.SGD(mixture.gating.parameters(), lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        functional.cross_entropy(mixture(features), torch.from_numpy(batch["labels"])).backward()
        optimiser.step()
    personal = method.personalise(view, Examples(batch), trainer(4, BATCH), rng(5))
    gate = mixture.gating.state_dict()
    yield (
        "gate after four steps",
        [gate[places[name]] for name in start],
        [personal[name] for name in start],
    )
    found = method.predict(ClientView(shared, heads, personal, own=0), batch, names)
    yield "logits after training", mixture(features), found
