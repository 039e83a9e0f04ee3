"""A ClientApp for SuperNodes as Flower ships them; slower, as each message is a new process.

The path of the client's socket is the SuperNode's own: `--node-config 'socket="PATH"'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from platform.errors import ConfigError
from platform.relay.flower.records import answered, read
from platform.relay.links import deliver

client = ClientApp()


def _carry(message: Any, context: Any) -> Any:
    # Not from `run_config`: that arrives from the server.
    socket = context.node_config.get("socket")
    if not isinstance(socket, str):
        raise ConfigError('node-config: valid: socket="PATH"')
    packet, secret, seconds = read(message)
    return answered(message, deliver(Path(socket), packet, seconds), secret)


client.query()(_carry)
