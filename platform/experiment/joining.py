"""A data holder's process: from an offer to a client of that run, with its own data and store.

The coordinator sends a configuration, which the closed schema checks. This machine's own places
replace every place that the configuration names.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from methods import MethodError
from platform.config import RunConfig, parse_config
from platform.config.sections import ModelConfig
from platform.data.cache import cache_folder
from platform.data.loaders.own_images import load_holding, only_client
from platform.data.loading import TaskData, task_of_one, task_without_images
from platform.data.partition import TEST_SHARE, ClientIndices
from platform.data.preparing import (
    cached_encoders,
    frozen_model,
    is_public,
    plain_encoders,
    prepared_batch,
)
from platform.errors import ConfigError, Declined, ProtocolError, UnknownRun
from platform.experiment.dealing import own_examples
from platform.experiment.environment import resolve_device
from platform.experiment.exported_models import TrainedModel
from platform.experiment.federating import LOCAL_FOLDER, build_terms, section_of
from platform.experiment.planning import Surroundings
from platform.experiment.simulation import randomness, trainer_factory
from platform.holder.checking import look_at_images
from platform.holder.serving import Host, Serving
from platform.holder.settings import (
    HolderSettings,
    own_hints,
    own_identity,
    own_limits,
    require_within,
)
from platform.holder.store import Keeping, erase_run, only_process_with
from platform.parties.client import Client
from platform.parties.profile import ClientProfile, RunNames, Safeguards, expectations_of, view_of
from platform.parties.scoring import LOCAL, VALIDATION, EvaluationSet, MeasuredSets, accuracy
from platform.rounds.observing import SilentObserver
from platform.rounds.run import RunTerms
from platform.wire.outside_rounds import Offer, decode_parting
from privacy.secure_aggregation import Credentials
from privacy.transparency import NoteKey
from storage import ClientStore, open_client_store

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

_SPLIT: Final = b"which records test and validate"
"""The message that is hashed with the store's secret; handles and receipts hash others."""


def host_of(
    settings: HolderSettings, surroundings: Surroundings, tell: Callable[[str], None]
) -> Host:
    """Return the host that answers for a data holder; its store is opened, or made at first."""
    # The owner learns of a faulty key before a coordinator counts on this client.
    own_identity(settings)
    store = open_client_store(settings.store_file)
    consider = partial(admit, settings, surroundings=surroundings)
    join = partial(client_of, settings, store, surroundings=surroundings, tell=tell)
    keeping = Keeping(settings.storage)
    erase = partial(erase_run, keeping, store)
    for run_id in keeping.runs("left"):
        # A process that left may have been killed before it erased everything.
        erase(run_id)
    return Host(folder=settings.storage, consider=consider, join=join, tell=tell, erase=erase)


def serve_holder(
    settings: HolderSettings,
    surroundings: Surroundings,
    tell: Callable[[str], None],
    ended: threading.Event,
) -> None:
    """Answer at a data holder's socket until told to end.

    `tell` takes lines for the process's own log.

    Raises:
        ConfigError: If the socket is taken, another process has the store, or the client is in no
            run yet and a check finds faults in its images.
    """
    with only_process_with(settings):
        if not Keeping(settings.storage).going_on():
            # If a run goes on, an end here would tell the coordinator about the folder.
            look_at_images(settings)
        host, path = host_of(settings, surroundings, tell), settings.socket_path
        serving = Serving(name=settings.name, path=path, handler=host.handle, tell=tell)
        serving.until(ended, started=lambda: tell(f"{settings.name} listens at {path}"))


@dataclass(frozen=True)
class OwnModel:
    """A data holder's own model of a run that is over, and the holder's own test images."""

    model: TrainedModel
    test: EvaluationSet

    @property
    def tested(self) -> int:
        """Number of its own test images."""
        return self.test.examples.num_examples

    def accuracy(self) -> float | None:
        """Return accuracy on its own test images, in [0, 1]; None without any."""
        model = self.model
        return accuracy(model.method, model.view, self.test) if self.tested else None


