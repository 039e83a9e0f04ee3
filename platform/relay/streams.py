"""Packets on a Unix socket, for whoever waits for them one after the other."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from platform.errors import ConfigError, ProtocolError
from platform.relay.packets import LARGEST_PACKET
from storage.files import make_folder

LENGTH: Final = struct.Struct(">I")
LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path at most."""


def send(sock: socket.socket, data: bytes) -> None:
    """Send a packet.

    Raises:
        OSError: If nobody is there any more.
    """
    sock.sendall(LENGTH.pack(len(data)))
    sock.sendall(data)


def is_readable(sock: socket.socket, seconds: float) -> bool:
    """Return whether there is something to receive or accept, waiting so long for it.

    Whatever number the socket's descriptor has: `select` knows none from 1,024 on.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def receive(sock: socket.socket) -> bytes | None:
    """Wait for a packet; None if the other side has hung up between two.

    Raises:
        ProtocolError: If it is longer than any may be, or cut off.
        OSError: If the socket fails, or its own time is over.
    """
    head = _exactly(sock, LENGTH.size, may_end=True)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    require_length(length)
    return _exactly(sock, length)


def require_length(length: int) -> None:
    """Refuse a packet that is longer than any may be.

    Raises:
        ProtocolError: If it is.
    """
    if length > LARGEST_PACKET:
        raise ProtocolError(f"packet: {length} bytes are announced; valid: up to {LARGEST_PACKET}")


def _exactly(sock: socket.socket, length: int, *, may_end: bool = False) -> bytes | None:
    parts, left = [], length
    while left:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            if may_end and left == length:
                return None
            raise ProtocolError("packet: it is cut off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def connect(path: Path, seconds: float | None = None) -> socket.socket:
    """Return a connection, whose reads end after so many seconds.

    Raises:
        OSError: If nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def listening(path: Path, field: str, waiting: int = 128) -> socket.socket:
    """Return a socket that listens at a path which nobody but its owner can reach.

    A file that a dead process left there is taken over.

    Args:
        path: Where; its folder is made, for its owner only.
        field: The setting that an error names.
        waiting: Connections that may wait to be accepted.

    Raises:
        ConfigError: If the path is too long or cannot be used, or somebody listens there.
    """
    if len(os.fsencode(str(path))) > LONGEST_PATH:
        raise ConfigError(
            f"{field}: {str(path)!r} is too long for a socket; valid: up to {LONGEST_PATH} bytes"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        make_folder(path.parent)
        _clear(path, field)
        # Before it is bound, so that there is no moment in which others could connect; a umask
        # would be that of all threads.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        sock.listen(waiting)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{field}: {str(path)!r} cannot be listened at ({error.strerror}); valid: a path in a "
            "folder of one's own"
        ) from error
    except ConfigError:
        sock.close()
        raise
    return sock


def _clear(path: Path, field: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{field}: {str(path)!r} is a file; valid: a path where nothing is")
    with contextlib.suppress(OSError):
        connect(path, 1.0).close()
        raise ConfigError(f"{field}: somebody listens at {str(path)!r} already")
    path.unlink()
