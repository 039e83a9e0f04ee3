"""Adapters of `parity.py` for methods on small networks: PFLlib's clients and servers beside ours.

Two clients with six and four images train for two rounds of two epochs, all of a client's images
being one batch, from the same start on both sides. Compared are the networks after each round,
what the server makes of them, and the logits on other images after the second round.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _parity_kit import (
    RATE,
    SEED,
    ClientView,
    Examples,
    Pair,
    mean_of,
    ours,
    rng,
    task,
    trainer,
)
from numpy.typing import NDArray
from torch import Tensor, nn

from methods import Arrays, Weighting

CLASSES, EPOCHS, SIDE = 4, 2, 32
LABELS = ((0, 1, 1, 2, 0, 2), (3, 1, 3, 0))
"""The classes of both clients' images; neither has all of them."""
LAYERS = {"extractor.conv1": "base.conv1.0", "extractor.conv2": "base.conv2.0"}
LAYERS |= {"extractor.fc": "base.fc1.0", "head": "head"}


def pixels(count: int, seed: int) -> NDArray[np.uint8]:
    return rng(seed).integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)


def as_images(raw: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(raw).float() / 127.5 - 1.0


def network() -> Any:
    """PFLlib's network, cut as its `main.py` cuts it."""
    models = importlib.import_module("flcore.trainmodel.models")
    torch.manual_seed(SEED)
    whole = models.FedAvgCNN(in_features=3, num_classes=CLASSES, dim=1600)
    head, whole.fc = copy.deepcopy(whole.fc), nn.Identity()
    return models.BaseHeadSplit(whole, head)


def arrays(model: Any, layers: Mapping[str, str] = LAYERS) -> dict[str, NDArray[np.float32]]:
    """A network's arrays under our names."""
    state = model.state_dict()
    return {
        f"{own}.{part}": state[f"{name}.{part}"].numpy().copy()
        for own, name in layers.items()
        for part in ("weight", "bias")
        if f"{name}.{part}" in state
    }


def whole(client: Any) -> dict[str, NDArray[np.float32]]:
    """All arrays of a client's network."""
    return arrays(client.model)


def receive(client: Any, server: Any) -> None:
    client.set_parameters(server)


@dataclass(frozen=True)
class Case:
    """How one of PFLlib's algorithms is driven.

    Attributes:
        client: Module and class of its clients.
        name: Our method, and its options.
        settings: Of PFLlib's command line.
        sent: What a client sends, and the server's model of it.
        receive: How a client takes what the server sends.
        train: A client's part of a round.
        published: A client's arrays under our names.
        predict: A client's logits.
        start: Our state at both sides that is no part of the network.
    """

    client: tuple[str, str]
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    sent: Callable[[Any], Any] = lambda client: client.model
    receive: Callable[[Any, Any], None] = receive
    train: Callable[[Any], None] = lambda client: client.train()
    published: Callable[[Any], Mapping[str, NDArray[Any]]] = whole
    predict: Callable[[Any, Tensor], Tensor] = lambda client, images: client.model(images)
    epochs: int = EPOCHS


def base(client: Any) -> Any:
    return client.model.base


def head(client: Any) -> Any:
    return client.model.head


def clients_of(
    case: Case,
    labels: Sequence[Sequence[int]] = LABELS,
    also: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[Any]:
    """Two of the published clients, who read the drawn images instead of files."""
    given = dict(
        **{"model": network(), "algorithm": "", "dataset": "", "device": "cpu"},
        **{"save_folder_name": "", "num_classes": CLASSES, "batch_size": 16, "few_shot": 0},
        **{"local_learning_rate": RATE, "local_epochs": EPOCHS, "learning_rate_decay": False},
        **{"learning_rate_decay_gamma": 1.0, "plocal_epochs": EPOCHS},
    )
    kind = getattr(importlib.import_module(f"flcore.clients.{case.client[0]}"), case.client[1])

    class Here(kind):  # type: ignore[misc]
        def load_train_data(self, batch_size: Any = None) -> Any:
            own = labels[self.id]
            return [(as_images(pixels(len(own), self.id)), torch.tensor(own))]

    args = SimpleNamespace(**(given | dict(case.settings) | more))
    return [
        Here(args, number, len(own), 0, train_slow=False, send_slow=False, **(also or {}))
        for number, own in enumerate(labels)
    ]


def examples(labels: Sequence[Sequence[int]] = LABELS) -> list[Examples]:
    return [
        Examples({"pixels": pixels(len(own), number), "labels": np.array(own)})
        for number, own in enumerate(labels)
    ]


def method_of(case: Case) -> Any:
    names = [f"c{number}" for number in range(CLASSES)]
    options = {"network": "cnn", "image_size": SIDE, **case.options}
    return ours(case.name, task(names, backbone=None, population=len(LABELS)), **options)


def learned(method: Any, updates: Sequence[Arrays], shares: Sequence[float]) -> Any:
    """What our server learns, each array combined as its `weighting` says."""
    spec = method.shared_spec()
    equal = {Weighting.EXAMPLES: None, Weighting.UNIFORM: 1 / len(updates), Weighting.SUM: 1.0}
    seen = mean_of(updates, shares)
    for name in updates[0]:
        weight = equal[spec[name].weighting]
        if weight is not None:
            seen.values[name] = weight * sum(one[name] for one in updates)  # type: ignore[index]
    return seen


def averaged(models: Sequence[Any], shares: Sequence[float]) -> Any:
    """The published server's mean of what clients sent."""
    kind = importlib.import_module("flcore.servers.serverbase").Server
    server = kind.__new__(kind)
    server.uploaded_models, server.uploaded_weights = list(models), list(shares)
    server.aggregate_parameters()
    return server.global_model


def rounds(folder: Path, *, case: Case) -> Iterator[Pair]:
    """Both sides for two rounds."""
    published, method, data = clients_of(case), method_of(case), examples()
    server = copy.deepcopy(case.sent(published[0]))
    state = dict(method.init_server(rng()))
    first = case.published(published[0])
    state |= {name: first[name] for name in state if name in first}
    personal = [dict(method.init_client(rng(), rng())) for _ in data]
    for own in personal:
        own |= {name: first[name] for name in own if name in first}
    shares = [len(own) / sum(map(len, LABELS)) for own in LABELS]
    own_trainer = trainer(case.epochs, 16)
    for number in (1, 2):
        updates, after, before = [], [], []
        for client, examples_, own in zip(published, data, personal, strict=True):
            case.receive(client, server)
            case.train(client)
            result = method.client_update(ClientView(state, (), own), examples_, own_trainer, rng())
            updates.append(result.update)
            theirs = case.published(client)
            moved = {n: state[n] + v for n, v in result.update.items() if n in state}
            found = {**moved, **result.personal}
            after.append({name: theirs[name] for name in found if name in theirs})
            before.append({name: found[name] for name in after[-1]})
            own.clear()
            own.update(result.personal)
        yield f"clients' networks after round {number}", after, before
        server = averaged([case.sent(client) for client in published], shares)
        state = dict(method.server_update(state, learned(method, updates, shares), (), rng()))
        holder = copy.deepcopy(published[0])
        case.receive(holder, server)
        theirs = case.published(holder)
        names = [name for name in state if name in theirs]
        yield (
            f"the server's network after round {number}",
            [theirs[name] for name in names],
            [state[name] for name in names],
        )
    shown = pixels(7, 99)
    logits, found = [], []
    for client, own in zip(published, personal, strict=True):
        case.receive(client, server)
        client.model.eval()
        logits.append(case.predict(client, as_images(shown)))
        labels = np.zeros(len(shown), np.int64)
        batch = {"pixels": shown, "labels": labels}
        found.append(method.predict(ClientView(state, (), own), batch, method.classes))
    yield "prediction", logits, found


def _ditto_arrays(client: Any) -> dict[str, NDArray[np.float32]]:
    own = {f"own.{name}": value for name, value in arrays(client.model_per).items()}
    return {**whole(client), **own}


def _ditto_train(client: Any) -> None:
    client.ptrain()
    client.train()


def _rod_arrays(client: Any) -> dict[str, NDArray[np.float32]]:
    found = arrays(client.model, {**LAYERS, "generic": "head"})
    own = {f"head.{n}": v.numpy().copy() for n, v in client.head.state_dict().items()}
    return {**found, **own}


def _rod_logits(client: Any, images: Tensor) -> Tensor:
    features = client.model.base(images)
    total: Tensor = client.model.head(features) + client.head(features)
    return total


CASES = {
    "fedavg": Case(("clientavg", "clientAVG"), "fedavg"),
    "fedprox": Case(("clientprox", "clientProx"), "fedprox", {"mu": 0.3}, {"mu": 0.3}),
    "fedper": Case(("clientper", "clientPer"), "fedper", sent=base),
    "lg_fedavg": Case(("clientlg", "clientLG"), "lg_fedavg", sent=head),
    "fedrep": Case(
        ("clientrep", "clientRep"), "fedrep", {"head_share": 0.5}, sent=base, epochs=2 * EPOCHS
    ),
    "fedbabu": Case(
        ("clientbabu", "clientBABU"),
        "fedbabu",
        settings={"fine_tuning_epochs": 1},
        sent=base,
    ),
    "fedrod": Case(
        ("clientrod", "clientROD"), "fedrod", published=_rod_arrays, predict=_rod_logits
    ),
    "ditto": Case(
        ("clientditto", "clientDitto"),
        "ditto",
        {"proximal_weight": 0.4},
        {"mu": 0.4},
        train=_ditto_train,
        published=_ditto_arrays,
        predict=lambda client, images: client.model_per(images),
    ),
    "moon": Case(
        ("clientmoon", "clientMOON"),
        "moon",
        {"mu": 1.0, "temperature": 0.5, "projection": "none"},
        {"mu": 1.0, "tau": 0.5},
    ),
}


def __getattr__(name: str) -> Any:
    """The adapter of a case."""
    if name in CASES:
        return partial(rounds, case=CASES[name])
    raise AttributeError(name)


SCAFFOLD = Case(("clientscaffold", "clientSCAFFOLD"), "scaffold")


def updated(
    method: Any, state: Arrays, personal: list[Any], data: Sequence[Examples]
) -> list[Arrays]:
    """Train our clients for one round; return their updates, and change their personal state."""
    results = [
        method.client_update(ClientView(state, (), own), one, trainer(EPOCHS, 16), rng())
        for own, one in zip(personal, data, strict=True)
    ]
    personal[:] = [result.personal for result in results]
    return [result.update for result in results]


def scaffold(folder: Path) -> Iterator[Pair]:
    """Networks, control variates of clients and server, for two rounds."""
    published, method, data = clients_of(SCAFFOLD), method_of(SCAFFOLD), examples()
    server_kind = importlib.import_module("flcore.servers.serverscaffold").SCAFFOLD
    server = server_kind.__new__(server_kind)
    server.global_model, server.clients = copy.deepcopy(published[0].model), published
    server.global_c = [torch.zeros_like(each) for each in server.global_model.parameters()]
    server.uploaded_ids, server.num_join_clients, server.num_clients = [0, 1], 2, 2
    server.server_learning_rate = 1.0
    state = {**method.init_server(rng()), **whole(published[0])}
    personal = [method.init_client(rng(), rng()) for _ in data]
    order = [f"{name}.{part}" for name in LAYERS for part in ("weight", "bias")]

    def ordered(held: Mapping[str, Any], prefix: str = "") -> list[Any]:
        return [held[prefix + name] for name in order]

    for number in (1, 2):
        for client in published:
            client.set_parameters(server.global_model, server.global_c)
            client.train()
        updates = updated(method, state, personal, data)
        yield (
            f"clients' control variates after round {number}",
            [client.client_c for client in published],
            [ordered(own, "control.") for own in personal],
        )
        server.aggregate_parameters()
        state = method.server_update(state, learned(method, updates, (0.6, 0.4)), (), rng())
        theirs = ordered(arrays(server.global_model))
        yield f"the server's network after round {number}", theirs, ordered(state)
        yield (
            f"the server's control variate after round {number}",
            server.global_c,
            ordered(state, "control."),
        )


PROTO = Case(("clientproto", "clientProto"), "fedproto", {"inference": "all_prototypes"})


def fedproto(folder: Path) -> Iterator[Pair]:
    """Networks, the clients' class means, their mean, and distances to it, for two rounds."""
    published, method, data = clients_of(PROTO, lamda=1.0), method_of(PROTO), examples()
    combine = importlib.import_module("flcore.servers.serverproto").proto_aggregation
    state = method.init_server(rng())
    personal = [{**method.init_client(rng(), rng()), **whole(client)} for client in published]
    for number in (1, 2):
        for client in published:
            client.train()
            # Its `train` averages features while the network still moves; this function after it.
            client.collect_protos()
        updates = updated(method, state, personal, data)
        yield (
            f"clients' networks after round {number}",
            [whole(client) for client in published],
            [{n: v for n, v in own.items() if n in whole(published[0])} for own in personal],
        )
        table = combine([client.protos for client in published])
        state = method.server_update(state, learned(method, updates, (0.6, 0.4)), (), rng())
        rows = [table[label] for label in sorted(table)]
        yield f"the server's prototypes after round {number}", rows, state["table"][sorted(table)]
        for client in published:
            client.set_protos(copy.deepcopy(table))
    shown = pixels(7, 99)
    batch = {"pixels": shown, "labels": np.zeros(7, np.int64)}
    distances, found = [], []
    for client, own in zip(published, personal, strict=True):
        features = client.model.base(as_images(shown))
        columns = [(features - table[label]).square().mean(1) for label in range(CLASSES)]
        distances.append(torch.stack(columns, 1))
        found.append(-method.predict(ClientView(state, (), own), batch, method.classes))
    yield "distances to prototypes", distances, found


GH = Case(("clientgh", "clientGH"), "fedgh", {"server_rate": 0.2, "server_batch": None})


def fedgh(folder: Path) -> Iterator[Pair]:
    """Networks, and the head that the server trains on all clients' class means."""
    published, method, data = clients_of(GH), method_of(GH), examples()
    kind = importlib.import_module("flcore.servers.servergh").FedGH
    server = kind.__new__(kind)
    server.head, server.device, server.batch_size = copy.deepcopy(network().head), "cpu", 64
    server.opt_h = torch.optim.SGD(server.head.parameters(), lr=0.2)
    server.CEloss, server.selected_clients = nn.CrossEntropyLoss(), published
    state = {n: v for n, v in whole(published[0]).items() if n.startswith("head")}
    state = {**method.init_server(rng()), **state}
    personal = [{**method.init_client(rng(), rng()), **whole(client)} for client in published]
    for number in (1, 2):
        for client in published:
            client.set_parameters(server.head)
            client.train()
            client.collect_protos()
        updates = updated(method, state, personal, data)
        names = sorted(name for name in personal[0] if name in whole(published[0]))
        yield (
            f"clients' networks after round {number}",
            [[whole(client)[name] for name in names] for client in published],
            [[own[name] for name in names] for own in personal],
        )
        server.receive_protos()
        server.train_head()
        state = method.server_update(state, learned(method, updates, (0.6, 0.4)), (), rng())
        theirs = [server.head.weight, server.head.bias]
        yield (
            f"the server's head after round {number}",
            theirs,
            [
                state["head.weight"],
                state["head.bias"],
            ],
        )


def gpfl(folder: Path) -> Iterator[Pair]:
    """One client's step: without guidance for a batch, and with it for a single image.

    Its guidance has the norm of a batch's differences, ours each example's; they agree for one
    image. Conditions are of the broadcast embeddings on both sides.
    """
    server = importlib.import_module("flcore.servers.servergpfl")
    for labels, weight in ((LABELS[:1], 0.0), (((2,),), 0.01)):
        case = Case(("clientgpfl", "clientGPFL"), "gpfl", {"guidance_weight": weight})
        torch.manual_seed(SEED)
        extra = {"GCE": server.GCE(512, CLASSES), "CoV": server.CoV(512)}
        (client,) = clients_of(case, labels, lamda=weight, mu=0.1, **extra)
        # Twice, as its conditions are of the embeddings before the ones that it is given.
        client.set_GCE(client.GCE)
        method = method_of(case)

        def published(client: Any = client) -> dict[str, NDArray[np.float32]]:
            valve = {
                f"valve.{name}{ours_}.{kind}": value
                for name in ("gamma", "beta")
                for number, ours_ in ((0, ""), (2, ".norm"))
                for kind, value in getattr(client.CoV, f"Conditional_{name}")[
                    number
                ].named_parameters()
            }
            valve["embedding"] = client.GCE.embedding.weight
            return {**whole(client), **{n: v.detach().numpy().copy() for n, v in valve.items()}}

        start = published()
        names = sorted(start)
        # Weight decay of the head and the extractor is none on both sides.
        client.optimizer = torch.optim.SGD(client.model.parameters(), lr=RATE)
        client.train()
        held = {n: v for n, v in start.items() if n in method.shared_spec()}
        personal = {
            **method.init_client(rng(), rng()),
            **{n: start[n] for n in start if n not in held},
        }
        data = examples(labels)[0]
        result = method.client_update(
            ClientView(held, (), personal), data, trainer(EPOCHS, 16), rng()
        )
        after = {**{n: held[n] + v for n, v in result.update.items()}, **result.personal}
        told = "with guidance, one image" if weight else "without guidance"
        theirs = published()
        yield (
            f"change of a client's network, {told}",
            [theirs[name] - start[name] for name in names],
            [after[name] - start[name] for name in names],
        )


def dbe(folder: Path) -> Iterator[Pair]:
    """A client's round under a consensus; its kappa is half as strong as ours, as it halves."""
    case = Case(("clientdbe", "clientDBE"), "dbe", {"mean_weight": 5.0, "momentum": 1.0})
    published, method = clients_of(case, kl_weight=10.0, momentum=1.0), method_of(case)
    consensus = rng(8).random(512).astype(np.float32)
    start = {**method.init_server(rng()), **whole(published[0])}
    start |= {"consensus": consensus, "has_consensus": np.ones(1, np.int64)}
    theirs, found, logits, own_logits = [], [], [], []
    shown = pixels(7, 99)
    batch = {"pixels": shown, "labels": np.zeros(7, np.int64)}
    for client, data in zip(published, examples(), strict=True):
        client.global_mean = torch.from_numpy(consensus)
        client.train()
        view = ClientView(start, (), method.init_client(rng(), rng()))
        result = method.client_update(view, data, trainer(EPOCHS, 16), rng())
        after = {n: start[n] + v for n, v in result.update.items() if n in start}
        after |= result.personal
        now = {**whole(client), "client_mean": client.client_mean.detach().numpy()}
        first = {**start, "client_mean": np.zeros(512, np.float32)}
        theirs.append({n: v - first[n] for n, v in now.items()})
        found.append({n: after[n] - first[n] for n in now})
        features = client.model.base(as_images(shown))
        logits.append(client.model.head(features + client.client_mean))
        own = ClientView({**start, **after}, (), result.personal)
        own_logits.append(method.predict(own, batch, method.classes))
    yield "change of clients' networks and shifts", theirs, found
    yield "logits after training", logits, own_logits


def fedpcl(folder: Path) -> Iterator[Pair]:
    """Clients' networks after a round, and the mean of clients' class means.

    The second term of its loss, which ours lacks, is given the global prototypes too, so that it
    equals the first; ours takes twice the step.
    """
    case = Case(("clientpcl", "clientPCL"), "fedpcl", {"temperature": 0.5})
    published, method = clients_of(case, tau=0.5), method_of(case)
    combine = importlib.import_module("flcore.servers.serverpcl").proto_aggregation
    table = rng(4).random((CLASSES, 512)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    known = {label: torch.from_numpy(row) for label, row in enumerate(table)}
    state = {"table": table, "known": np.ones(CLASSES, np.float32)}
    theirs, found, updates = [], [], []
    for client, data in zip(published, examples(), strict=True):
        client.model.head = nn.Identity()
        start = {n: v for n, v in whole(client).items() if n.startswith("extractor")}
        client.protos = client.global_protos = known
        client.client_protos_set = [known]
        client.train()
        view = ClientView(state, (), {**method.init_client(rng(), rng()), **start})
        result = method.client_update(view, data, trainer(EPOCHS, 16, 2 * RATE), rng())
        updates.append(result.update)
        now = whole(client)
        theirs.append({n: now[n] - start[n] for n in start})
        found.append({n: result.personal[n] - start[n] for n in start})
    yield "change of clients' networks", theirs, found
    means = combine([client.protos for client in published])
    state = method.server_update(state, learned(method, updates, (0.6, 0.4)), (), rng())
    rows = [means[label] for label in sorted(means)]
    yield "the server's prototypes", rows, state["table"][sorted(means)]


def fedcp(folder: Path) -> Iterator[Pair]:
    """A client's round of extractor, policy and personal head, and the head that it sends.

    Its Gumbel noise is off, as it is in ours.
    """
    kind = importlib.import_module("flcore.servers.servercp").ConditionalSelection
    torch.manual_seed(SEED)
    policy = kind(512, 512)
    case = Case(("clientcp", "clientCP"), "fedcp", {"mmd_weight": 5.0, "gumbel": False})
    (client,) = clients_of(case, LABELS[:1], lamda=5.0, also={"ConditionalSelection": policy})
    method, layers = method_of(case), {name: f"model.{at}" for name, at in LAYERS.items()}
    inside = client.model.gate.cs.fc
    # A generic head of its own, so that the two heads differ.
    with torch.no_grad():
        client.model.head_g.weight.mul_(0.5)

    def published() -> dict[str, NDArray[np.float32]]:
        own = {"policy": inside[0], "policy_norm": inside[1], "generic": client.model.head_g}
        parts = {f"{n}.{k}": v for n, layer in own.items() for k, v in layer.named_parameters()}
        return {
            **arrays(client.model, layers),
            **{name: value.detach().numpy().copy() for name, value in parts.items()},
        }

    start = published()
    client.set_head_g(copy.deepcopy(client.model.head_g))
    held = {name: start[name] for name in method.shared_spec()}
    own = {name: start[name] for name in method.personal_layers}
    with patch("torch.nn.functional.gumbel_softmax", lambda rows, dim, **given: rows.softmax(dim)):
        client.train_cs_model()
    result = method.client_update(
        ClientView(held, (), own), examples()[0], trainer(EPOCHS, 16), rng()
    )
    now = published()
    after = {n: held[n] + v for n, v in result.update.items()} | dict(result.personal)
    names = [name for name in start if not name.startswith("generic")]
    yield (
        "change of a client's network",
        [now[name] - start[name] for name in names],
        [after[name] - start[name] for name in names],
    )
    client.generate_upload_head()
    # The server's step is half of the difference that a client sends.
    sent = {n: held[n] + 0.5 * result.update[n] for n in held if n.startswith("generic")}
    yield "the generic head after one client", {n: published()[n] for n in sent}, sent
