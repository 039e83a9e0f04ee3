"""Who may read the page: its token, and the sessions of browsers that have shown it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from platform.errors import ConfigError

COOKIE: Final = "sotto_page"
SESSION_SECONDS: Final = 12 * 3600
MOST_SESSIONS: Final = 100
SHORTEST: Final = 32
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{{SHORTEST},256}}")


class Access:
    """Knows the token by its digest only, and sessions likewise."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the token; `clock` gives seconds."""
        self._token = _digest(token)
        self._clock = clock
        self._sessions: dict[bytes, float] = {}

    def is_token(self, text: str) -> bool:
        """Compare in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(_digest(text), self._token)

    def new_session(self) -> str:
        """Return the secret of a new session; of too many the oldest ends."""
        self._forget()
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret)] = self._clock() + SESSION_SECONDS
        return secret

    def is_session(self, secret: str) -> bool:
        """Return whether a session of this secret goes on.

        Sessions are found by a digest, so the time it takes tells nothing of any secret.
        """
        self._forget()
        return _digest(secret) in self._sessions

    def end_session(self, secret: str) -> None:
        """End it, if there is one."""
        self._sessions.pop(_digest(secret), None)

    def _forget(self) -> None:
        now = self._clock()
        self._sessions = {one: until for one, until in self._sessions.items() if until > now}


def read_token(file: Path) -> str:
    """Return the token in a file that nobody but its owner may read.

    Raises:
        ConfigError: If it cannot be read, others may read it, or what is in it is no token.
    """
    try:
        # Without waiting: a pipe has no end of its own.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"--token-file: {str(file)!r} cannot be read ({error.strerror}); valid is a file with "
            f"a token of {SHORTEST} characters or more"
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise ConfigError(
                f"--token-file: {str(file)!r} can be read by others, or is no file; valid is a file"
                " of mode 600"
            )
        # The token itself is in no message.
        text = os.read(descriptor, 1024).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise ConfigError(
            f"--token-file: {str(file)!r} holds no token; it must be one line of {SHORTEST} to 256 "
            "letters, digits or ._~+/=- such as `openssl rand -hex 32` gives"
        )
    return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
