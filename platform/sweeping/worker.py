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
from pathlib import Path
from typing import Any

from methods import MethodError
from platform.bootstrap import Surroundings, create_run, reopen_run
from platform.config import RunConfig, parse_config
from platform.config.run import code_of, identity
from platform.disk.files import wait_until_free
from platform.disk.opening import run_folder
from platform.errors import ConfigError, PlatformError
from platform.experiment.finishing import execute
from platform.experiment.method_building import origin_document
from platform.rounds.observing import SilentObserver
from platform.sweeping.known_runs import known_runs, only_worker_of
from privacy import PrivacyError
from storage import StorageError

LOGGER = logging.getLogger(__name__)
FORESEEN = (PlatformError, MethodError, PrivacyError, StorageError, OSError)
"""Errors whose message is a sentence for the user."""


def serve(connection: Connection, folder: str | None) -> None:
    """Answer cells until the parent closes the pipe.

    A message is `{"config", "code"}` as JSON; an answer is `{"run_id", "error", "seconds"}`.

    Args:
        connection: To the parent.
        folder: Where the user has methods of their own, None for nowhere.
    """
    surroundings = Surroundings.with_methods(None if folder is None else Path(folder))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    try:
        while True:
            message = json.loads(connection.recv_bytes())
            answer = answer_cell(message["config"], message["code"], surroundings)
            connection.send_bytes(json.dumps(answer).encode())
            # What a run leaves behind holds itself alive in circles.
            gc.collect()
    except (EOFError, BrokenPipeError):
        return


def answer_cell(
    tree: dict[str, Any], code: str | None = None, surroundings: Surroundings | None = None
) -> dict[str, Any]:
    """Run a cell, whatever comes of it.

    Args:
        tree: The whole configuration.
        code: SHA-256 of the method's file where it comes from outside, else None.
        surroundings: What the run takes from outside its configuration.
    """
    started = time.perf_counter()
    run_id: str | None = None
    error: str | None = None
    try:
        run_id = run_cell(parse_config(tree), code, surroundings)
    except FORESEEN as failure:
        error = str(failure)
    except Exception as failure:
        # A mistake in a method must not end the other cells; its trace is worth keeping.
        LOGGER.exception("a cell failed")
        error = f"{type(failure).__name__}: {failure}"
    return {"run_id": run_id, "error": error, "seconds": time.perf_counter() - started}


def _require_code(name: str, code: str | None, surroundings: Surroundings) -> None:
    """Check that a method's file is the one that the sweep was made with."""
    if code_of(origin_document(surroundings.registry, name)) != code:
        raise ConfigError(
            f"--methods: the file of {name!r} has changed since the sweep began; start it again"
        )


def run_cell(
    config: RunConfig, code: str | None = None, surroundings: Surroundings | None = None
) -> str:
    """Run a cell, go on with its unfinished run, or find that it has finished.

    Args:
        config: The whole configuration.
        code: SHA-256 of the method's file where it comes from outside, else None.
        surroundings: What the run takes from outside its configuration.

    Returns:
        The run's id.

    Raises:
        ConfigError: If the method's file is another than when the sweep was set up.
        PlatformError: If the run cannot start or go on; also the errors of the other packages.
    """
    surroundings = surroundings or Surroundings()
    _require_code(config.method.name, code, surroundings)
    url, cell = config.storage.url, identity(config.model_dump(mode="json"), code)
    with only_worker_of(url, cell):
        known = known_runs(url).get(cell)
        if known is not None and not known.finished:
            # `run` and `run --resume` know nothing of cells; what they finish is not run again.
            wait_until_free(run_folder(url, known.run_id))
            known = known_runs(url).get(cell)
        if known is not None and known.finished:
            return known.run_id
        observer = SilentObserver()
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
