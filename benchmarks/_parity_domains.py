"""Adapters of `parity.py` for domain generalisation: the published functions beside ours."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _parity_kit import SEED, ClientView, Examples, Pair, ours, rng, task, trainer
from _parity_prompts import from_file
from torch import Tensor, nn

from methods.ccst import styled
from methods.elcfs import low_amplitudes, mixed_in
from methods.feddg_ga import Config as Adjustment
from methods.feddg_ga import adjusted
from methods.networks.draws import MARK, Draws, normals, uniforms
from methods.stablefdg import highlighted, next_of_class
from methods.swad import Config as Averaging
from methods.swad import count_segments

NAMES = ("a", "b", "c", "d")


def swad(folder: Path) -> Iterator[Pair]:
    """The mean of the valley's segments, for drawn losses and several settings."""
    their = importlib.import_module("domainbed.swad")
    average = importlib.import_module("domainbed.lib.swa_utils").AveragedModel
    evaluator = SimpleNamespace(logger=SimpleNamespace(error=lambda text: None))
    theirs, found = [], []
    draw = rng()
    for patience, tolerance in ((3, 6), (3, 3), (4, 2), (1, 3)):
        config = Averaging(
            optimum_patience=patience, overfit_patience=tolerance, bookkeeping="published"
        )
        for _ in range(60):
            length = int(draw.integers(patience + 1, 25))
            valley = np.abs(np.linspace(-1, 1, length)) + draw.normal(0, 0.3, length)
            losses = (valley - valley.min() + 0.2).tolist()
            segments = draw.normal(size=(length, 3)).astype("float32")
            valleys = their.LossValley(evaluator, patience, tolerance, config.tolerance)
            for step, (loss, values) in enumerate(zip(losses, segments, strict=True)):
                layer = nn.Linear(3, 1, bias=False)
                layer.weight.data = torch.from_numpy(values[None])
                segment = average(layer)
                segment.update_parameters(layer, step=step)
                valleys.update_and_evaluate(segment, 0.0, loss, print)
            with patch.object(nn.Module, "cuda", lambda module: module):
                final = valleys.get_final_model()
            theirs.append(final.module.weight.detach().numpy()[0])
            counts = count_segments(losses, config)
            weights = np.array(counts.final, np.float64)
            if weights.any():
                found.append(weights @ segments / weights.sum())
            else:
                found.append(segments[counts.first])
    yield "mean of segments, 240 drawn runs", theirs, found


def feddg_ga(folder: Path) -> Iterator[Pair]:
    """The clients' weights after a step along their gaps, for both metrics."""
    refine = importlib.import_module("utils.weight_adjust").refine_weight_dict_by_GA
    draw = rng()
    for metric, name in (("loss", "loss"), ("acc", "accuracy")):
        theirs, found = [], []
        for _ in range(100):
            weights, gaps = draw.dirichlet(np.ones(3)), draw.normal(0, 0.2, 3)
            step = float(draw.uniform(0.01, 0.5))
            before = {site: {metric: 0.0} for site in "xyz"}
            after = {site: {metric: gap} for site, gap in zip("xyz", gaps, strict=True)}
            moved = refine(dict(zip("xyz", weights, strict=True)), before, after, step, metric)
            theirs.append([moved[site] for site in "xyz"])
            config = Adjustment(metric=name)
            found.append(adjusted(weights, gaps, step=step, config=config))
        yield f"weights by {name}, 100 draws", theirs, found


def elcfs(folder: Path) -> Iterator[Pair]:
    """Images with another image's amplitudes, mixed and whole, for two widths of the block."""
    # The file is a demonstration, which runs at import and reads its pictures from here.
    with contextlib.chdir(folder):
        demo = importlib.import_module("freq_space_interpolation_demo")
    interpolate = demo.freq_space_interpolation
    images = rng().integers(0, 256, (2, 3, 32, 32)).astype(np.float64)
    amplitude = np.abs(np.fft.fft2(images[1], axes=(-2, -1)))
    for band in (0.0, 0.1):
        half = int(np.floor(band * 32))
        theirs, found = [], []
        for share in (1.0, 0.4):
            mixed = interpolate(images[0], amplitude, L=band, ratio=1.0 - share)
            theirs.append(np.clip(mixed, 0, 255))
            pair = torch.from_numpy(images)
            block = low_amplitudes(pair[1:], half)
            found.append(mixed_in(pair[:1], block, torch.tensor([share]).double()))
        yield f"restyled images, block of {2 * half + 1} x {2 * half + 1}", theirs, found


