"""The server's side: the pump between hub and SuperLink, our run in it, and the guard before it.

SuperLink knows the enrolled keys and holds one run of ours. It hands a ServerApp's task to the
owner of its secret. A program of Flower would run that task. We run nothing: the task's token
opens the interface that takes messages. The pump connects again after a restart.

Stock SuperLink does not ask for a certificate, and nodes, operators and apps all use its one port.
We therefore let its web server demand a certificate that leads to the root, and put a guard before
it: from other machines, the guard passes on requests of nodes only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from platform.errors import ProtocolError
from platform.relay.flower.connection import Place, asked, outcome_of
from platform.relay.links import LONGEST_PAUSE, Parcel, lost, relay

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
        """Register the nodes, start a run and take its task, or `ProtocolError`.

        The secret allows its owner to take tasks. SuperLink drops nodes whose keys are not
        enrolled.
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
        """Send the task's heartbeat, or `ProtocolError`; return online nodes' last activity."""
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
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

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


FLEET: Final = "/v1/fleet/"
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Guard:
    """Passes on requests of nodes, and all requests from this machine."""

    app: App

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        allowed = scope["type"] == "lifespan"
        if scope["type"] == "http":
            path, client = str(scope["path"]), scope.get("client")
            allowed = (path.startswith(FLEET) and ".." not in path) or (
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

    `serve` serves an app, as `uvicorn.run` does. `root` is the root of clients' certificates; None
    asks for no certificate.
    """

    def serve_guarded(app: App, **options: Any) -> None:
        # With proxy headers, a client could claim another address.
        options["proxy_headers"] = False
        if root is not None:
            options |= {"ssl_ca_certs": str(root), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        serve(app=Guard(app), **options)

    return serve_guarded


LOOK: Final = 0.05
"""Seconds between two checks for answers."""
NODES: Final = 1.0
"""Seconds between two checks for connected nodes."""
AGAIN: Final = 15.0
"""Seconds until `Pump` sends a message without an answer again; doubled each time."""
ABSENT: Final = 0.2
"""Seconds until `Pump` offers a message again that SuperLink refused."""
LATE: Final = "the client's node gave no outcome in time"


@dataclass(eq=False, kw_only=True)
class _Asked:
    """An open request, with the secret of each of its messages by the message's number."""

    parcel: Parcel
    outcome: Future[bytes | None] = field(default_factory=Future)
    secrets: dict[str, bytes] = field(default_factory=dict)
    end: float = 0.0
    again: float = 0.0
    wait: float = AGAIN

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.parcel.seconds


def carry_through(
    *,
    place: Place,
    secret: bytes,
    enrolled: Mapping[str, bytes],
    hub: Path,
    ended: threading.Event,
    tell: Callable[[str], None],
) -> None:
    """Carry messages between a hub and nodes until told to end.

    The secret allows its owner to take SuperLink's tasks. `tell` gets a line for each event.
    """
    while not ended.is_set():
        try:
            with SuperLink.opened(place, secret, enrolled) as superlink:
                _follow(superlink, hub, ended, tell)
        except Exception as error:  # the engine may raise any error: try again
            tell(f"not connected: {type(error).__name__}: {error}")
            ended.wait(LONGEST_PAUSE)


def _follow(
    superlink: SuperLink, hub: Path, ended: threading.Event, tell: Callable[[str], None]
) -> None:
    pump = Pump(superlink, tell)
    worker = threading.Thread(target=pump.until, args=(ended,), daemon=True)
    worker.start()
    # If SuperLink is lost, end the link to the hub too; the hub then repeats all open requests.
    relay(hub, tuple(superlink.nodes), pump.carry, lambda: not worker.is_alive())


class Pump:
    """Hands requests to SuperLink and fetches answers, all in one thread."""

    def __init__(self, superlink: SuperLink, tell: Callable[[str], None]) -> None:
        """Take an open run, and a function that gets a line for each event."""
        self._superlink = superlink
        self._tell = tell
        self._new: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._open: list[_Asked] = []
        self._there: frozenset[str] = frozenset()
        self._since: dict[str, str] = {}
        self._looked = 0.0
        self._lost = False

    def carry(self, parcel: Parcel) -> bytes | None:
        """Bring a request to its client's node; return the outcome, or None to be asked again."""
        request = _Asked(parcel=parcel)
        self._new.put(request)
        if self._lost:
            return None
        return request.outcome.result()

    def until(self, ended: threading.Event) -> None:
        """Work until `ended` is set or SuperLink is lost."""
        try:
            while not ended.is_set():
                self._step()
                time.sleep(LOOK)
        except Exception as error:  # the engine may raise any error: connect anew
            self._tell(f"lost: {type(error).__name__}: {error}")
        self._lost = True
        self._take()
        for request in self._open:
            request.outcome.set_result(None)

    def _step(self) -> None:
        now = time.monotonic()
        if now - self._looked > NODES:
            self._look()
            self._looked = now
        self._take()
        due = [request for request in self._open if now >= request.again]
        self._push(due, now)
        numbers = {number: r for r in self._open for number in r.secrets}
        for reply in self._superlink.pull(list(numbers)) if numbers else ():
            number = reply.metadata.reply_to_message_id
            request = numbers[number]
            outcome = outcome_of(reply, request.secrets.pop(number))
            if outcome is None:
                # The answer came from an unknown sender: ask the client again.
                request.again = 0.0
            elif request in self._open:
                self._close(request, outcome)
        for request in [r for r in self._open if now >= r.end]:
            self._close(request, lost(request.parcel.number, LATE))

    def _take(self) -> None:
        while not self._new.empty():
            self._open.append(self._new.get())

    def _push(self, due: list[_Asked], now: float) -> None:
        messages = []
        for request in due:
            parcel, left = request.parcel, max(0.1, request.end - now)
            node = self._superlink.nodes[parcel.client]
            messages.append((request, *asked(node, parcel.packet, left)))
        numbers = self._superlink.push([message for _, message, _ in messages])
        for number, (request, _, secret) in zip(numbers, messages, strict=True):
            # SuperLink refuses messages for a node that never connected.
            request.again = now + (request.wait if number else ABSENT)
            if number:
                request.wait *= 2
                request.secrets[number] = secret

    def _close(self, request: _Asked, outcome: bytes) -> None:
        self._open.remove(request)
        request.outcome.set_result(outcome)

    def _look(self) -> None:
        since = self._superlink.looked()
        if since.keys() != self._there:
            self._tell(f"there: {' '.join(sorted(since))}")
        for request in self._open:
            client = request.parcel.client
            # The node connected anew and has lost the messages that it had fetched.
            if client in since and since[client] != self._since.get(client, since[client]):
                request.again = 0.0
        self._since |= since
        self._there = frozenset(since)