def own_model(settings: HolderSettings, run_id: str, surroundings: Surroundings) -> OwnModel:
    """Return the model that a data holder has after a run that has ended here."""
    if not settings.store_file.exists():
        # A mere question makes no store.
        raise UnknownRun(
            f"RUN: no run {run_id!r} has ended here; valid: one that has, see `budget`"
        )
    host = host_of(settings, surroundings, lambda line: None)
    parting, client = decode_parting(host.parting(run_id)), host.client_of(run_id)
    profile, attempt = client.profile, parting.envelope
    state = client.state((attempt.round_number, attempt.attempt))
    method, test = profile.method, profile.measured.named(LOCAL)
    config = own_config(settings, host.offer(run_id).config, surroundings)
    backbone = frozen_model(config.task.model, resolve_device(config.device), config.plugins)
    plain = plain_encoders(backbone, method.pixel_size)
    model = TrainedModel(
        method=method,
        view=view_of(parting.broadcast, state),
        classes=test.classes,
        batch_of=lambda examples: prepared_batch(method, examples, plain),
    )
    return OwnModel(model, test)


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """An offered run as this machine would run it, with its own limits: all but the images."""

    config: RunConfig
    terms: RunTerms
    device: str
    backbone: Backbone | None
    safeguards: Safeguards


def admit(settings: HolderSettings, offer: Offer, *, surroundings: Surroundings) -> Admitted:
    """Decide whether a data holder takes part in an offered run.

    The offer, the settings, and public facts of this program and its model decide. The folder of
    images is not read here, so no offer learns anything about it.

    Raises:
        Declined: If the run would pass the holder's own limits, or the two sides differ.
        ConfigError: If it cannot be run here; the message may name this machine's own files.
        ProtocolError: If the offer is not a configuration.
    """
    config = own_config(settings, offer.config, surroundings)
    require_within(settings, config)
    known = task_without_images(section_of(config).classes)
    terms, facts, device, backbone = build_terms(config, known, surroundings)
    named = {
        "version": "the program's version",
        "model": "task.model: the weights, or how images are prepared for them",
        "method": "method.name, or another key that names a plug-in: its code",
    }
    mine, theirs = dataclasses.asdict(facts), dataclasses.asdict(offer.facts)
    if differing := [name for name in named if mine[name] != theirs[name]]:
        raise Declined(
            tuple(
                f"{named[name]} is {mine[name] or 'none'} here and {theirs[name] or 'none'} at the "
                "coordinator"
                for name in differing
            )
        )
    masks, credentials = terms.protection.terms, None
    if masks is not None and masks.active:
        own = own_identity(settings)
        credentials = None if own is None else Credentials(*own, masks.corrupt / masks.clients)
    expected = expectations_of(
        terms.method,
        rounds=terms.last_round,
        clients=config.task.clients,
        generations=config.pool.generations,
    )
    safeguards = Safeguards(
        limits=own_limits(settings, config),
        credentials=credentials,
        expected=expected,
        log_key=None if settings.log_key is None else NoteKey.decode(settings.log_key),
    )
    return Admitted(
        config=config, terms=terms, device=device, backbone=backbone, safeguards=safeguards
    )


def client_of(
    settings: HolderSettings,
    store: ClientStore,
    offer: Offer,
    *,
    surroundings: Surroundings,
    tell: Callable[[str], None],
) -> Client:
    """Return the client of an offered run, or decline as `admit` does.

    The folder's content is never a reason; `tell` takes the names of images that are left out, for
    the process's own log.
    """
    run, run_id = admit(settings, offer, surroundings=surroundings), offer.envelope.run_id
    config, method = run.config, run.terms.method
    data, left_out = _own_task(settings, store, config)
    telling, cache, size = SilentObserver().preparing, cache_folder(config), method.pixel_size
    cached = cached_encoders(run.backbone, cache, telling, size)
    try:
        plain = plain_encoders(run.backbone, size)
        train, test, validation, unread = own_examples(data, method, cached, plain)
    except MethodError as error:
        raise ConfigError(str(error)) from error
    for line in (left_out := (*left_out, *unread)):
        tell(f"run {run_id}: left out: {line}")
    if left_out:
        store.add_failure(
            run_id, 0, 0, reason="images were left out; the log of that time names them"
        )
    sets = {LOCAL: test, VALIDATION: validation}
    coins = randomness(config)
    if config.mechanism.facts.claims:
        # The initialisation is public. Batches are the client's secret, because the guarantee may
        # rest on that.
        coins = dataclasses.replace(coins, batches=secrets.randbits(63), noise=0)
    profile = ClientProfile(
        name=settings.name,
        run=RunNames(run_id),
        method=method,
        data=train,
        protection=run.terms.protection,
        randomness=coins,
        safeguards=run.safeguards,
        measured=MeasuredSets({n: EvaluationSet(found, data.classes) for n, found in sets.items()}),
    )
    return Client(profile, store, trainer_factory(config, run.device, run.terms.protection))


