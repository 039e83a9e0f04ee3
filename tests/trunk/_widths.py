"""How wide what people read is, and what of it was cut: in this process and in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NUMBERS = set("\N{BOX DRAWINGS LIGHT HORIZONTAL}0123456789")
COORDINATOR, CLIENT = "platform.coordinator", "platform.client"


def too_wide(text: str, columns: int = 80) -> list[str]:
    """Lines that are longer than they may be."""
    return [line for line in text.splitlines() if cell_len(line) > columns]


def cut_words(narrow: str, wide: str) -> list[str]:
    """Words of a narrow print that a wide one does not have: halves of some.

    Numbers are never cut, and ages differ; what is longer than a line is cut in any shape.
    """
    known = set(wide.split())
    longer = [word for word in known if cell_len(word) > 76]
    return [
        word
        for word in narrow.split()
        if word not in known and not set(word) <= NUMBERS and not any(word in one for one in longer)
    ]


def in_terminal(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> str:
    """What a terminal of eighty columns is sent, without what moves its cursor."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.Popen(
        [sys.executable, "-m", program, *arguments],
        env={**environment, "TERM": "xterm"},
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    sent = b""
    # Linux says EIO once the other end is closed for good.
    with contextlib.suppress(OSError):
        while block := os.read(ours, 65_536):
            sent += block
    os.close(ours)
    assert done.wait() == 0, sent
    return ESCAPES.sub("", sent.decode())


def in_pipe(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> str:
    """What a program prints into a pipe, whose width nobody knows."""
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
