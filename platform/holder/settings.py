"""A data holder's settings, its limits on runs, and its own account of its spending.

The settings are one YAML file on the holder's own machine, read like a run's configuration: plain
data, a frozen tree of sections, unknown keys refused. No coordinator ever sees the file. Relative
paths count from the file's own folder.

Against a coordinator that may lie, the holder has its own key, enrolled under its name. The key was
made on this machine and stays on it. A key that others may read is no secret, so the holder refuses
it before it signs anything with it.

An offer is a whole configuration. So the holder decides about all fixed settings before it builds
anything of the run. The configuration leaves some costs open, such as the cost of a noise
multiplier. The client prices these round by round from its own ledger, by the same limits.

The account prices the spending exactly as the client does before it answers an invitation: at the
holder's delta, against the strongest adversary against which the mechanisms make a claim. If no
accountant can compose the ledger, the account gives the reason in place of a number.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from methods import BUILT_IN_METHODS, Registry
from platform.config import RunConfig, read_mapping
from platform.config.files import is_file
from platform.config.loading import validated
from platform.config.sections import ClientName, Clients, Layout, Positive, Section, Threads
from platform.data.catalogue import Hints
from platform.errors import ConfigError, Declined
from platform.mechanisms import BUILT_IN, KNOWN
from platform.parties.identities import read_enrolment, read_key, require_enrolled
from platform.protection.charging import Limits, as_releases
from platform.protection.sums import terms_of_sums
from privacy import Relation, RunningLedger, UnknownMechanism, UnsupportedEvent
from privacy.secure_aggregation import Enrolment, Identity
from privacy.transparency import NoteKey
from storage import ClientStore, LedgerRow

FOLDER: Final = "folder"
"""The validation context's name for the folder of the settings' file."""
STORE: Final = "client.db"
SOCKET: Final = "client.sock"
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def _placed(value: Any, info: ValidationInfo) -> Path:
    """Return a path of the file: "~" is the home folder, other paths count from the file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is not valid; it must be a path")
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{value!r} is in no known home folder; it must be a path") from error
    return Path((info.context or {})[FOLDER], path)


def _known_key(text: str | None) -> str | None:
    if text is not None:
        try:
            NoteKey.decode(text)
        except ValueError as error:
            raise ValueError(f"{error}; valid: NAME+ID+KEY as `audit head` states it") from error
    return text


