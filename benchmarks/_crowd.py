"""Many data holders in few processes: each a thread with its own folder, key, store and socket.

Each holder runs the client's own code behind the client's own socket. Holders of one process share
only the frozen model, because one process for each would not fit into memory. In every round a
tenth of the holders is lost, in one of three ways, when invited or when asked to train:

- `late`: the holder answers, but after the coordinator has gone on;
- `cut`: the thread dies with the message, and so does the connection;
- `closed`: the host closes, its socket disappears, and later a new host opens that knows only the
  store.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal

from benchmarks._sizes import START
from platform.config.sections import ModelConfig
from platform.data.preparing import frozen_model
from platform.experiment.environment import use_threads
from platform.experiment.joining import host_of
from platform.experiment.planning import Surroundings
from platform.holder.serving import Serving
from platform.holder.settings import HolderSettings, load_holder
from platform.wire.codec import peek
from platform.wire.receipt_messages import bare

Way = Literal["late", "cut", "closed"]
Moment = Literal["invitation", "assignment"]
WAYS: Final[tuple[Way, ...]] = ("late", "cut", "closed")
MOMENTS: Final[tuple[Moment, ...]] = ("invitation", "assignment")
ENDING: Final = 60.0


class Cut(BaseException):
    """Ends the answering thread; the handlers that keep a client alive do not catch this."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Which holders are lost in which round; every process draws the same.

    Attributes:
        names: All clients.
        rate: Share of the clients that is lost in a round.
        rounds: Number of rounds of the run.
        seconds: How long a lost client stays away; longer than the coordinator's deadlines.
    """

    names: tuple[str, ...]
    rate: float
    rounds: int
    seconds: float

    def of(self, round_number: int) -> Mapping[str, tuple[Way, Moment]]:
        """Return which clients are lost in a round, with the way and the moment of each."""
        if not 1 <= round_number <= self.rounds:
            return {}
        draws = random.Random(f"losses {round_number}")  # noqa: S311 - no secret
        lost = draws.sample(self.names, round(self.rate * len(self.names)))
        # Ways take turns, so that all of them occur even if few clients are lost.
        ways = ((WAYS[at % 3], MOMENTS[(at + round_number) % 2]) for at in range(len(lost)))
        return dict(zip(lost, ways, strict=True))


@dataclass
class Holder:
    """One data holder: a host behind a socket, which can close and open again."""

    settings: HolderSettings
    losses: Losses
    ended: threading.Event = field(default_factory=threading.Event)
    _closed: threading.Event = field(default_factory=threading.Event)
    _lost: set[int] = field(default_factory=set)

    def until_ended(self) -> None:
        """Serve; after each closing, wait and open a new host that knows only the store."""
        while not self.ended.is_set():
            self._closed.clear()
            self._serve()
            if not self.ended.is_set():
                self.ended.wait(self.losses.seconds)

    def _serve(self) -> None:
        with (self.settings.storage.parent / "log.txt").open("a", buffering=1) as log:
            host = host_of(self.settings, Surroundings(), lambda line: print(line, file=log))

            def handle(message: bytes) -> bytes:
                return self._answer(message, host.handle)

            path = self.settings.socket_path
            Serving(name=self.settings.name, path=path, handler=handle).until(self._closed)

    def end(self) -> None:
        """Stop serving."""
        self.ended.set()
        self._closed.set()

    def _answer(self, message: bytes, handle: object) -> bytes:
        kind, envelope = peek(bare(message))
        number = envelope.round_number
        way, moment = self.losses.of(number).get(self.settings.name, (None, None))
        # A relay that lost its connection may ask again until the host is closed.
        is_over = number in self._lost and way != "cut" and not self._closed.is_set()
        if way is None or moment != kind or is_over:
            return handle(message)  # type: ignore[operator,no-any-return]
        self._lost.add(number)
        if way == "cut":
            raise Cut
        if way == "closed":
            self._closed.set()
            raise Cut
        answer: bytes = handle(message)  # type: ignore[operator]
        self.ended.wait(self.losses.seconds)
        return answer


def _crowd(folder: Path, names: Sequence[str], losses: Losses, told: Connection) -> None:
    use_threads(1)
    # Each holder needs files for a socket, a log and a store.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(1 << 20)
    threading.excepthook = lambda hook: (
        None if hook.exc_type is Cut else threading.__excepthook__(hook)
    )
    # Load the model once, before any holder joins.
    frozen_model(ModelConfig(name="sotto-tiny"), "cpu")
    settings = [load_holder(folder / name / "client.yaml") for name in names]
    holders = [Holder(each, losses) for each in settings]
    workers = [threading.Thread(target=holder.until_ended) for holder in holders]
    for worker in workers:
        worker.start()
    told.send(len(workers))
    told.recv()
    for holder in holders:
        holder.end()
    for worker in workers:
        worker.join(ENDING)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told.send((used.ru_maxrss / 2**20, used.ru_utime + used.ru_stime))


@dataclass
class Crowd:
    """The processes of all holders.

    Attributes:
        sockets: The path of each holder's socket.
        used: Peak memory in GiB and processor time in s of each process; filled after the
            processes have ended.
    """

    sockets: Mapping[str, Path]
    used: list[tuple[float, float]] = field(default_factory=list)


@contextmanager
def crowd(folder: Path, losses: Losses, processes: int) -> Iterator[Crowd]:
    """Serve all holders of a folder while the context lasts.

    Args:
        folder: Holds `NAME/client.yaml` for each holder.
        losses: Which holders are lost, and when.
        processes: Number of processes that share the holders.
    """
    context, names = multiprocessing.get_context(START), losses.names
    running = []
    for number in range(processes):
        here, there = context.Pipe()
        arguments = (folder, names[number::processes], losses, there)
        process = context.Process(target=_crowd, args=arguments, daemon=True)
        process.start()
        running.append((process, here))
    found = Crowd({name: folder / name / "store" / "client.sock" for name in names})
    try:
        for _, pipe in running:
            pipe.recv()
        yield found
    finally:
        for process, pipe in running:
            pipe.send("end")
            if pipe.poll(ENDING):
                found.used.append(pipe.recv())
            process.join(ENDING)
            process.kill()
