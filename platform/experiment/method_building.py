"""Builds a method from a configuration's method section; its own `Config` validates the options.

Each method declares when its options do nothing. The run reports such options and never refuses
them, because a sweep, an override or a preset may leave them behind. The run records the code of a
method from outside, and must keep to that code when it is resumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from methods import (
    Arrays,
    ClientView,
    CountsUpTo,
    CountsWith,
    Examples,
    Method,
    MethodError,
    Registry,
    Task,
    Visibility,
)
from methods.interface.at_home import at_home
from methods.interface.groups import in_groups
from methods.interface.method import marks_of
from methods.interface.server_optimizers import WithServerOptimizer
from methods.interface.subspace import in_subspace, origin_of
from methods.plugins import Guarded, calling
from platform.config import MethodConfig, RunConfig
from platform.config.loading import options_of, server_optimizer_of, validate_options
from platform.config.run import ROLES, name_in, origins_of, recorded_origins
from platform.data.catalogue import require_modality
from platform.data.loading import TaskData
from platform.data.preparing import plain_encoders, prepared_batch
from platform.errors import ConfigError, RunStopped
from platform.experiment.evaluation import EvaluationPlan
from platform.mechanisms import Mechanism
from privacy.training import LocalTrainer, Objective, TrainingPlan, per_sample_gradients

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

PROVIDED_NEEDS = frozenset({"features", "tokens", "pixels", "text", "domains"})


def options_of_others(registry: Registry, config: MethodConfig) -> dict[str, Any]:
    """Return the options that decide the rounds: another method, its options, server optimiser.

    Each is a plain value, with the defaults of keys that a section leaves out.
    """
    options: Any = validate_options(registry, config)
    found: dict[str, Any] = {"server_optimizer": config.server_optimizer}
    for key, mark in options_of(options):
        named, section = getattr(options, mark.option), getattr(options, key)
        found |= {mark.option: named, key: dataclasses.asdict(section)}
    return found


def task_of(config: RunConfig, data: TaskData, backbone: Backbone | None, device: str) -> Task:
    """Return the task of the run's method."""
    decoupled = config.privacy.personal == "decoupled"
    clients = config.task.clients
    return Task(data.classes, data.domain_names, clients, backbone, decoupled, device)


PublicImages = Callable[[Method], Examples]
"""Reads the images that are declared public, as a method keeps them."""


def method_on(
    data: TaskData, registry: Registry, config: RunConfig, task: Task, *, public: PublicImages
) -> Method:
    """Build the configured method for a run's data; examples of another kind are refused."""
    method, name = build_method(registry, config, task, public), config.method.name
    require_modality(data.dataset, name, method.needs, registry.info(name).options)
    return method


def build_method(
    registry: Registry, config: RunConfig, task: Task, public: PublicImages | None = None
) -> Method:
    """Build the configured method, or refuse an option or its combination with the rest.

    `public` reads public images, where these give the directions of a subspace.
    """
    options: Any = validate_options(registry, config.method)
    optimizer, privacy, pool = server_optimizer_of(config.method), config.privacy, config.pool
    try:
        source = registry.outside(config.method.name)
        if source is None:
            method = registry.build(config.method.name, options, task)
        else:
            with calling(source, "build"):
                built = registry.build(config.method.name, options, task)
            method = cast("Method", Guarded(built, source))
        if optimizer is not None:
            if not method.averaged:
                raise ConfigError(
                    f"method.server_optimizer: takes the place of the server's step along a mean "
                    f"change, which {config.method.name} does not make; valid: null"
                )
            method = WithServerOptimizer(method, optimizer)
        if privacy.subspace != "none" and privacy.rank is not None:
            fingerprint = None if task.backbone is None else task.backbone.fingerprint
            origin = origin_of(fingerprint, task.classes)
            images = None if public is None else partial(public, method)
            method = in_subspace(
                method, privacy.subspace, privacy.rank, origin=origin, public=images
            )
        if pool.kind == "groups" and pool.experts is not None:
            method = in_groups(method, pool.experts, task.classes, split=pool.empty == "split")
        if config.evaluation.at_home != "shared":
            method = at_home(method, config.evaluation.at_home, task)
    except MethodError as error:
        raise ConfigError(str(error)) from error
    others = [f"method.{m.option} = {getattr(options, m.option)}" for _, m in options_of(options)]
    _require_fitting(method, config, " with ".join((config.method.name, *others)))
    if source is not None and privacy.per_sample_clipping_norm is not None:
        _try_single_examples(method, task)
    return method


