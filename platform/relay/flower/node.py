"""A client's side: a loop on SuperLink's Fleet interface that never runs received code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from platform.errors import ProtocolError
from platform.relay.flower.connection import Place, answered, read, read_key
from platform.relay.links import LONGEST_PAUSE, deliver

SHORTEST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 0.25
"""Seconds between two polls for messages: right after a message, and after a long silence."""
ROOM: Final = 4.0
"""A node waits at least this many times the duration of its last poll. SuperLink needs about 5 ms
per poll, so the polls of fifty nodes would otherwise keep it busy all the time.
"""
HEARTBEAT: Final = 10.0
"""Seconds within which SuperLink expects a node's heartbeat: the shortest time that it allows."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """Hands a client's process its messages from SuperLink, and brings back the outcomes.

    Attributes:
        place: Where SuperLink is.
        key: The node's private key; a file beside it keeps the node's number at SuperLink.
        socket: The client process's socket.
        tell: Gets a line for each event.
    """

    place: Place
    key: Path
    socket: Path
    tell: Callable[[str], None]

    def until(self, ended: threading.Event) -> None:
        """Carry messages until `ended` is set; connect again whenever SuperLink restarts."""
        key = read_key(self.key)
        while not ended.is_set():
            try:
                with _fleet(self.place, key) as fleet:
                    self._follow(fleet, self._activated(fleet, key), ended)
            except Exception as error:  # the engine may raise any error: try again
                self.tell(f"not connected: {type(error).__name__}: {error}")
                ended.wait(LONGEST_PAUSE)

    def _activated(self, fleet: Any, key: Any) -> Any:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
        from flwr.proto.node_pb2 import Node as Number
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        # SuperLink counts a killed node as online for 20 s, and refuses its return until then.
        kept = self.key.with_name(f"{self.key.name}.node")
        with suppress(Exception):
            fleet.DeactivateNode(DeactivateNodeRequest(node_id=int(kept.read_text("ascii"))))
        public = public_key_to_bytes(key.public_key())
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
        number = fleet.ActivateNode(request).node_id
        kept.write_text(str(number), "ascii")
        self.tell("connected")
        return Number(node_id=number)

    def _follow(self, fleet: Any, number: Any, ended: threading.Event) -> None:
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PullMessagesRequest
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        wait, beat = SHORTEST_WAIT, time.monotonic()
        beating = SendNodeHeartbeatRequest(node=number, heartbeat_interval=HEARTBEAT)
        while not ended.is_set():
            if time.monotonic() - beat > HEARTBEAT / 2:
                fleet.SendNodeHeartbeat(beating)
                beat = time.monotonic()
            looked = time.monotonic()
            found = fleet.PullMessages(PullMessagesRequest(node=number))
            took = time.monotonic() - looked
            for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                work = partial(self._carry, fleet, number, message_from_proto(proto), tree)
                threading.Thread(target=work, daemon=True).start()
            wait = SHORTEST_WAIT if found.messages_list else min(1.2 * wait, LONGEST_WAIT)
            # A slow poll leaves time for other nodes; `HEARTBEAT` is the longest silence.
            ended.wait(min(max(wait, ROOM * took), HEARTBEAT / 4))
        fleet.DeactivateNode(DeactivateNodeRequest(node_id=number.node_id))

    def _carry(self, fleet: Any, number: Any, head: Any, tree: Any) -> None:
        """Bring one message to the client's process; if this fails, the hub asks again."""
        try:
            message = _pulled(fleet, number, head, tree)
            packet, secret, seconds = read(message)
            outcome = deliver(self.socket, packet, seconds)
            _push(fleet, number, answered(message, outcome, secret))
        except (ProtocolError, TimeoutError) as error:
            self.tell(f"no answer: {error}")
        except Exception as error:  # the engine may raise any error
            self.tell(f"no answer: {type(error).__name__}: {error}")


def _fleet(place: Place, key: Any) -> Any:
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    signing = NodeAuthHttpInterceptor(key, key.public_key())
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    return place.client(FleetHttpClient, [version, signing])


def _pulled(fleet: Any, number: Any, head: Any, tree: Any) -> Any:
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
    )

    run, name = head.metadata.run_id, head.metadata.message_id
    contents = pull_objects(
        [part.object_id for part in iterate_object_tree(tree)],
        pull_object_fn=make_pull_object_fn_protobuf(fleet.PullObject, number, run),
        initial_backoff=0.02,
    )
    make_confirm_message_received_fn_protobuf(fleet.ConfirmMessageReceived, number, run)(name)
    message = inflate_object_from_contents(name, contents)
    message.metadata.__dict__["_message_id"] = name
    return message


def _push(fleet: Any, number: Any, reply: Any) -> None:
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        request = PushMessagesRequest(
            node=number,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[0.0],
        )
        said = fleet.PushMessages(request)
        sending = make_push_object_fn_protobuf(
            fleet.PushObject, number, reply.metadata.run_id, said.session_id
        )
        wanted = set(said.objects_to_push)
        push_objects(get_all_nested_objects(reply), sending, object_ids_to_push=wanted)
