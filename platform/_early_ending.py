"""How a command ends by a signal while its own modules are still being imported.

Nothing has begun then, so nothing is undone. The command says "interrupted", without a traceback,
and exits with 128 plus the signal. `platform.cli.ending` takes over once it is imported.

Imports the standard library only: it runs before anything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128


def end_early_by_signals() -> None:
    """Let signals end this process at once; a signal that is ignored stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    code, text = SIGNALLED + number, "interrupted"
    if "--json" in sys.argv[1:]:
        nothing = dict.fromkeys(("field", "run_id", "command"))
        text = json.dumps({"error": text, "kind": text, "exit_code": code, **nothing})
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        # After SIGHUP there may be no terminal left to write to.
        pass
    # The interpreter's own exit would wait for threads and print tracebacks.
    os._exit(code)
