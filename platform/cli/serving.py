"""The data holder's process: log lines of what it is asked for, until it is ended."""

from __future__ import annotations

import json
import signal
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from platform.bootstrap import Surroundings
from platform.bootstrap.joining import serve_holder
from platform.holder.settings import load_holder

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_command(config: Path, *, as_json: bool) -> None:
    """Run a data holder's client until SIGTERM or Ctrl-C; what it is at is finished first.

    Args:
        config: Its YAML file.
        as_json: Whether each log line is a JSON object.

    Raises:
        ConfigError: If the settings are not valid, or another process serves at the socket.
        StorageError: If its store cannot be used.
    """
    settings, ended = load_holder(config), threading.Event()

    def tell(line: str) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        text = json.dumps({"time": now, "event": line}) if as_json else f"{now} {line}"
        # A log that cannot be written, on a full disk say, changes nothing of what is answered.
        with suppress(OSError):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    before = {number: signal.signal(number, lambda *_: ended.set()) for number in ENDING}
    try:
        serve_holder(settings, Surroundings(), tell, ended)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    tell(f"{settings.name} has ended")
