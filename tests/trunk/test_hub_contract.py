"""Hub, relay and clients' sockets are held to what every transport is held to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from platform.relay.hub import Hub, HubTransport
from platform.wire.transport import InProcessTransport, Transport
from tests.trunk._hubs import relayed, served
from tests.trunk._transports import TransportContract


class _WithLosses:
    """Loses in a round whom the transport within would lose; all else goes over sockets."""

    def __init__(self, within: InProcessTransport, sockets: HubTransport) -> None:
        self._within, self._sockets = within, sockets

    def exchange(self, stage, messages, deadline):
        lost = frozenset()
        if messages and stage == self._within.lost_at:
            # Its own rule says who.
            lost = self._within._lost(next(iter(messages.values())), sorted(messages))
        reached = {client: m for client, m in messages.items() if client not in lost}
        return self._sockets.exchange(stage, reached, deadline)


class TestOverSockets(TransportContract):
    @pytest.fixture(autouse=True)
    def stack(self) -> Iterator[None]:
        with ExitStack() as self._stack:
            yield

    def carry(self, within: InProcessTransport, folder: Path) -> Transport:
        place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hub")))
        names = sorted(within.handlers)
        sockets = self._stack.enter_context(served(within.handlers, place))
        self._stack.enter_context(relayed(place / "hub", sockets))
        hub = self._stack.enter_context(Hub(path=place / "hub", clients=names))
        return _WithLosses(within, HubTransport(hub, {}, 60.0))
