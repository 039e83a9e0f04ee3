"""One schedule carried out on one federation, with all that is checked during it and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults._federation import NAMES, SETUPS, require_every_round_once, write_federation
from tests.faults._invariants import Watch, require_sound
from tests.faults._processes import Processes
from tests.faults._proxy import Proxy
from tests.faults._schedules import ENGINE, HUB, Storm, require_well_ended, schedule
from tests.faults._wire import Wire

Parts = Mapping[str, Callable[[str], None]]


@contextmanager
def proxies_in(folder: Path) -> Iterator[dict[str, Proxy]]:
    """Proxies before hub and clients, at `NAME.way`, that lead nowhere yet."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Proxy(folder / f"{name}.way", folder / "nowhere"))
            for name in (HUB, *NAMES)
        }


def torment(
    folder: Path,
    seed: int,
    proxies: Mapping[str, Proxy],
    *,
    blows: int,
    seconds: float,
    engine: Parts | None = None,
    **times: float,
) -> None:
    """Holds a federation under a schedule."""
    setup, wire, parts = SETUPS[seed % len(SETUPS)], Wire(), engine or {}
    write_federation(folder, setup, folder / "hub.sock", **times)
    proxies[HUB].target = folder / "hub.sock"
    for name in NAMES:
        proxies[name].target = folder / name / "store" / "client.sock"
        proxies[name].saw = wire.of(name)
    for proxy in proxies.values():
        proxy.calm()
        proxy.tear()
    own = None if engine else Path(proxies[HUB].listens)
    processes = Processes(folder, NAMES, own, {name: proxies[name].listens for name in NAMES})
    storm = Storm(processes, proxies, wire, Watch(folder, NAMES), parts)
    try:
        processes.start_all()
        between = ENGINE in proxies
        drawn = schedule(seed, NAMES, blows=blows, engine=tuple(parts), between=between)
        storm.run(drawn, seconds)
        processes.end()
        storm.watch.look()
        storm.watch.require_seen()
        require_well_ended(processes)
        wire.require_once()
        survivors = require_sound(folder, NAMES)
        if setup == "noiseless":
            wire.require_noiseless_once()
            require_every_round_once(folder, folder / "again", survivors)
    except BaseException:
        tell(storm, seed, setup)
        raise
    finally:
        processes.end()


def tell(storm: Storm, seed: int, setup: str) -> None:
    """Prints what is needed to repeat a schedule that failed, and what everybody said."""
    print(f"seed {seed}, {setup}")
    print("\n".join(storm.trace))
    for who, lines in storm.processes.said.items():
        print(f"-- {who}: {storm.processes.ends.get(who, [])}\n{''.join(lines[-60:])}")