def _known_methods(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return _require_known(names, Registry().available())


def _known_mechanisms(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return _require_known(names, KNOWN.names)


def _require_known(names: tuple[str, ...] | None, valid: tuple[str, ...]) -> tuple[str, ...] | None:
    # A misspelt name would decline runs that the holder wants to allow.
    for name in names or ():
        if name not in valid:
            raise ValueError(f"{name!r} is unknown; valid: {', '.join(valid)}")
    return names


Place = Annotated[Path, BeforeValidator(_placed)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class DataSettings(Section):
    """The images that the holder trains on."""

    root: Place
    """Folder of its images; nothing of it leaves this machine."""
    layout: Layout | None = None
    """The layout of the folder, as in `task.layout`; needed if it could be read in two ways. null:
    the program recognises the layout.
    """
    class_names: Place | None = None
    """File of words for the classes, as `task.class_names`; null: one beside the images, if any."""
    classes: Names | None = None
    """The federation's public class list, in its order: the holder declines a run with another
    list, and a class folder that is not on it fails the check. null accepts every list, and leaves
    out the images of classes that are not on it.
    """


class OwnLimits(Section):
    """The most that the holder allows a run; a coordinator can only ask for less."""

    epsilon_total: Positive | None = 20.0
    """Epsilon of all runs on these data together, as the store has them; null: no bound."""
    epsilon_per_run: Positive | None = 8.0
    """Epsilon of a single run; null: no bound."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """Delta of both epsilons; the holder declines a run with a larger `privacy.target_delta`."""
    smallest_cohort: Clients = 3
    """Fewest clients that are invited to a round: `cohort.size`, or `cohort.minimum` of `poisson`
    cohorts, whose size is random.
    """
    smallest_sum: Clients = 3
    """Fewest uploads in any sum that is opened. Without secure aggregation the coordinator sees
    each upload alone, which is 1. Entries of a pool are single by nature: only epsilon bounds them.
    """
    methods: Annotated[Names | None, AfterValidator(_known_methods)] = None
    """Methods that may run; null: all of this package, none from outside."""
    mechanisms: Annotated[Names | None, AfterValidator(_known_mechanisms)] = None
    """Privacy mechanisms that may run; null: all that protect against the coordinator too. `none`
    and `central_noise` have to be named; `none` has no finite epsilon, so it needs both epsilons
    to be null.
    """
    relations: Annotated[tuple[Relation, ...] | None, Field(min_length=1)] = None
    """Relations of neighbouring data sets that epsilon may be about: under `add_or_remove_one` the
    same number takes half the noise. Null: `replace_one`, and the mechanism's usual one.
    """
    adversary: Literal["semi_honest", "active"] = "semi_honest"
    """The coordinator that a secure sum must withstand: `active` declines runs without secure
    aggregation, and sums that withstand only a coordinator that follows the protocol.
    """


class HolderSettings(Section):
    """All settings of a data holder."""

    name: ClientName
    """The client's name in the federation, and in the enrolment."""
    data: DataSettings
    storage: Place
    """Folder of its own store and its socket; made for its owner only."""
    identity: Place | None = None
    """File of its private key, made by `client keys create`; null takes part in runs against a
    semi-honest server only.
    """
    enrolment: Place | None = None
    """The enrolment file, which names each client's key; together with `identity`."""
    socket: Place | None = None
    """The socket for relays; null: `client.sock` in its storage folder."""
    weights: Place | None = None
    """A copy of the frozen model's weights: a checkpoint, or a folder with open_clip's
    configuration. Needed if the weights neither come with the program nor have an open_clip tag.
    """
    log_key: Annotated[str | None, AfterValidator(_known_key)] = None
    """The public key of the coordinator's log, as `audit head` states it and as you heard it from
    its operator in another way; null trusts the first key seen. Needed if that key was lost.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device for training; `auto` takes CUDA if the machine has it."""
    threads: Threads | None = None
    """CPU threads of torch; null: one thread. The run's own number does not count."""
    limits: OwnLimits = OwnLimits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in _problems(self):
            raise ValueError(problem)
        return self

    @property
    def store_file(self) -> Path:
        """Its own store: personal parts, ledger, sessions."""
        return self.storage / STORE

    @property
    def socket_path(self) -> Path:
        """The path of the socket for relays."""
        return self.storage / SOCKET if self.socket is None else self.socket


def load_holder(path: Path) -> HolderSettings:
    """Read a data holder's settings; `ConfigError` names a field, its value and what is valid."""
    if not is_file(path):
        raise ConfigError(
            f"CONFIG: {str(path)!r} is no file; valid: a YAML file such as `example` prints"
        )
    return validated(HolderSettings, read_mapping(path), {FOLDER: path.absolute().parent})


def own_hints(settings: HolderSettings) -> Hints:
    """Return the holder's hints about the folder of its images."""
    return Hints(layout=settings.data.layout, class_names=settings.data.class_names)


def _problems(settings: HolderSettings) -> Iterator[str]:
    if (settings.identity is None) != (settings.enrolment is None):
        absent, given = ("identity", "enrolment")
        if settings.enrolment is None:
            absent, given = given, absent
        yield f"{absent}: is missing and {given} is given; valid: both, or neither"
    limits = settings.limits
    if limits.adversary == "active" and settings.identity is None:
        yield (
            "limits.adversary: active needs identity and enrolment, which say whose keys are "
            "whose; valid: both, or semi_honest"
        )
    bare = [name for name in limits.mechanisms or () if KNOWN.claims_nothing(name)]
    for key in ("epsilon_total", "epsilon_per_run"):
        limit = getattr(limits, key)
        if bare and limit is not None:
            yield (
                f"limits.mechanisms: {bare[0]!r} spends an infinite epsilon, and limits.{key} is "
                f"{limit:g}; valid: without {bare[0]}, or limits.{key}: null"
            )
    # Links are followed; the path need not exist yet.
    root, storage = map(os.path.realpath, (settings.data.root, settings.storage))
    if Path(storage).is_relative_to(root):
        yield (
            f"storage: {str(settings.storage)!r} lies in data.root, where only images belong; "
            "valid: a folder outside of it"
        )


def own_identity(settings: HolderSettings) -> tuple[Identity, Enrolment] | None:
    """Return the holder's key and the enrolment that names it, both checked; None without a key."""
    if settings.identity is None or settings.enrolment is None:
        return None
    identity = private_key(settings.identity)
    known = read_enrolment(settings.enrolment, key="enrolment")
    require_enrolled(known, identity, settings.name, key="identity")
    return identity, known


def private_key(path: Path) -> Identity:
    """Return a private key that only its owner may read, or `ConfigError`."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"identity: {str(path)!r} cannot be read ({error.strerror}); make one with "
            "`sotto client keys create`"
        ) from error
    if mode & OTHERS:
        raise ConfigError(
            f"identity: {str(path)!r} has the permissions {mode:o}, so others may use the key; "
            "valid: 600"
        )
    return read_key(path, key="identity")


ALONE: Final = 1
"""Uploads in the smallest sum that a coordinator sees without secure aggregation."""


def require_within(settings: HolderSettings, config: RunConfig) -> None:
    """Refuse a run that would pass a limit of the holder; `Declined` names all, and both values."""
    reasons = tuple(_reasons(settings, config))
    if reasons:
        raise Declined(reasons)


def own_limits(settings: HolderSettings, config: RunConfig) -> Limits:
    """Return the most that a run may charge the client: the lower limit of both sides.

    The coordinator does not choose the accountant. Delta is the lower of both, so that every
    epsilon counts at least as much as the run says.
    """
    own, section = settings.limits, config.privacy
    of_run, target_key = _less(
        (section.target_epsilon, "privacy.target_epsilon"),
        (own.epsilon_per_run, "limits.epsilon_per_run"),
    )
    of_life, lifetime_key = _less(
        (section.lifetime_budget, "privacy.lifetime_budget"),
        (own.epsilon_total, "limits.epsilon_total"),
    )
    return Limits(
        delta=min(section.target_delta, own.delta),
        accountant="auto",
        target_epsilon=of_run,
        lifetime_budget=of_life,
        mechanisms=config.mechanisms,
        target_key=target_key,
        lifetime_key=lifetime_key,
    )


def _less(
    theirs: tuple[float | None, str], ours: tuple[float | None, str]
) -> tuple[float | None, str]:
    given = [(limit, key) for limit, key in (ours, theirs) if limit is not None]
    return min(given, key=lambda one: one[0]) if given else ours


def _reasons(settings: HolderSettings, config: RunConfig) -> Iterator[str]:
    limits, section = settings.limits, config.privacy
    target = section.target_epsilon
    for key in ("epsilon_per_run", "epsilon_total"):
        limit: float | None = getattr(limits, key)
        if target is not None and limit is not None and target > limit:
            yield f"privacy.target_epsilon: {target:g} is above limits.{key} = {limit:g}"
    if section.target_delta > limits.delta:
        yield (
            f"privacy.target_delta: {section.target_delta:g} is above limits.delta = "
            f"{limits.delta:g}"
        )
    if section.noise_source != "os":
        yield (
            f"privacy.noise_source: {section.noise_source} protects no data: each party that knows "
            "the seed can remove the noise; a data holder accepts os only"
        )
    relations = limits.relations or ("replace_one", config.mechanism.relations[0])
    if config.mechanism.facts.claims and config.relation not in relations:
        yield (
            f"privacy.relation: {config.relation} is not among limits.relations = "
            f"{', '.join(dict.fromkeys(relations))}"
        )
    mechanisms, methods = allowed_mechanisms(limits), limits.methods
    if methods is None:
        methods = BUILT_IN_METHODS.available()
    if section.mechanism not in mechanisms:
        yield (
            f"privacy.mechanism: {section.mechanism} is not among limits.mechanisms = "
            f"{', '.join(mechanisms)}"
        )
    if config.method.name not in methods:
        yield (
            f"method.name: {config.method.name} is not among limits.methods = {', '.join(methods)}"
        )
    key, size = "cohort.size", config.cohort_size
    if config.cohort.sampling == "poisson":
        key, size = "cohort.minimum", config.cohort.minimum
    if size < limits.smallest_cohort:
        yield f"{key}: {size} is below limits.smallest_cohort = {limits.smallest_cohort}"
    yield from _sums(settings, config)
    own, federation = settings.data.classes, config.federation
    # The decision must not depend on the images.
    if own is not None and federation is not None and federation.classes != own:
        yield "federation.classes: the list is not that of data.classes"


def _sums(settings: HolderSettings, config: RunConfig) -> Iterator[str]:
    limits, section = settings.limits, config.secure_aggregation
    if section.adversary != "active" and limits.adversary == "active":
        yield (
            f"secure_aggregation.adversary: {section.adversary} is less than limits.adversary = "
            "active"
        )
    if section.adversary == "active" and settings.identity is None:
        yield (
            "secure_aggregation.adversary: active needs the holder's identity and enrolment, and "
            "it has none"
        )
    if not section.enabled:
        if limits.smallest_sum > ALONE:
            yield (
                "secure_aggregation.enabled: false shows the coordinator each upload alone, and "
                f"limits.smallest_sum = {limits.smallest_sum}"
            )
        return
    try:
        smallest = terms_of_sums(config).smallest_sum
    except ConfigError as error:
        # The coordinator should have refused it, but a client does not rely on that.
        yield str(error)
        return
    if smallest < limits.smallest_sum:
        yield (
            f"secure_aggregation.threshold: opens sums of {smallest}, fewer than "
            f"limits.smallest_sum = {limits.smallest_sum}"
        )


def allowed_mechanisms(limits: OwnLimits) -> tuple[str, ...]:
    """Return the mechanisms under which the holder takes part."""
    if limits.mechanisms is not None:
        return limits.mechanisms
    facts = [mechanism.facts for mechanism in BUILT_IN]
    return tuple(f.name for f in facts if f.claims and not f.is_bare_to_server)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The holder's spending in one run, or in all runs together.

    Attributes:
        run_id: The run; None for all.
        mechanisms: Names of the mechanisms of the charged rows.
        releases: Number of charged rows.
        epsilon: At the holder's delta; infinite without noise, None without a price.
        problem: Why there is no price; None if there is one.
        limit: The holder's own; None without a limit.
    """

    run_id: str | None
    mechanisms: tuple[str, ...]
    releases: int
    epsilon: float | None
    problem: str | None
    limit: float | None

    @property
    def left(self) -> float | None:
        """Epsilon up to the limit, at least 0; None without a limit or a number."""
        if self.limit is None or self.epsilon is None:
            return None
        return max(self.limit - self.epsilon, 0.0)


@dataclass(frozen=True)
class Account:
    """All spending of a holder.

    Attributes:
        total: Of all runs together; less than the sum of the runs' epsilons.
    """

    runs: tuple[Spending, ...]
    total: Spending


def account_of(rows: Sequence[LedgerRow], limits: OwnLimits) -> Account:
    """Price a client's own ledger."""
    by_run: dict[str, list[LedgerRow]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    runs = [
        _spending(run_id, by_run[run_id], limits, limits.epsilon_per_run)
        for run_id in sorted(by_run)
    ]
    return Account(tuple(runs), _spending(None, rows, limits, limits.epsilon_total))


def own_account(store: ClientStore, limits: OwnLimits) -> Account:
    """Price the ledger of a holder's own store."""
    return account_of(store.rows(), limits)


def _spending(
    run_id: str | None, rows: Sequence[LedgerRow], limits: OwnLimits, limit: float | None
) -> Spending:
    charged = [row for row in rows if row.status != "aborted"]
    epsilon, problem = None, None
    try:
        epsilon = RunningLedger(as_releases(rows, KNOWN)).claimed_with((), limits.delta).epsilon
    except (UnsupportedEvent, UnknownMechanism) as error:
        problem = str(error)
    return Spending(
        run_id=run_id,
        mechanisms=tuple(sorted({row.mechanism for row in charged})),
        releases=len(charged),
        epsilon=epsilon,
        problem=problem,
        limit=limit,
    )
