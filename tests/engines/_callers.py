"""Run in FLARE's environment: who may have a site deliver, and what.

Arguments: the site's place, and the folder `startup` of the kit with whose key it signs.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from nvflare.apis.workspace import Workspace
from nvflare.collab.api.app import ClientApp

from platform.relay.nvflare.job import ClientRelay
from platform.relay.nvflare.site import node_of, verified
from platform.relay.packets import Request, decode_outcome, encode_packet

root = Path(sys.argv[1])
(root / "local").mkdir(parents=True)
shutil.copytree(sys.argv[2], root / "startup")
(root / "local" / "sotto.json").write_text(json.dumps({"socket": str(root / "nobody.sock")}))
relay = ClientRelay()
app = ClientApp(relay)
app.name = "east"
app._workspace = Workspace(str(root))


def said(caller: str, client: str) -> str:
    """What comes of a request for a client, if this caller brings it to the site `east`."""
    app.new_context(caller=caller, callee="east")
    asked = encode_packet(Request(1, client, 9.0, b"m"))
    try:
        answer = relay.deliver(asked, 0.2)
    except Exception as error:
        return type(error).__name__
    return decode_outcome(verified(node_of(root / "startup"), asked, answer)).kind


print(said("server", "east"), said("west", "east"), said("server", "west"))