def ccst(folder: Path) -> Iterator[Pair]:
    """Maps in another client's style."""
    their = importlib.import_module("function")
    torch.manual_seed(SEED)
    maps, mean, deviation = torch.randn(5, 6, 8, 8), torch.randn(5, 6), torch.rand(5, 6) + 0.1
    statistics = (mean[..., None, None], deviation[..., None, None])
    restyled = their.adaIN_StyleStat_ContentFeat(maps, statistics)
    yield "restyled maps", restyled, styled(maps, mean, deviation, torch.zeros(5, dtype=torch.bool))


def fedsr(folder: Path) -> Iterator[Pair]:
    """Networks and references after each of three steps, with the same samples of z."""
    from_file("methods.base", folder / "methods" / "base.py")
    their = from_file("published_fedsr", folder / "methods" / "FedSR.py")
    method = ours(
        "fedsr",
        task(NAMES, backbone=None),
        network="cnn",
        image_size=32,
        representation_width=16,
        norm_weight=0.01,
        information_weight=1e-3,
        norm="plain",
        scale="learned",
        reference="personal",
    )
    state, own = dict(method.init_server(rng())), dict(method.init_client(rng(), rng()))
    model: Any = their.Model.__new__(their.Model)
    nn.Module.__init__(model)
    shapes = {name: value.shape for name, value in state.items()}
    first, second = shapes["extractor.conv1.weight"], shapes["extractor.conv2.weight"]
    fully, made = shapes["extractor.fc.weight"], shapes["representation.weight"]
    model.net = nn.Sequential(
        *(nn.Conv2d(first[1], first[0], 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(second[1], second[0], 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(fully[1], fully[0]), nn.ReLU(), nn.Linear(made[1], made[0])),
    )
    model.cls = nn.Linear(16, len(NAMES))
    model.model = nn.Sequential(model.net, model.cls)
    places = {"extractor.conv1": 0, "extractor.conv2": 3, "extractor.fc": 7, "representation": 9}
    layers = {**{name: model.net[i] for name, i in places.items()}, "head": model.cls}
    model.r_mu, model.r_sigma, model.C = (
        nn.Parameter(torch.from_numpy(own[f"reference.{name}"].copy()))
        for name in ("centre", "spread", "scale")
    )
    with torch.no_grad():
        for name, layer in layers.items():
            layer.weight.copy_(torch.from_numpy(state[f"{name}.weight"]))
            layer.bias.copy_(torch.from_numpy(state[f"{name}.bias"]))
    plain = {"probabilistic": True, "z_dim": 16, "device": "cpu", "num_samples": 20}
    plain |= {"L2R_coeff": 0.01, "CMI_coeff": 1e-3, "num_classes": len(NAMES)}
    for name, value in plain.items():
        setattr(model, name, value)
    model.optim = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    raw = rng(1).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 3, 1, 0])
    arrays = {**method.prepare({"pixels": raw, "labels": labels}), "labels": labels}
    marks = torch.from_numpy(arrays[MARK])
    images = torch.from_numpy(arrays["pixels"]).float() / 127.5 - 1.0
    draws = Draws(rng(7))

    def standard(shape: Any, **given: Any) -> Tensor:
        """Our numbers for its samples."""
        return normals(marks, draws.key, 16).reshape(shape)

    with patch("torch.distributions.normal._standard_normal", standard):
        for _ in range(3):
            model.train_client([(images, torch.from_numpy(labels))])
            draws.advance({})
    plan = trainer(3, 6, 0.01, momentum=0.9, weight_decay=5e-4)
    result = method.client_update(ClientView(state, (), own), Examples(arrays), plan, rng(7))
    order = [f"{name}.{part}" for name in layers for part in ("weight", "bias")]
    theirs = [
        getattr(layers[name.rpartition(".")[0]], name.rpartition(".")[2]).detach().numpy()
        - state[name]
        for name in order
    ]
    yield "change of the network after three steps", theirs, [result.update[n] for n in order]
    names = ("reference.centre", "reference.spread", "reference.scale")
    references = (model.r_mu, model.r_sigma, model.C)
    moved = [r.detach().numpy() - own[n] for r, n in zip(references, names, strict=True)]
    yield "change of the references", moved, [result.personal[n] - own[n] for n in names]
    model.eval()
    numbers = torch.stack([normals(marks, key, 16) for key in range(20)])
    with patch(
        "torch.distributions.normal._standard_normal", lambda shape, **given: numbers.reshape(shape)
    ):
        logits = model(images)
    after = {name: state[name] + value for name, value in result.update.items()}
    found = method.predict(ClientView(after, (), result.personal), arrays, NAMES)
    yield "prediction", logits, found


