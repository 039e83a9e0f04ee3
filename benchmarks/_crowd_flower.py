"""Flower between a hub and many holders: SuperLink, link, and all nodes in one process.

A node is the package's own loop. Fifty processes would take much memory and show nothing more.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from platform.relay.flower.connection import create_key, request_certificate
from platform.relay.flower.development import DevelopmentRoot, Running, _commands
from platform.relay.links import development_enrolment, free_ports

PYTHON = Path(__file__).resolve().parents[1] / ".venv-flower" / "bin" / "python"


@contextmanager
def flower_of_many(
    hub: Path, sockets: Mapping[str, Path], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Relay through Flower with TLS and nodes that sign, while the context lasts."""
    folder.mkdir(mode=0o700)
    root = DevelopmentRoot.made()
    root.write(folder / "ca.pem")
    root.write_server(folder / "server.pem", folder / "server.key")
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    enrolled = {name: _key(folder, name, root) for name in sockets}
    (folder / "enrolment.json").write_bytes(development_enrolment(enrolled))
    places = {name: str(path) for name, path in sockets.items()}
    (folder / "places.json").write_text(json.dumps(places), "utf-8")
    address = f"localhost:{free_ports(1)[0]}"
    commands = _commands(folder, hub, sockets, address)
    running = Running(folder=folder, python=PYTHON, commands=commands, root=root)
    try:
        for name in ("superlink", "link"):
            running.start(name)
        with (folder / "nodes.log").open("wb") as log:
            command = [str(PYTHON), __file__, address, str(folder)]
            running.processes["nodes"] = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        running.wait("link", f"there: {' '.join(sorted(sockets))}")
        yield list(running.processes.values())
    finally:
        for name in running.processes:
            running.kill(name)


def _key(folder: Path, name: str, root: DevelopmentRoot) -> str:
    """Make a node's key and certificate; return the public key."""
    key = folder / f"{name}.key"
    public = create_key(key)
    (folder / f"{name}.pem").write_bytes(root.signed(request_certificate(key, name)))
    return public.strip()


def nodes(address: str, folder: Path) -> None:
    """Run all nodes in threads until the process is killed."""
    from platform.relay.flower.connection import node_place
    from platform.relay.flower.node import Node

    ended, workers = threading.Event(), []
    for name, socket in json.loads((folder / "places.json").read_text("utf-8")).items():
        key = folder / f"{name}.key"
        place = node_place(address, folder / "ca.pem", folder / f"{name}.pem", key)
        node = Node(place=place, key=key, socket=Path(socket), tell=print)
        workers.append(threading.Thread(target=node.until, args=(ended,)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    nodes(sys.argv[1], Path(sys.argv[2]))
