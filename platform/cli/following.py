"""`audit watch`: events as they come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from platform.cli.output import console, printable
from platform.disk.opening import open_existing
from storage import LogBroken, TreeHead, UnitOfWork


def follow_log(storage: str, seconds: float, *, as_json: bool) -> None:
    """Print what is added to the log, from now on, until it is interrupted.

    Raises:
        UnknownRun: If there is no database.
        LogBroken: If what was there before is no longer the beginning of the log.
    """
    out = console()
    for entry in followed(storage, lambda: time.sleep(seconds)):
        if as_json:
            sys.stdout.write(json.dumps(entry, sort_keys=True) + "\n")
            sys.stdout.flush()
        else:
            out.print(printable(_line(entry)))


def followed(storage: str, pause: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield what is added to the log, look by look.

    Each look is a transaction of its own, so that no writer waits for a reader.

    Args:
        storage: The coordinator's database.
        pause: Waits between two looks.

    Raises:
        LogBroken: If what was there before is no longer the beginning of the log.
    """
    with (
        # As one of those that write: reading beside them is then possible at any time.
        closing(open_existing(storage, read_only=False)) as database
    ):
        with database.unit_of_work(read_only=True) as uow:
            seen = _head(uow)
        while True:
            pause()
            with database.unit_of_work(read_only=True) as uow:
                now, new = _head(uow), _added(uow, seen)
            yield from new
            seen = now


def _head(uow: UnitOfWork) -> TreeHead:
    tree = uow.log.tree()
    return TreeHead(tree.size, tree.root())


def _added(uow: UnitOfWork, seen: TreeHead) -> list[dict[str, Any]]:
    size = uow.log.size()
    if size < seen.size:
        raise LogBroken(size, f"it had {seen.size} leaves before")
    if uow.log.tree(seen.size).root() != seen.root:
        raise LogBroken(
            max(seen.size - 1, 0), f"its first {seen.size} leaves are others than before"
        )
    found = []
    for leaf in uow.log.leaves(seen.size, size):
        _, text = uow.log.data(leaf).split(b"\n", 1)
        found.append({"leaf": leaf.position, "kind": leaf.kind, "says": json.loads(text)})
    return found


def _line(entry: dict[str, Any]) -> str:
    says = entry["says"]
    if entry["kind"] == "event":
        _, sequence, run, actor, action, number, channel, moment, detail = says
        where = "" if number is None else f" round {number}"
        what = f"{action}{where}{'' if channel is None else f' {channel}'} {detail}"
        return f"{moment[:19]}Z {run} {sequence} {actor} {what}"
    status = says.get("status", "reserved")
    where = f"round {says['round_number']} {says['channel']}"
    return f"{'':20} {says['run_id']} {says['pseudonym']} charge.{status} {where}"
