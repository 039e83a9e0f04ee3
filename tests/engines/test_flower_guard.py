"""What stands before SuperLink in its own process: from where one may ask for what."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from platform.relay.flower.superlink import Guard, guarded


def answered(path: str, client: tuple[str, int] | None, kind: str = "http") -> list[int]:
    """The status of what comes back; 200 is SuperLink's own."""
    sent = []

    async def superlink(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client}
    asyncio.run(Guard(superlink)(scope, None, send))
    return [message["status"] for message in sent if "status" in message]


FAR, NEAR = ("10.77.0.2", 4000), ("127.0.0.1", 4000)


@pytest.mark.parametrize("client", [FAR, NEAR, ("::1", 1), None])
def test_anybody_may_ask_what_nodes_ask(client):
    assert answered("/v1/fleet/pull-messages", client) == [200]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/control/unregister-node", "/v1/runtime/acquire-task", "/", "/v1/fleet"),
        *("/v1/FLEET/x", "/v1/fleet/../control/start-run", "//v1/fleet/pull-messages"),
    ],
)
def test_only_the_machine_itself_may_ask_for_more(path):
    assert answered(path, FAR) == [403]
    assert answered(path, None) == [403]
    assert answered(path, ("::ffff:10.77.0.2", 1)) == [403]
    assert answered(path, NEAR) == [200]


def test_other_kinds_of_connections_are_refused():
    assert answered("/v1/fleet/pull-messages", NEAR, "websocket") == [403]


def test_certificates_are_asked_for_and_nobody_says_from_where_he_connects():
    served = {}
    guarded(lambda **options: served.update(options), Path("ca.pem"))("app", proxy_headers=True)
    assert served["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert served["ssl_ca_certs"] == "ca.pem"
    assert served["proxy_headers"] is False
    served.clear()
    guarded(lambda **options: served.update(options), None)("app")
    assert "ssl_cert_reqs" not in served
    assert served["app"] == Guard("app")