def stablefdg(folder: Path) -> Iterator[Pair]:
    """What each image's map attends to, in training (with the next of its class) and prediction."""
    their = importlib.import_module("cross_attn")
    torch.manual_seed(SEED)
    block = their.AFH(24, 24, 1, 6, 6, 1, False)
    maps, labels = torch.randn(9, 24, 7, 7), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1])
    weight, bias = block.qkv_conv.weight.flatten(1), block.qkv_conv.bias
    parts = {
        **{"highlighter.query.weight": weight[:6], "highlighter.query.bias": bias[:6]},
        **{"highlighter.key.weight": weight[6:12], "highlighter.key.bias": bias[6:12]},
    }
    for name, following in (
        ("training", next_of_class(labels)),
        ("prediction", torch.arange(len(labels))),
    ):
        block.train(name == "training")
        # The second half of its channels, summed over places, is what the map attends to.
        attended = block(maps, None, labels)[:, 24:].sum((2, 3))
        yield f"attended features, {name}", attended, highlighted(parts, maps, following)


def fedadg(folder: Path) -> Iterator[Pair]:
    """Network, generator and discriminator after two steps of each, with the same noise."""
    nets = from_file("published_nets", folder / "pacs-ours" / "Nets.py")
    local = from_file("published_training", folder / "pacs-ours" / "localTrain.py")
    # Widths and the number of classes are PACS's.
    width, count, classes = 4096, 5, tuple("abcdefg")
    method = ours(
        "fedadg",
        task(classes, backbone=None),
        network="cnn",
        image_size=32,
        feature_width=width,
        first_share=0.0,
        smoothing=0.01,
        label_scale=0.7,
        adversary_rate=0.7,
    )
    state, own = dict(method.init_server(rng())), dict(method.init_client(rng(), rng()))
    first, second = state["extractor.conv1.weight"], state["extractor.conv2.weight"]
    network = nn.Sequential(
        *(nn.Conv2d(first.shape[1], first.shape[0], 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(second.shape[1], second.shape[0], 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, width), nn.ReLU()),
    )
    head = nn.Linear(width, len(classes))
    sgd = torch.optim.SGD
    generator = nets.GeneDistrNet(width // 2, width, sgd, 0.7 * 0.2, 0.0, 0.0)
    judge = nets.Discriminator(width, len(classes), width // 4)
    linears = [part for part in generator.modules() if isinstance(part, nn.Linear)]
    layers = {
        **{"extractor.conv1": network[0], "extractor.conv2": network[3]},
        **{"extractor.fc": network[7], "head": head},
        **{"generator.hidden": linears[0], "generator.output": linears[1]},
        **{"discriminator.hidden": judge.features_pro[0]},
        **{"discriminator.output": judge.features_pro[2]},
    }
    places = {
        f"{name}.{kind}": getattr(layer, kind)
        for name, layer in layers.items()
        for kind in ("weight", "bias")
    }
    places["discriminator.projection"] = judge.projection.weight
    start = {**state, **own}
    with torch.no_grad():
        for name, parameter in places.items():
            parameter.copy_(torch.from_numpy(start[name]))
    generator.optimizer = sgd(generator.parameters(), lr=0.7 * 0.2)
    judge.optimizer = sgd(judge.parameters(), lr=0.7 * 0.2)
    raw = rng(1).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 3, 1])
    arrays = {**method.prepare({"pixels": raw, "labels": labels}), "labels": labels}
    marks = torch.from_numpy(arrays[MARK])
    images = torch.from_numpy(arrays["pixels"]).float() / 127.5 - 1.0
    trainee = SimpleNamespace(
        args=SimpleNamespace(device="cpu", input_size=width // 2, num_labels=len(classes)),
        fetExtrac=network,
        classifier=head,
        generator=generator,
        discri=judge,
        lossFunc=local.LabelSmoothingLoss(0.01, lbl_set_size=len(classes)),
        opti_task=sgd([*network.parameters(), *head.parameters()], lr=0.2),
    )
    # Our update draws a batch's seed before each step's key.
    source = rng(7)
    draws = Draws(source)
    for _ in range(2):
        source.integers(2**63)
        noise = uniforms(marks, draws.key, width // 2)
        with patch.object(torch, "rand", lambda *shape, now=noise: now):
            local.localTrain.train_step(trainee, (images, torch.from_numpy(labels)))
        draws.advance({})
    view = ClientView(state, (), own)
    result = method.client_update(view, Examples(arrays), trainer(2, count, 0.2), rng(7))
    found = {**{n: state[n] + v for n, v in result.update.items()}, **result.personal}
    for part in ("extractor", "head", "generator", "discriminator"):
        names = [name for name in places if name.startswith(part)]
        yield (
            f"change of the {part} after two steps",
            [places[name].detach().numpy() - start[name] for name in names],
            [found[name] - start[name] for name in names],
        )
