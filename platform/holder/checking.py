"""The data holder's check before it joins a run: it reports all points, sound or not, at once.

The check writes, makes and sends nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform.data.checking import examine
from platform.data.loaders.own_images import load_holding
from platform.data.own_layouts import recognise_own
from platform.errors import ConfigError, DataError, Faults
from platform.holder.settings import (
    HolderSettings,
    allowed_mechanisms,
    own_account,
    own_hints,
    own_identity,
)
from platform.holder.store import read_store
from platform.relay.packets import LONGEST_PATH, connect
from privacy.secure_aggregation import fingerprint
from storage import StorageError

CONFIGURATION: Final = "configuration"
_PATIENCE: Final = 2.0


@dataclass(frozen=True)
class Check:
    """The result of one point.

    Attributes:
        point: The key of the settings that was checked.
        is_sound: Whether it is good.
        text: The finding; for a fault also what is valid.
    """

    point: str
    is_sound: bool
    text: str


def check_file(path: Path) -> Check:
    """Check the settings' file itself: every user who may write it sets the limits."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IWOTH:
        text = f"{str(path)!r} has the permissions {mode:o}, so every user may write it; valid: 644"
        return Check(CONFIGURATION, False, text)
    return Check(CONFIGURATION, True, str(path))


def check_holder(settings: HolderSettings) -> tuple[Check, ...]:
    """Check all files and limits in the settings."""
    points: dict[str, Callable[[HolderSettings], str]] = {
        "data": look_at_images,
        "identity": _identity,
        "storage": _storage,
        "socket": _socket,
        "limits": limits_in_words,
    }
    found: list[Check] = []
    for point, look in points.items():
        try:
            found.append(Check(point, True, look(settings)))
        except (ConfigError, StorageError) as error:
            found.append(Check(point, False, str(error).removeprefix(f"{point}: ")))
    return tuple(found)


def look_at_images(settings: HolderSettings) -> str:
    """Read all of the holder's images, and describe the layout of its folder, or `ConfigError`.

    After a run is accepted, no answer to a coordinator depends on the folder: the client leaves out
    files that it cannot read, and tells only its own log. So this check finds all faults before.
    """
    data, hints = settings.data, own_hints(settings)
    try:
        kept = Faults()
        reading = recognise_own(data.root, hints, kept, one_holder=True)
        kept.require_none()
        (group,) = reading.groups.values()
        classes = data.classes or tuple(dict.fromkeys(reading.words.values()))
        # The share of test images does not matter for the faults of an image.
        images, faults = load_holding(data.root, classes, test_share=0.0, key=b"", hints=hints)
        found = examine(images, lambda done, total: None)
        if faults := (*faults, *found["damaged"], *found["contradictory"]):
            raise DataError(*faults)
    except DataError as error:
        first, *others = error.faults
        more = f" (and {len(others)} more like it)" if others else ""
        raise ConfigError(f"{first}{more}".replace("task.", "data.", 1)) from error
    said = (f"{str(reading.root)!r}: {group.sentence}", *reading.remarks)
    if not group.says_tests:
        said = (*said, "about a fifth of its images are set aside for testing")
    if data.classes is None:
        said = (*said, "images of classes that a run does not name are left out of it")
    return "; ".join(said)


def _identity(settings: HolderSettings) -> str:
    own = own_identity(settings)
    if own is None:
        return "none: runs against a server that may lie are declined"
    identity, known = own
    return (
        f"key {fingerprint(identity.public)} is enrolled under {settings.name}; enrolment "
        f"{known.serial} with the fingerprint {known.fingerprint}"
    )


def _storage(settings: HolderSettings) -> str:
    folder = settings.storage
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"storage: {str(folder)!r} is no folder; valid: a folder of its own")
    # Missing folders are made in the nearest existing folder.
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"storage: {str(there)!r} cannot be written to; valid is a folder that this user may "
            "write to"
        )
    account = read_store(settings, lambda store: own_account(store, settings.limits))
    if account is None:
        return f"{str(folder)!r} has no store yet; the first start makes one"
    since = read_store(settings, lambda store: store.restoring.pending_since())
    if since is not None:
        raise ConfigError(
            f"storage: the store in {str(folder)!r} was restored from a backup at {since} and has "
            "not caught up, so it takes part in no round; valid after `catch-up`"
        )
    return f"the store in {str(folder)!r} opens; it has been charged in {len(account.runs)} runs"


def _socket(settings: HolderSettings) -> str:
    path = settings.socket_path
    size = len(os.fsencode(path))
    if size > LONGEST_PATH:
        raise ConfigError(
            f"socket: {str(path)!r} has {size} bytes; valid: at most {LONGEST_PATH}, as a "
            "socket's path"
        )
    if not os.path.lexists(path):
        return f"{str(path)!r} is free"
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ConfigError(f"socket: {str(path)!r} is no socket; valid: a path that is free")
    try:
        connect(path, _PATIENCE).close()
        is_refused = False
    except OSError as error:
        # Only a refusal shows that no process listens: other errors may come from a busy process.
        is_refused = error.errno == errno.ECONNREFUSED
    if not is_refused:
        raise ConfigError(f"socket: {str(path)!r} is served by another process; end that first")
    return f"{str(path)!r} was left behind by a process that has ended"


def limits_in_words(settings: HolderSettings) -> str:
    """Return the holder's limits as one sentence."""
    limits = settings.limits
    total, run = (
        "without bound" if limit is None else f"at most {limit:g}"
        for limit in (limits.epsilon_total, limits.epsilon_per_run)
    )
    methods = "any of this package" if limits.methods is None else ", ".join(limits.methods)
    relations = "replace_one or the mechanism's usual relation"
    if limits.relations is not None:
        relations = " or ".join(limits.relations)
    return (
        f"epsilon {total} in total and {run} a run, at delta {limits.delta:g}; rounds of at least "
        f"{limits.smallest_cohort} clients and sums of at least {limits.smallest_sum}; methods: "
        f"{methods}; mechanisms: {', '.join(allowed_mechanisms(limits))}; epsilon under "
        f"{relations}; sums that withstand "
        + ("an active server" if limits.adversary == "active" else "at least a semi-honest server")
    )
