"""`python -m platform.relay HUB NAME=SOCKET...`: carry messages between the hub and clients.

Without a transport, all sockets are on one machine, for development. With one, from outside, the
relay of the coordinator sends to addresses, and one on each client's machine listens at its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from methods import BrokenPlugin
from methods.plugins import Plugins
from platform.errors import ConfigError
from platform.relay.links import end_by_signal, forward
from platform.relay.transports import forward_over, serve, transport_named


def main(arguments: list[str]) -> int:
    """Relay until SIGTERM or Ctrl-C; returns the exit code."""
    line = argparse.ArgumentParser("python -m platform.relay", allow_abbrev=False)
    line.add_argument("socket", type=Path, help="the hub's, or with --serve the client's")
    line.add_argument("clients", nargs="*", metavar="NAME=SOCKET", help="or NAME=ADDRESS")
    line.add_argument("--transport", metavar="NAME", help="a plug-in; see docs/own-method.md")
    line.add_argument("--plugins", metavar="DIR", type=Path, help="folder that may have it")
    line.add_argument("--serve", metavar="ADDRESS", help="listen there for the client at SOCKET")
    try:
        given = line.parse_args(arguments)
        if bool(given.clients) is bool(given.serve) or not all("=" in c for c in given.clients):
            line.error("valid: NAME=SOCKET for each client, or --transport and --serve ADDRESS")
        if given.serve and not given.transport:
            line.error("--serve: needs --transport NAME")
    except SystemExit as ended:
        return int(ended.code or 0)
    named = {name: to for name, _, to in (text.partition("=") for text in given.clients)}
    try:
        if given.transport is None:
            sockets = {name: Path(path) for name, path in named.items()}
            forward(given.socket, sockets, end_by_signal())
            return 0
        transport = transport_named(given.transport, Plugins(given.plugins))
        if given.serve:
            serve(transport, given.serve, given.socket, end_by_signal())
        else:
            forward_over(transport, given.socket, named, end_by_signal())
    except (BrokenPlugin, ConfigError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
