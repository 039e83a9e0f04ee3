"""Hubs, relays and clients' sockets for tests: real ones, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from platform.holder.serving import Serving
from platform.relay.links import forward


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run something that ends when it is told to, as long as the context lasts."""
    ended = threading.Event()
    worker = threading.Thread(target=work, args=(ended,), daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join(timeout=30)
        if worker.is_alive():
            raise AssertionError("it did not end")


@contextmanager
def relayed(hub: Path, sockets: Mapping[str, Path]) -> Iterator[None]:
    with running(lambda ended: forward(hub, sockets, ended)):
        yield


@contextmanager
def served(handlers, folder):
    paths = {name: folder / f"{name}.sock" for name in handlers}
    with ExitStack() as stack:
        for name, handler in handlers.items():
            serving = Serving(name=name, path=paths[name], handler=handler)
            stack.enter_context(running(serving.until))
        yield paths
