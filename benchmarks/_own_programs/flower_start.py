"""Registers nodes with a SuperLink, or waits for all nodes and starts one run of an app.

python flower_start.py register ADDRESS ROOT KEY...
python flower_start.py run ADDRESS ROOT APP NODES
"""

import ssl
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

LATEST = 120.0
"""Seconds within which all nodes must connect."""


def connected(address, root):
    return ControlHttpClient(
        f"https://{address}",
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        verify=ssl.create_default_context(cafile=root),
    )


def register(address, root, *keys):
    control = connected(address, root)
    for key in keys:
        public = load_ssh_public_key(key.encode("ascii"))
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        control.RegisterNode(RegisterNodeRequest(public_key=pem))


def run(address, root, app, nodes):
    control, end = connected(address, root), time.monotonic() + LATEST
    while online(control) < int(nodes):
        if time.monotonic() > end:
            raise SystemExit(f"only {online(control)} nodes are there")
        time.sleep(0.5)
    fab = Fab(content=build_fab_from_disk(Path(app)))
    control.StartRun(StartRunRequest(fab=fab))


def online(control):
    nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return sum(node.status == "online" for node in nodes)


if __name__ == "__main__":
    {"register": register, "run": run}[sys.argv[1]](*sys.argv[2:])
