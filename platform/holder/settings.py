"""A data holder's settings: the places of its data, keys and store, and its limits on runs.

The settings are one YAML file on the holder's own machine, read like a run's configuration: plain
data, a frozen tree of sections, unknown keys refused. No coordinator ever sees the file. Relative
paths count from the file's own folder.

Against a coordinator that may lie, the holder has its own key, enrolled under its name. The key was
made on this machine and stays on it. A key that others may read is no secret, so the holder refuses
it before it signs anything with it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from methods import Registry
from platform.config import read_mapping
from platform.config.files import is_file
from platform.config.loading import validated
from platform.config.sections import ClientName, Clients, Layout, Positive, Section, Threads
from platform.data.catalogue import Hints
from platform.errors import ConfigError
from platform.mechanisms import BUILT_IN
from platform.parties.identities import read_enrolment, read_key, require_enrolled
from privacy import Relation
from privacy.secure_aggregation import Credentials, Enrolment, Identity
from privacy.transparency import NoteKey

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
    return _require_known(names, BUILT_IN.names)


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
    """Read a data holder's settings.

    Args:
        path: A YAML file.

    Raises:
        ConfigError: If a field is not valid; it names the field, its value and what is valid.
    """
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
    bare = [name for name in limits.mechanisms or () if BUILT_IN.claims_nothing(name)]
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


def own_credentials(settings: HolderSettings, *, corrupt_rate: float) -> Credentials | None:
    """Return the holder's credentials for rounds against an active adversary.

    Args:
        settings: The holder's settings.
        corrupt_rate: Share of a cohort that may collude, as the run's terms say.

    Returns:
        None without an identity, which is enough against a semi-honest server.

    Raises:
        ConfigError: As for `own_identity`.
    """
    own = own_identity(settings)
    return None if own is None else Credentials(*own, corrupt_rate)


def own_identity(settings: HolderSettings) -> tuple[Identity, Enrolment] | None:
    """Return the holder's key and the enrolment that names it; None without a key.

    Raises:
        ConfigError: If a file is missing, others may use the key, or another key is enrolled under
            the holder's name.
    """
    if settings.identity is None or settings.enrolment is None:
        return None
    identity = private_key(settings.identity)
    known = read_enrolment(settings.enrolment, key="enrolment")
    require_enrolled(known, identity, settings.name, key="identity")
    return identity, known


def private_key(path: Path) -> Identity:
    """Return a private key that only its owner may read.

    Raises:
        ConfigError: If the file is missing, holds no key, or may be used by others.
    """
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
