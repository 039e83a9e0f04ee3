"""The two ends of the relay that FLARE's jobs load: one at its server, one at each site.

FLARE reaches sites by the names in their certificates. The server accepts an outcome from a site
only if the key that the enrolment binds to the site's name signed it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platform.errors import ProtocolError
from platform.relay.links import Parcel, hand_over, lost, read_nodes, relay
from platform.relay.nvflare.site import server_paths_of, signed, socket_of, verified
from platform.relay.packets import decode_request

SERVER: Final = "server"
"""FLARE's name for its server in a job."""
PAUSE: Final = 0.2


class ServerRelay:
    """The end at the engine's server: connects to the coordinator's hub."""

    def __init__(self) -> None:
        from nvflare.collab import collab

        self.carry_all = collab.main(_carry_all)


class ClientRelay:
    """The end at a site: delivers to the data holder's process."""

    def __init__(self) -> None:
        from nvflare.collab import collab

        self.deliver = collab.publish(_deliver)


def _carry_all() -> None:
    from nvflare.collab import collab

    context = collab.context
    sites = {proxy.name: proxy for proxy in context.clients}
    hub, enrolment = server_paths_of(Path(context.workspace.get_site_config_dir()))
    nodes = read_nodes(enrolment)

    def carry(parcel: Parcel) -> bytes | None:
        answer = _carry(sites, context, parcel)
        if answer is None:
            return None
        try:
            return verified(nodes[parcel.client], parcel.packet, answer)
        except ProtocolError as error:
            return lost(parcel.number, str(error))

    # The relay carries no messages for a site without an enrolled node key.
    carried = [name for name in sites if name in nodes]
    relay(hub, carried, carry, context.is_aborted)


def _carry(sites: Mapping[str, Any], context: Any, parcel: Parcel) -> object:
    """Bring a request to its site; retry until its time is over or the job ends.

    The answer may be of any type; None if there was no answer.
    """
    from nvflare.collab import CollabCallError
    from nvflare.collab.api.exceptions import RunAborted

    end = time.monotonic() + parcel.seconds
    while (left := end - time.monotonic()) > 0 and not context.is_aborted():
        try:
            outcome = sites[parcel.client](timeout=left).deliver(parcel.packet, left)
        except RunAborted:
            return None
        except CollabCallError:
            # The site is gone, or has not connected yet. The next job may reach it in time.
            time.sleep(min(PAUSE, left))
            continue
        return b"" if outcome is None else outcome
    # If the job ends, the hub asks again through the next relay.
    return None


def _deliver(packet: bytes, seconds: float) -> bytes:
    from nvflare.collab import collab

    if collab.caller != SERVER:
        raise PermissionError("only the engine's server delivers")
    asked = decode_request(packet)
    if asked.client != collab.site_name:
        raise ProtocolError(f"packet: it is not for {collab.site_name}")
    socket = socket_of(Path(collab.workspace.get_site_config_dir()))
    outcome = hand_over(socket, Parcel(asked.number, asked.client, float(seconds), packet))
    return signed(Path(collab.workspace.get_startup_kit_dir()), packet, outcome)
