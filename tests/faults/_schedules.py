"""Schedules of faults, drawn from a seed before anything starts, so that each can be repeated."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.faults._children import MISCHIEF
from tests.faults._invariants import Watch
from tests.faults._processes import COORDINATOR, RELAY, Processes
from tests.faults._proxy import WAYS, Proxy
from tests.faults._wire import Wire

HUB = "hub"
"""The name of the proxy between relay and hub."""
ENGINE = "engine"
"""The name of the proxy between an engine's server and one of its clients."""
SIZES = (0, 4_096, 40_000, 120_000)
"""Bytes beyond which no file grows on a full disk."""
FULL_SENTENCE = re.compile(r"error: .*\bfull$")
"""What a process says that cannot start for that."""
PACKETS = 20
"""Packets between two faults at most; a round of three clients has 24 to 30."""
PATIENCE = 3.0
"""Seconds that these are waited for."""
JUMPS = (-86_400.0 * 400, -3_600.0, -1.0, 3_600.0, 86_400.0 * 400)
"""Seconds that a wall clock jumps."""


@dataclass(frozen=True)
class Blow:
    """One fault, after so many more packets, so that it strikes anywhere in a run."""

    after: int
    what: str
    who: str
    how: tuple = ()


def schedule(
    seed: int,
    names: tuple[str, ...],
    *,
    blows: int,
    engine: tuple[str, ...] = (),
    between: bool = False,
) -> list[Blow]:
    """Draws a schedule, for our own relay or an engine that relays and may be cut between."""
    draws = random.Random(seed)
    processes = (*names, *(engine or (RELAY,)), COORDINATOR)
    ours = (*names, COORDINATOR)
    framed = (HUB, *names)
    paths = (*framed, *((ENGINE,) if between else ()))
    kinds: Mapping[str, tuple[tuple[str, ...], Callable[[], tuple]]] = {
        "kill": (processes, lambda: (draws.choice((0.0, 0.0, draws.uniform(0.0, 1.5))),)),
        "stop": (processes, lambda: (draws.uniform(0.1, 2.0),)),
        "end": (ours, lambda: ()),
        "cut": (paths, lambda: (draws.choice(WAYS), int(10 ** draws.uniform(0.0, 4.5)))),
        "refuse": (paths, lambda: (draws.uniform(0.1, 2.0),)),
        "stall": (paths, lambda: (draws.uniform(0.1, 2.0),)),
        "slow": (paths, lambda: (10 ** draws.uniform(3.0, 5.0), draws.uniform(0.5, 2.0))),
        "duplicate": (framed, lambda: (draws.choice(WAYS),)),
        "delay": (framed, lambda: (draws.choice(WAYS), draws.uniform(0.1, 2.0))),
        "replay": (framed, lambda: (draws.choice(WAYS),)),
        "full": (ours, lambda: (draws.choice(SIZES), draws.uniform(0.3, 2.0))),
        "clock": (ours, lambda: (draws.choice(JUMPS),)),
        "mischief": (ours, lambda: ()),
        "second": (ours, lambda: (draws.uniform(0.5, 2.0),)),
    }
    often = [*kinds, "kill", "kill", "stop", "cut", "mischief", "mischief", "full"]
    found = []
    for _ in range(blows):
        what = draws.choice(often)
        among, how = kinds[what]
        who = draws.choice(among)
        more = how()
        if what == "mischief":
            kind = COORDINATOR if who == COORDINATOR else "client"
            more = (draws.choice(MISCHIEF[kind]),)
        found.append(Blow(draws.randint(0, PACKETS), what, who, more))
    return found


