"""The commands `python -m platform.relay.nvflare site|node|keep ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from platform.errors import ConfigError
from platform.relay.links import end_by_signal, say
from platform.relay.nvflare.keeping import Keeper
from platform.relay.nvflare.site import node_of, settle

USAGE: Final = """python -m platform.relay.nvflare site KIT SOCKET [ENROLMENT]
    on each site's machine, once: set the socket for its relay; at the server, add the enrolment
python -m platform.relay.nvflare node KIT
    on each site's machine: print its node key, which the enrolment binds to the client
python -m platform.relay.nvflare keep KIT CLIENT...
    with an admin's kit, as long as the federation lasts: keep the relay's job running
"""


def main(arguments: list[str]) -> int:
    """Run one command; return the exit code."""
    try:
        match arguments:
            case ["site", kit, socket]:
                settle(Path(kit), Path(socket))
            case ["site", kit, socket, enrolment]:
                settle(Path(kit), Path(socket), Path(enrolment))
            case ["node", kit]:
                say(node_of(Path(kit) / "startup"))
            case ["keep", kit, *clients] if clients:
                keeper = Keeper(kit=Path(kit), clients=clients, tell=say)
                keeper.until(end_by_signal())
            case _:
                sys.stderr.write(USAGE)
                return 2
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