class _SingleExamples(LocalTrainer):
    """Trains nothing, and tries whether each example has a loss and a gradient of its own."""

    def fit(self, objective: Objective, parameters: Arrays, examples: Arrays, **how: Any) -> Any:
        """Return the parameters; `ConfigError` if an example's loss is not its own."""
        tensors = {n: torch.tensor(a, device=self.device) for n, a in parameters.items()}
        batch = {n: torch.tensor(a, device=self.device) for n, a in examples.items()}
        trained = [name for group in how["groups"] for name in group.names]
        alone = per_sample_gradients(objective, tensors, batch, trained=trained).losses
        with torch.no_grad():
            together = objective.losses(tensors, objective.encode(tensors), batch)
        if not torch.allclose(alone, together, rtol=1e-3, atol=1e-4):
            raise ConfigError(
                "method.name: its loss of an example is not finite, or another one alone than in a "
                "batch; valid: a loss of its own example, or a mechanism that clips uploads alone"
            )
        return dict(parameters)


def _try_single_examples(method: Method, task: Task) -> None:
    """Train once on drawn examples: the refusal says nothing of data, and comes before a charge."""
    rng, model = np.random.default_rng(0), task.backbone
    side = method.pixel_size or (8 if model is None else model.image_size)
    drawn: Any = rng.integers(0, 256, (3, side, side, 3), np.uint8)
    if "text" in method.needs:
        drawn = ("one", "two words", "and three words")
    arrays = prepared_batch(method, drawn, plain_encoders(model, method.pixel_size))
    known = {"labels": np.arange(3) % len(task.classes), "domains": np.zeros(3, np.int64)}
    view = ClientView(method.broadcast(method.init_server(rng)), (), method.init_client(rng, rng))
    trainer = _SingleExamples(
        TrainingPlan(local_steps=1, batch_size=3, learning_rate=0.1), device=task.device
    )
    method.client_update(view, Examples({**arrays, **known}), trainer, rng)


def _require_fitting(method: Method, config: RunConfig, name: str) -> None:
    mechanism = config.privacy.mechanism
    if not is_admitted(method, config.mechanism):
        admitted = [found.name for found in config.mechanisms if is_admitted(method, found)]
        individual = method.visibility is Visibility.PER_CLIENT
        why = ", which needs each client's own update at the server" if individual else ""
        raise ConfigError(
            f"privacy.mechanism: {mechanism!r} is not admitted by {name}{why}; valid: "
            f"{', '.join(sorted(admitted))}"
        )
    missing = method.needs - PROVIDED_NEEDS
    if missing:
        raise ConfigError(
            f"method.name: {name} needs {', '.join(sorted(missing))}, which the data layer does "
            f"not provide; provided: {', '.join(sorted(PROVIDED_NEEDS))}"
        )
    encoded = method.needs & {"features", "tokens"}
    if method.pixel_size is None:
        encoded |= method.needs & {"pixels"}
    if config.task.model is None and encoded:
        raise ConfigError(
            f"task.model: null gives no {' or '.join(sorted(encoded))}, which {config.method.name} "
            "needs; valid: the name of a CLIP model as task.model.name"
        )
    norm = config.privacy.per_sample_clipping_norm
    if method.couples_examples and norm is not None:
        raise ConfigError(
            f"privacy.per_sample_clipping_norm: {norm} bounds the gradient of one example alone, "
            f"which {name} does not have, as its loss joins the examples of a batch; valid: null"
        )
    if method.visibility is not Visibility.PER_CLIENT:
        return
    policy = method.pool_policy()
    sent = {} if policy is None else method.broadcast(method.init_server(np.random.default_rng(0)))
    # If the two share a tensor, pool entries are differences to the broadcast.
    if policy is not None and not policy.spec.keys().isdisjoint(sent):
        raise ConfigError(
            f"method.name: {name} has a broadcast of its own for each client and a pool, whose "
            "entries are differences to one broadcast; valid: one of the two"
        )
    if config.secure_aggregation.enabled:
        raise ConfigError(
            f"secure_aggregation.enabled: true hides each client's update, which {name} needs; "
            "valid: false"
        )


