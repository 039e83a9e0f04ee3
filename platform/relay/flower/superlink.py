"""The server's side of SuperLink: our one run in it, and the guard before it.

SuperLink knows the enrolled keys and holds one run of ours. It hands a ServerApp's task to the
owner of its secret. A program of Flower would run that task. We run nothing: the task's token
opens the interface that takes messages.

Stock SuperLink does not ask for a certificate, and nodes, operators and apps all use its one port.
We therefore let its web server demand a certificate that leads to the root, and put a guard before
it: from other machines, the guard passes on requests of nodes only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from platform.errors import ProtocolError
from platform.relay.flower.connection import Place

APP: Final = "sotto-relay"
TASK: Final = "flwr-serverapp"
TRIES: Final = 50
"""How many tasks we take at most in search of ours."""
_PROJECT: Final = f"""
[project]
name = "{APP}"
version = "1.0.0"
description = "Carries packets to clients."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sotto"

[tool.flwr.app.components]
serverapp = "sotto_relay:server"
clientapp = "sotto_relay:client"
"""
# Flower requires an app to name both components; nothing loads them, and they have no code.
_SHIM: Final = "# Nothing is run.\n"


@dataclass(kw_only=True)
class SuperLink:
    """A run at SuperLink, and each client's node.

    Attributes:
        nodes: The number of each client's node, by the client's name.
    """

    nodes: Mapping[str, int]
    _control: Any
    _runtime: Any
    _grid: Any
    _run: int = field(default=0)

    @classmethod
    def opened(cls, place: Place, secret: bytes, enrolled: Mapping[str, bytes]) -> Self:
        """Register the nodes, start a run and take its task.

        Args:
            place: Where SuperLink is.
            secret: Allows its owner to take tasks.
            enrolled: Each client's public key by the client's name; SuperLink drops other nodes.

        Raises:
            ProtocolError: If SuperLink does not start the run.
        """
        from flwr.cli.build import build_fab_from_files
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.fab_pb2 import Fab
        from flwr.supercore.control.control_http_client import ControlHttpClient

        control = place.client(ControlHttpClient, _version("flwr CLI"))
        nodes = _registered(control, enrolled)
        files: dict[str, bytes | Path] = {
            "pyproject.toml": _PROJECT.encode(),
            "sotto_relay.py": _SHIM.encode(),
        }
        fab = Fab(content=bytes(build_fab_from_files(files)[0]))
        run = control.StartRun(StartRunRequest(fab=fab)).run_id
        token = _token(place, secret, run)
        grid = _grid(place, token)
        found = cls(nodes=nodes, _control=control, _runtime=grid._runtime_client, _grid=grid)
        found._begin(run)
        return found

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close both connections."""
        self._grid.close()
        self._control.close()

    def _begin(self, run: int) -> None:
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest
        from flwr.supercore.task_identity import TaskIdentity

        given = self._runtime.PullTaskInput(PullTaskInputRequest())
        if given.run.run_id != run:
            raise ProtocolError("SuperLink: the task belongs to another run")
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, run
        TaskIdentity.node_id = given.context.node_id
        self._grid.set_run(run_from_proto(given.run))
        self._run = run

    def push(self, messages: Sequence[Any]) -> list[str]:
        """Send messages; return their numbers."""
        return list(self._grid.push_messages(list(messages))) if messages else []

    def pull(self, numbers: Sequence[str]) -> list[Any]:
        """Return the answers that have arrived, without waiting for others."""
        from flwr.app import Message
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectPullError,
            inflate_object_from_contents,
            pull_objects,
        )

        node, found = self._grid.node, []
        fetch = make_pull_object_fn_protobuf(self._runtime.PullObject, node, self._run)
        said = self._runtime.PullMessages(PullAppMessagesRequest(message_ids=numbers))
        for proto, tree in zip(said.messages_list, said.message_object_trees, strict=True):
            name = proto.metadata.message_id
            parts = [part.object_id for part in iterate_object_tree(tree)]
            # SuperLink lists a message before all parts are there; Flower's default waits 1 s.
            try:
                contents = pull_objects(parts, fetch, initial_backoff=0.02, max_time=10.0)
            except ObjectPullError:
                continue
            self._runtime.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=self._run, message_object_id=name)
            )
            with contextlib.suppress(Exception):
                # A node may send bytes that Flower cannot read; the other answers still count.
                message = inflate_object_from_contents(name, contents)
                if isinstance(message, Message):
                    found.append(message)
        return found

    def looked(self) -> dict[str, str]:
        """Send the task's heartbeat; return the last activation time of each online client's node.

        Raises:
            ProtocolError: If SuperLink has given up the task.
        """
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        if not self._runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
            raise ProtocolError("SuperLink: it has given up the task")
        there = {node.node_id: node for node in self._grid.get_nodes()}
        return {
            client: there[number].last_activated_at
            for client, number in self.nodes.items()
            if number in there and there[number].status == "online"
        }


def _version(component: str) -> list[Any]:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return [RuntimeVersionHttpInterceptor(component_name=component)]


def _registered(control: Any, enrolled: Mapping[str, bytes]) -> dict[str, int]:
    """Register the enrolled keys and unregister all others; return each client's node."""
    from flwr.proto.control_pb2 import (
        ListNodesRequest,
        RegisterNodeRequest,
        UnregisterNodeRequest,
    )

    listed = control.ListNodes(ListNodesRequest()).nodes_info
    known = {node.public_key: node.node_id for node in listed if node.status != "unregistered"}
    for key in known.keys() - set(enrolled.values()):
        control.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
    return {
        name: known[key]
        if key in known
        else control.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
        for name, key in enrolled.items()
    }


def _token(place: Place, secret: bytes, run: int) -> str:
    """Take tasks from SuperLink until one belongs to our run; ignore tasks of other runs."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    protected = frozenset({"/flwr.proto.Runtime/AcquireTask"})
    signing = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)
    client = place.client(RuntimeHttpClient, [*_version("SuperExec"), signing])
    with client:
        for _ in range(TRIES):
            given = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TASK]))
            if given.token and given.task.run_id == run:
                return str(given.token)
    raise ProtocolError("SuperLink: it has no task for the run that was started")


def _grid(place: Place, token: str) -> Any:
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.grid import HttpGrid

    grid = HttpGrid(place.address, token=token)
    # The grid's own connection has no certificate, retries for ever, and ends the process when
    # SuperLink refuses it.
    signing = RuntimeTokenHttpInterceptor(token=token)
    grid._client = place.client(RuntimeHttpClient, [*_version("flwr-serverapp"), signing])
    return grid


NODES: Final = "/v1/fleet/"
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Guard:
    """Passes on requests of nodes, and all requests from this machine.

    Attributes:
        app: SuperLink's web app.
    """

    app: App

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        allowed = scope["type"] == "lifespan"
        if scope["type"] == "http":
            path, client = str(scope["path"]), scope.get("client")
            allowed = (path.startswith(NODES) and ".." not in path) or (
                client is not None and ipaddress.ip_address(client[0]).is_loopback
            )
        if allowed:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b"only this machine may ask for this"})


def guarded(serve: Callable[..., Any], root: Path | None) -> Callable[..., None]:
    """Return a function that serves SuperLink with a guard before it.

    Args:
        serve: Serves an app, as `uvicorn.run` does.
        root: The root of clients' certificates; None asks for no certificate.
    """

    def serve_guarded(app: App, **options: Any) -> None:
        # With proxy headers, a client could claim another address.
        options["proxy_headers"] = False
        if root is not None:
            options |= {"ssl_ca_certs": str(root), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        serve(app=Guard(app), **options)

    return serve_guarded
