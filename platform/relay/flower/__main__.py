"""The commands `python -m platform.relay.flower link|node|key|request|superlink ...`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from platform.errors import ConfigError
from platform.relay.links import end_by_signal, say

USAGE: Final = """Relay messages through Flower.

on each client's machine, once; the enrolment binds the client to the line that `key` prints, and
the owner of the root signs the request that `request` prints:
  python -m platform.relay.flower key north.key
  python -m platform.relay.flower request north.key north > north.csr

on the server:
  python -m platform.relay.flower superlink --port 9092 --certificate server.pem \\
      --private-key server.key --root ca.pem --secret secret
  python -m platform.relay.flower link HUB --superlink ADDR:9092 --certificate server.pem \\
      --private-key server.key --root ca.pem --secret secret --enrolment enrolment.json

on each client's machine, as long as the federation lasts:
  python -m platform.relay.flower node --superlink ADDR:9092 --root ca.pem \\
      --certificate north.pem --key north.key --socket SOCKET

Only --insecure allows connections without TLS.
"""


def main(arguments: list[str]) -> int:
    """Run one command until SIGTERM or Ctrl-C; return the exit code."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    options = _parser().parse_args(arguments)
    try:
        return int(options.work(options))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m platform.relay.flower",
        description=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    key = commands.add_parser("key", help="make a node's key and print its public half")
    key.add_argument("file", type=Path)
    key.set_defaults(work=_key)
    request = commands.add_parser("request", help="print a request for a node's certificate")
    request.add_argument("file", type=Path)
    request.add_argument("name")
    request.set_defaults(work=_request)
    link = commands.add_parser("link", help="relay between the coordinator's hub and SuperLink")
    link.add_argument("hub", type=Path)
    link.add_argument("--enrolment", type=Path, required=True)
    link.set_defaults(work=_link)
    node = commands.add_parser("node", help="relay between SuperLink and a client's process")
    node.add_argument("--key", type=Path, required=True)
    node.add_argument("--socket", type=Path, required=True)
    node.set_defaults(work=_node)
    superlink = commands.add_parser("superlink", help="start Flower's SuperLink as we need it")
    superlink.add_argument("--host", default="0.0.0.0")  # noqa: S104 - a server for others
    superlink.add_argument("--port", type=int, default=9092)
    superlink.set_defaults(work=_superlink)
    for command in (link, superlink):
        command.add_argument("--private-key", type=Path)
        command.add_argument("--secret", type=Path, required=True)
    for command in (link, node):
        command.add_argument("--superlink", required=True, help="HOST:PORT")
    for command in (link, node, superlink):
        command.add_argument("--root", type=Path, help="the root of all certificates")
        command.add_argument("--certificate", type=Path, help="this side's certificate")
        command.add_argument("--insecure", action="store_true", help="no TLS, for development")
    return parser


def _key(options: argparse.Namespace) -> int:
    from platform.relay.flower.connection import create_key

    say(create_key(options.file))
    return 0


def _request(options: argparse.Namespace) -> int:
    from platform.relay.flower.connection import request_certificate

    sys.stdout.write(request_certificate(options.file, options.name))
    return 0


def _link(options: argparse.Namespace) -> int:
    from platform.relay.flower.connection import Place, read_enrolled, server_place
    from platform.relay.flower.superlink import carry_through

    place = Place(address=options.superlink, tls=None)
    if _is_secured(options, "root", "certificate", "private_key"):
        own = (options.root, options.certificate, options.private_key)
        place = server_place(options.superlink, *own)
    carry_through(
        place=place,
        secret=_read(options.secret),
        enrolled=read_enrolled(options.enrolment),
        hub=options.hub,
        ended=end_by_signal(),
        tell=say,
    )
    return 0


def _node(options: argparse.Namespace) -> int:
    from platform.relay.flower.connection import Place, node_place
    from platform.relay.flower.node import Node

    place = Place(address=options.superlink, tls=None)
    if _is_secured(options, "root", "certificate"):
        place = node_place(options.superlink, options.root, options.certificate, options.key)
    Node(place=place, key=options.key, socket=options.socket, tell=say).until(end_by_signal())
    return 0


def _superlink(options: argparse.Namespace) -> int:
    command = ["flower-superlink", "--host", options.host, "--port", str(options.port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(options.secret)]
    command += ["--disable-runtime-dependency-installation"]
    secured = _is_secured(options, "root", "certificate", "private_key")
    if secured:
        command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(options.root)]
        command += ["--ssl-certfile", str(options.certificate)]
        command += ["--ssl-keyfile", str(options.private_key)]
    else:
        command += ["--insecure"]
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    from platform.relay.flower.superlink import guarded

    uvicorn.run = guarded(uvicorn.run, options.root if secured else None)
    sys.argv = command
    flower_superlink()
    return 0


def _is_secured(options: argparse.Namespace, *names: str) -> bool:
    """Return whether the connection uses TLS; only --insecure turns TLS off."""
    words = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    given = [name for name in names if getattr(options, name) is not None]
    if given and options.insecure:
        raise ConfigError(f"--insecure: valid without {words}")
    if not options.insecure and len(given) != len(names):
        raise ConfigError(f"valid: {words}; for development without TLS: --insecure")
    return not options.insecure


def _read(path: Path) -> bytes:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if not found:
        raise ConfigError(f"{path}: is empty")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