def is_admitted(method: Method, mechanism: Mechanism) -> bool:
    """Return whether a mechanism can protect a method's releases, by their declarations."""
    unit = mechanism.facts.unit
    # The server may see an upload that has all the noise itself, or if nothing is claimed.
    if method.visibility is Visibility.PER_CLIENT and not mechanism.facts.noises_alone:
        return False
    return unit is None or unit in method.units


def require_classes(method: Method, evaluation: EvaluationPlan) -> None:
    """Try one prediction of all classes of the protocol before training."""
    if not evaluation.common:
        return
    start = method.init_server(np.random.default_rng(0))
    personal = method.init_client(np.random.default_rng(0), np.random.default_rng(1))
    client = next(iter(evaluation.own))
    for name, test in evaluation.common.items():
        first = {n: a[:1] for n, a in test.examples.arrays.items() if n != "labels"}
        try:
            method.predict(
                ClientView(method.broadcast(start, client), (), personal), first, test.classes
            )
        except MethodError as error:
            raise ConfigError(
                f"evaluation.protocol: {evaluation.protocol} measures the classes of {name!r}, "
                f"which the method refuses: {error}"
            ) from error


def void_options(config: RunConfig, options: Any, section: str = "method") -> Iterator[str]:
    """Yield one sentence for each option that does nothing, or exceeds the run's use."""
    said: set[str] = set()
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for key, mark in marks_of(type(options)):
        where, value = f"{section}.{key}", getattr(options, key)
        if isinstance(mark, CountsUpTo):
            most = _of_run(config, mark.key)
            if value is not None and value > most:
                yield (
                    f"{where}: {value} is more than {mark.key} = {most}, so {mark.so}; it takes "
                    f"{most} or less"
                )
        if isinstance(mark, CountsWith) and key not in said and value != defaults[key]:
            # The option that this one counts with, as the configuration names it, and its value.
            if "." in mark.option:
                named, other = mark.option, _of_run(config, mark.option)
            else:
                named, other = f"{section}.{mark.option}", getattr(options, mark.option)
            if not mark.holds(other):
                said.add(key)
                needs = f"{named} = {other}; it takes {mark.wanted}"
                yield f"{where}: {value} does nothing with {needs}"
    for field in dataclasses.fields(options):
        if dataclasses.is_dataclass(nested := getattr(options, field.name)):
            yield from void_options(config, nested, f"{section}.{field.name}")


def _of_run(config: RunConfig, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def require_same_code(
    run_id: str, tree: Mapping[str, Any], started: Mapping[str, Any], registry: Registry
) -> None:
    """Check, before any of its code runs, that each plug-in has the code of the run's start.

    `tree` is the configuration, and `started` the detail of the audit entry of the run's start.
    `ConfigError` if one is missing; `RunStopped` if its code is another.
    """
    plugins, recorded = registry.plugins, recorded_origins(started)
    now_here = origins_of(tree, plugins)
    for role, (kind, _) in ROLES.items():
        name, then, now = name_in(tree, role), recorded.get(role), now_here.get(role)
        gone = kind == "method" and name is not None and name not in registry.available()
        if gone or (then is not None and now is None):
            where = "" if then is None else f", from the {then.get('kind')} {then.get('where')}"
            raise ConfigError(
                f"run {run_id}: its {kind} {name!r}{where}, is not here; valid is that file's "
                "folder of plug-ins as --plugins, that package installed, or from Python that "
                "object, as in plugins=[sotto.averaged(network)]"
            )
        # A folder may have moved; a package's version speaks for its other files.
        if _code(now) != _code(then):
            raise RunStopped(
                f"run {run_id}: its {kind} {name!r} is {_told(now)} now and was {_told(then)} when "
                "the run was started; put that file back or start a new run"
            )


def _code(document: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if document is None:
        return ()
    is_folder = document.get("kind") == "folder"
    where = None if is_folder else document.get("where")
    return document.get("kind"), where, document.get("sha256")


def _told(document: Mapping[str, Any] | None) -> str:
    if document is None:
        return "of Sotto"
    digest = str(document.get("sha256"))[:16]
    return f"of the {document.get('kind')} {document.get('where')} with SHA-256 {digest}..."
