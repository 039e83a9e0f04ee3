"""`python -m platform.relay HUB NAME=SOCKET...`: a relay on one machine, for development."""

from __future__ import annotations

import sys
from pathlib import Path

from platform.relay.links import end_by_signal, forward

USAGE = "python -m platform.relay HUB NAME=SOCKET...: carry messages between sockets\n"
_FEWEST = 2


def main(arguments: list[str]) -> int:
    """Relay until SIGTERM or Ctrl-C; returns the exit code."""
    if len(arguments) < _FEWEST or not all("=" in text for text in arguments[1:]):
        sys.stderr.write(USAGE)
        return 2
    named = (text.partition("=") for text in arguments[1:])
    sockets = {name: Path(path) for name, _, path in named}
    forward(Path(arguments[0]), sockets, end_by_signal())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
