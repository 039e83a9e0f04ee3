"""A worker process: takes cells one by one, runs or resumes each, and answers with its run.

What crosses the pipe is JSON. A worker ends with its parent, however that ends, and Ctrl-C at the
terminal is the parent's affair: it ends its workers in the midst of their runs, which then are
resumed as after any kill.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from methods import MethodError
from platform.bootstrap import Surroundings, create_run, reopen_run
from platform.config import RunConfig, parse_config
from platform.disk.opening import run_folder
from platform.disk.run_lock import wait_until_free
from platform.errors import PlatformError
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from platform.sweeping.grid import identity
from platform.sweeping.known_runs import known_runs, only_worker_of
from privacy import PrivacyError
from storage import StorageError

LOGGER = logging.getLogger(__name__)
FORESEEN = (PlatformError, MethodError, PrivacyError, StorageError, OSError)
"""Errors whose message is a sentence for the user."""


def serve(connection: Connection) -> None:
    """Answer cells until the parent closes the pipe.

    A message is a configuration as JSON; an answer is `{"run_id", "error", "seconds"}`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    try:
        while True:
            answer = answer_cell(json.loads(connection.recv_bytes()))
            connection.send_bytes(json.dumps(answer).encode())
            # What a run leaves behind holds itself alive in circles.
            gc.collect()
    except (EOFError, BrokenPipeError):
        return


def answer_cell(tree: dict[str, Any]) -> dict[str, Any]:
    """Run a cell, whatever comes of it.

    Args:
        tree: The whole configuration.
    """
    started = time.perf_counter()
    run_id: str | None = None
    error: str | None = None
    try:
        run_id = run_cell(parse_config(tree))
    except FORESEEN as failure:
        error = str(failure)
    except Exception as failure:
        # A mistake in a method must not end the other cells; its trace is worth keeping.
        LOGGER.exception("a cell failed")
        error = f"{type(failure).__name__}: {failure}"
    return {"run_id": run_id, "error": error, "seconds": time.perf_counter() - started}


def run_cell(config: RunConfig) -> str:
    """Run a cell, goes on with its unfinished run, or finds that it has finished.

    Returns:
        The run's id.

    Raises:
        PlatformError: If the run cannot start or go on; also the errors of the other packages.
    """
    url, cell = config.storage.url, identity(config.model_dump(mode="json"))
    with only_worker_of(url, cell):
        known = known_runs(url).get(cell)
        if known is not None and not known.finished:
            # `run` and `run --resume` know nothing of cells; what they finish is not run again.
            wait_until_free(run_folder(url, known.run_id))
            known = known_runs(url).get(cell)
        if known is not None and known.finished:
            return known.run_id
        observer, surroundings = SilentObserver(), Surroundings()
        if known is None:
            simulation = create_run(config, observer, surroundings)
        else:
            simulation = reopen_run(known.run_id, url, observer, surroundings)
        try:
            execute(simulation, observer)
        finally:
            simulation.database.close()
        return simulation.run_id


def _end_with_parent() -> None:
    """End with the parent: killed, it cannot say so, and its run would go on beside another."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
