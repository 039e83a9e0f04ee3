"""Who the data holder is against a coordinator that may lie: its own key, enrolled under its name.

The key was made on this machine and stays on it. A file that others may read is no secret, so it is
refused before anything is signed with it.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from platform.errors import ConfigError
from platform.holder.settings import HolderSettings
from platform.parties.enrolment import read_enrolment, read_key, require_enrolled
from privacy.secure_aggregation import Credentials, Enrolment, Identity

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def own_credentials(settings: HolderSettings, *, corrupt_rate: float) -> Credentials | None:
    """Return what the holder knows about an active round without asking the server.

    Args:
        settings: The holder's.
        corrupt_rate: Share of a cohort that may collude, as the run's terms say.

    Returns:
        None without an identity, which is enough against a semi-honest server.

    Raises:
        ConfigError: As for `own_identity`.
    """
    own = own_identity(settings)
    return None if own is None else Credentials(*own, corrupt_rate)


def own_identity(settings: HolderSettings) -> tuple[Identity, Enrolment] | None:
    """Return the holder's key and the enrolment that names it; None where it has none.

    Raises:
        ConfigError: If a file is missing, others may use the key, or it is not the one that is
            enrolled under the holder's name.
    """
    if settings.identity is None or settings.enrolment is None:
        return None
    identity = private_key(settings.identity)
    known = read_enrolment(settings.enrolment, key="enrolment")
    require_enrolled(known, identity, settings.name, key="identity")
    return identity, known


def private_key(path: Path) -> Identity:
    """Return a private key that nobody but its owner may read.

    Raises:
        ConfigError: If the file is missing, holds no key, or may be used by others.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"identity: {str(path)!r} cannot be read ({error.strerror}); make one with "
            "`python -m platform.client keys create`"
        ) from error
    if mode & OTHERS:
        raise ConfigError(
            f"identity: {str(path)!r} has the permissions {mode:o}, so others may use the key; "
            "valid: 600"
        )
    return read_key(path, key="identity")
