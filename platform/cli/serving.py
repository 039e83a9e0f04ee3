"""The data holder's process: log lines of what it is asked for, until it is ended."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from platform.bootstrap import Surroundings
from platform.bootstrap.joining import serve_holder
from platform.cli.interrupting import CLIENT, Ended, ending_at_once
from platform.errors import listed
from platform.holder.settings import HolderSettings, load_holder
from platform.holder.store import Keeping

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_command(config: Path, *, as_json: bool) -> None:
    """Run a data holder's client until SIGTERM or Ctrl-C; what it is at is finished first.

    A second signal ends it where it is.

    Args:
        config: Its YAML file.
        as_json: Whether each log line is a JSON object.

    Raises:
        Ended: After Ctrl-C; a service that is told to end by SIGTERM has ended as it should.
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

    came: list[int] = []

    def told(number: int) -> Ended:
        return _ended(number, settings, config)

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        ended.set()
        for each in ENDING:
            signal.signal(each, ending_at_once(told))

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        serve_holder(settings, Surroundings(), tell, ended)
    finally:
        for number, handler in () if came else before.items():
            signal.signal(number, handler)
    tell(f"{settings.name} has ended")
    # SIGTERM is how a service is told to end, and it has done so.
    if came[:1] == [signal.SIGINT]:
        raise told(signal.SIGINT)


def _ended(number: int, settings: HolderSettings, config: Path) -> Ended:
    going = Keeping(settings.storage).going_on()
    runs = f"; it takes part in {listed(going)}" if going else ""
    return Ended(
        number,
        f"{settings.name} has ended{runs}",
        run_id=going[0] if len(going) == 1 else None,
        command=shlex.join((*CLIENT, str(config))),
    )
