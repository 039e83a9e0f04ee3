"""Keeps FLARE's job running: submits it again whenever the job ends or lacks a connected site.

FLARE ends a job when the process of any of its sites dies. Unanswered requests stay open at the
hub, and the hub asks again through the next job. So an ended job costs only time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

from platform.errors import ConfigError
from platform.relay.nvflare.site import CLIENT_CLASSES, SERVER_CLASSES

JOB: Final = "sotto-relay"
THREADS: Final = 64
"""How many messages a site handles at once; the server handles as many for each site."""
PATIENCE: Final = 20.0
"""Seconds that the keeper waits for missing sites before it starts a job without them."""
PAUSE: Final = 0.5
SHORT: Final = 30.0
"""A job that ends within this many seconds has failed; each failure in a row doubles the wait."""
LONGEST_WAIT: Final = 60.0
MOST_UNSEEN: Final = 6
"""In how many checks in a row a running job may be missing at the server."""
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"


def job_files(sites: Sequence[str]) -> dict[str, Any]:
    """Return a job's files by their paths: configuration, and no code."""
    server, client = (
        {"max_inbound_call_threads": n, "max_outbound_call_threads": n, "props": {}}
        for n in (THREADS * len(sites), THREADS)
    )
    controller, server_relay = SERVER_CLASSES
    executor, client_relay = CLIENT_CLASSES
    server |= {"server_obj_id": "_server", "collab_obj_ids": []}
    client |= {"client_obj_id": "_client", "collab_obj_ids": []}
    no_filters: dict[str, Any] = {"task_data_filters": [], "task_result_filters": []}
    return {
        "meta.json": {
            "name": JOB,
            "resource_spec": {},
            "min_clients": len(sites),
            "mandatory_clients": list(sites),
            "deploy_map": {"app": ["server", *sites]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "controller", "path": controller, "args": server}],
            "components": [{"id": "_server", "path": server_relay, "args": {}}],
            **no_filters,
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": client}}],
            "components": [{"id": "_client", "path": client_relay, "args": {}}],
            **no_filters,
        },
    }


@dataclass(kw_only=True)
class _Job:
    """A job that was submitted.

    Attributes:
        submitted: The time of submission, in seconds of this process's monotonic clock.
        unseen: In how many checks in a row it was missing at the server.
        ending: Whether the keeper has told it to end.
    """

    name: str
    sites: frozenset[str]
    submitted: float
    unseen: int = 0
    ending: bool = False


@dataclass(kw_only=True)
class Keeper:
    """Keeps one job running for the connected sites of a federation.

    Attributes:
        kit: The start-up kit of an admin who may submit jobs (`lead`).
        clients: The federation's clients; sites have the same names.
        tell: Gets a line for each event.
    """

    kit: Path
    clients: Sequence[str]
    tell: Callable[[str], None]
    _job: _Job | None = field(default=None, init=False)
    _said: str = field(default="", init=False)
    _waiting_since: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _strays: set[str] = field(default_factory=set, init=False)

    def until(self, ended: Event) -> None:
        """Keep the job running until `ended` is set, then end the job."""
        path = self.kit / "startup" / "fed_admin.json"
        try:
            name = str(json.loads(path.read_text("utf-8"))["admin"]["username"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{str(self.kit)!r} is not an admin's start-up kit") from error
        while not ended.is_set():
            try:
                self._follow(name, ended)
            except Exception as error:  # the engine may raise any error: ask again
                self._say(f"the server did not answer: {type(error).__name__}: {error}")
                ended.wait(2 * PAUSE)

    def _follow(self, name: str, ended: Event) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        session = new_secure_session(name, str(self.kit), timeout=10.0)
        try:
            while not ended.wait(PAUSE):
                self._look(session)
            if self._job is not None:
                session.abort_job(self._job.name)
        finally:
            session.close()

    def _look(self, session: Any) -> None:
        system = session.get_system_info()
        sites = frozenset(self.clients) & {client.name for client in system.client_info}
        if self._job is not None:
            self._watch(session, self._job, sites, {job.job_id for job in system.job_info})
        elif sites and self._waited_for(sites):
            # End jobs that an earlier keeper or a killed server left running.
            for job in session.list_jobs(name_prefix=JOB):
                ended = str(job["status"]).startswith(FINISHED)
                if not ended and job["job_id"] not in self._strays:
                    # Only once: the list may show a killed server's job as running for ever.
                    self._strays.add(job["job_id"])
                    session.abort_job(job["job_id"])
            self._submit(session, sites)

    def _watch(self, session: Any, job: _Job, sites: frozenset[str], there: set[str]) -> None:
        status = session.get_job_status(job.name) or f"{FINISHED}:UNKNOWN"
        alive = status != RUNNING or job.name in there
        job.unseen = 0 if alive else job.unseen + 1
        if status.startswith(FINISHED) or job.unseen > MOST_UNSEEN:
            self._say(f"job ended: {status if alive else 'the server has forgotten it'}")
            short = time.monotonic() - job.submitted < SHORT and not job.ending
            self._job, self._failures = None, self._failures + 1 if short else 0
            # After a first failure the keeper retries at once: the cause may be over.
            wait = min(2.0**self._failures, LONGEST_WAIT) if self._failures > 1 else 0.0
            self._waiting_since = time.monotonic() + wait
        elif status == RUNNING and alive and not job.ending:
            self._say(f"running: {' '.join(sorted(job.sites))}")
            if sites - job.sites:
                self._say(f"restarting for {' '.join(sorted(sites - job.sites))}")
                session.abort_job(job.name)
                job.ending = True

    def _waited_for(self, sites: frozenset[str]) -> bool:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since
        return waited >= (0.0 if sites == frozenset(self.clients) else PATIENCE)

    def _submit(self, session: Any, sites: frozenset[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="sotto-job-") as folder:
            root = Path(folder) / JOB
            for path, tree in job_files(sorted(sites)).items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(json.dumps(tree, indent=2), "utf-8")
            name = session.submit_job(str(root))
        self._job = _Job(name=name, sites=sites, submitted=time.monotonic())
        self._say(f"submitted for {' '.join(sorted(sites))}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self.tell(line)
