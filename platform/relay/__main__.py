"""`python -m platform.relay HUB NAME=SOCKET...`: a relay on one machine, for development."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event

from platform.relay.links import forward

USAGE = "python -m platform.relay HUB NAME=SOCKET...: carry messages between sockets\n"
_FEWEST = 2


def main(arguments: list[str]) -> int:
    """Relay until SIGTERM or Ctrl-C; returns the exit code."""
    if len(arguments) < _FEWEST or not all("=" in text for text in arguments[1:]):
        sys.stderr.write(USAGE)
        return 2
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    named = (text.partition("=") for text in arguments[1:])
    forward(Path(arguments[0]), {name: Path(path) for name, _, path in named}, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