@dataclass
class Storm:
    """What a schedule is carried out on."""

    processes: Processes
    proxies: Mapping[str, Proxy]
    wire: Wire
    watch: Watch
    # How each part of an engine is killed and started again, or stopped.
    engine: Mapping[str, Callable[[str], None]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    _begun: float = field(default_factory=time.monotonic)

    def run(self, blows: list[Blow], seconds: float) -> None:
        """Carries a schedule out, and has the run finish then."""
        end = time.monotonic() + seconds
        for blow in blows:
            if self._waited_for(blow.after):
                break
            self._do(blow)
            self.watch.look()
        self._calm()
        while not self._is_finished(0.5):
            self._look_after_all()
            assert time.monotonic() < end, "the run has not finished"
        self.watch.look()

    def _waited_for(self, packets: int) -> bool:
        """Waits until so many packets have crossed the wire; whether the run is over."""
        enough, end = self.wire.packets + packets, time.monotonic() + PATIENCE
        while not (finished := self._is_finished(0.01)):
            if self.wire.packets >= enough or time.monotonic() > end:
                break
        return finished

    def _is_finished(self, pause: float) -> bool:
        """Waits for the coordinator; starts it again if it ended and the run goes on."""
        processes = self.processes
        processes.living[COORDINATOR].join(pause)
        if processes.living[COORDINATOR].exitcode is None:
            return False
        processes.reap(COORDINATOR)
        if [status for _, status in processes.runs] == ["finished"]:
            return True
        self._note("coordinator ended")
        processes.start(COORDINATOR)
        return False

    def _look_after_all(self) -> None:
        """Starts again whoever was killed by mischief; nobody ends by itself."""
        for who in self.processes.everybody:
            if who != COORDINATOR and self.processes.reap(who):
                self._note(f"{who} ended")
                self.processes.start(who)

    def _calm(self) -> None:
        for proxy in self.proxies.values():
            proxy.calm()

    def _note(self, line: str) -> None:
        self.trace.append(f"{time.monotonic() - self._begun:7.2f}  {line}")

    def _do(self, blow: Blow) -> None:
        self._note(f"{blow.what} {blow.who} {blow.how}")
        own = {
            "kill": self._kill,
            "stop": self._stop,
            "end": self._end,
            "full": self._fill,
            "second": self._second,
        }
        if blow.what in own:
            own[blow.what](blow.who, *blow.how)
        elif blow.what == "clock":
            self.processes.tell(blow.who, "clock", str(blow.how[0]))
        elif blow.what == "mischief":
            self.processes.tell(blow.who, "mischief", blow.how[0])
        else:
            getattr(self.proxies[blow.who], blow.what)(*blow.how)

    def _kill(self, who: str, pause: float) -> None:
        if who in self.engine:
            self.engine[who]("kill")
            time.sleep(pause)
            self.engine[who]("start")
            return
        self.processes.kill(who)
        time.sleep(pause)
        self.processes.start(who)

    def _stop(self, who: str, seconds: float) -> None:
        if who in self.engine:
            self.engine[who]("stop")
            time.sleep(seconds)
            self.engine[who]("continue")
            return
        self.processes.signal(who, signal.SIGSTOP)
        time.sleep(seconds)
        self.processes.signal(who, signal.SIGCONT)

    def _end(self, who: str) -> None:
        self.processes.ask_to_end(who, 5.0)
        self.processes.start(who)

    def _fill(self, who: str, size: int, seconds: float) -> None:
        self.processes.fill(who, size)
        self._is_finished(seconds)
        self.processes.fill(who, None)

    def _second(self, who: str, seconds: float) -> None:
        """A second process beside the first, with the same database or store."""
        name = f"second {who}"
        self.processes.start(who, under=name)
        self.processes.living[name].join(seconds)
        self.processes.kill(name)


def require_well_ended(processes: Processes) -> None:
    """Nobody ended but by a signal, or with one sentence; nobody printed a traceback."""
    for who, lines in processes.said.items():
        text = "".join(lines)
        assert "Traceback" not in text, f"{who}: {text}"
    for who, codes in processes.ends.items():
        # By mischief, or told to end before it listens to that, or after.
        allowed = {-signal.SIGKILL, -signal.SIGTERM, 0}
        if COORDINATOR in who:
            allowed |= {1, 2, 128 + signal.SIGTERM}
        if who.startswith("second"):
            allowed |= {1, 2}
        # Who starts while the disk is full says so and ends, and is started again.
        full = [line for line in processes.said[who] if FULL_SENTENCE.match(line)]
        if 0 < codes.count(1) <= len(full):
            allowed.add(1)
        assert set(codes) <= allowed, f"{who}: {codes} {''.join(processes.said[who])}"
    for code_line in processes.said.get(COORDINATOR, ()):
        if code_line.startswith("error: "):
            assert len(code_line) < 1000
