"""Flower between a hub and many holders: SuperLink, link, and all nodes in one process.

A node is the package's own loop; a process for each of fifty would take more memory than it shows.
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

from platform.relay.flower.development import Running, _certificates, _commands, _free_port
from platform.relay.flower.keys import create_key

PYTHON = Path(__file__).resolve().parents[1] / ".venv-flower" / "bin" / "python"


@contextmanager
def flower_of_many(
    hub: Path, sockets: Mapping[str, Path], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Relay through Flower, with TLS and nodes that sign, as long as the context lasts."""
    folder.mkdir(mode=0o700)
    _certificates(folder)
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    enrolled = {name: create_key(folder / f"{name}.key") for name in sockets}
    (folder / "enrolled.json").write_text(json.dumps(enrolled), "utf-8")
    places = {str(folder / f"{name}.key"): str(path) for name, path in sockets.items()}
    (folder / "places.json").write_text(json.dumps(places), "utf-8")
    address = f"localhost:{_free_port()}"
    running = Running(folder, PYTHON, _commands(folder, hub, sockets, address))
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


def nodes(address: str, folder: Path) -> None:
    """Run all nodes in threads until killed."""
    from platform.relay.flower.node import Node, Place

    place = Place(address=address, root=(folder / "ca.pem").read_bytes())
    places = json.loads((folder / "places.json").read_text("utf-8"))
    ended = threading.Event()
    workers = [
        threading.Thread(
            target=Node(
                place=place, key=Path(key), socket=Path(socket), tell=lambda line: print(line)
            ).until,
            args=(ended,),
        )
        for key, socket in places.items()
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    nodes(sys.argv[1], Path(sys.argv[2]))