def _own_task(
    settings: HolderSettings, store: ClientStore, config: RunConfig
) -> tuple[TaskData, tuple[str, ...]]:
    """Return the task with the holder's own images, and a sentence on each that is left out.

    The run was accepted before, and a client must answer whatever its images are. So an unusable
    folder counts as an empty one.
    """
    classes, share = section_of(config).classes, config.task.validation_share
    # If no folder says which images test or validate, this secret key decides alike for all runs.
    key = hmac.digest(store.identity.handle_secret, _SPLIT, "sha256")
    try:
        images, left_out = load_holding(
            settings.data.root, classes, test_share=TEST_SHARE, key=key, hints=own_hints(settings)
        )
        rows = only_client(images, validation_share=share, key=key)
    # Errors of any kind: a person who writes into the folder could choose the kind.
    except Exception as error:
        nothing, none = task_without_images(classes).dataset, np.zeros(0, np.int64)
        return task_of_one(nothing, ClientIndices(none, none)), (f"all images: {error}",)
    return task_of_one(images, rows), left_out


def own_config(settings: HolderSettings, offered: bytes, surroundings: Surroundings) -> RunConfig:
    """Return an offered configuration with this machine's own places in it.

    An offer with a value that is not valid here, or for other clients, is declined.
    """
    try:
        tree = json.loads(offered)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("message: the configuration does not parse") from error
    if not isinstance(tree, dict):
        raise ProtocolError("message: it holds no valid configuration")
    tree = {
        **tree,
        "storage": {"url": f"sqlite:///{settings.storage}/none.db"},
        "device": settings.device,
        "threads": settings.threads or 1,
    }
    if isinstance(task := tree.get("task"), dict) and isinstance(task.get("model"), dict):
        tree["task"] = {**task, "model": own_weights(settings, task["model"])}
    enrolment = None if settings.enrolment is None else str(settings.enrolment)
    section = tree.get("secure_aggregation")
    if isinstance(section, dict) and section.get("adversary") == "active":
        tree["secure_aggregation"] = {**section, "enrolment": enrolment}
    try:
        config = parse_config(tree, sources=surroundings.sources)
    except ConfigError as error:
        raise Declined((str(error),)) from error
    if config.federation is None or settings.name not in config.federation.clients:
        raise Declined((f"federation.clients: {settings.name} is not among them",))
    return config


def own_weights(settings: HolderSettings, offered: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model that is loaded here: a public one, or the holder's own copy.

    No message can name a file or an address that would be read.
    """
    name, tag = offered.get("name"), offered.get("pretrained")
    if not isinstance(name, str) or not isinstance(tag, str | None):
        raise ProtocolError("message: the configuration names no model")
    if is_public(ModelConfig(name=name, pretrained=tag)):
        return offered
    if settings.weights is None or tag is not None or (":" in name and name != LOCAL_FOLDER):
        raise Declined(
            (
                "task.model: its weights are neither those that come with the program nor one of "
                "open_clip's tags; valid here: a copy of them, named in weights",
            )
        )
    if name == LOCAL_FOLDER:
        return {"name": f"{LOCAL_FOLDER}{settings.weights}", "pretrained": None}
    return {"name": name, "pretrained": str(settings.weights)}
