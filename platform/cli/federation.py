"""`federation`, `enrolment` and `secagg-plan`: clients, their keys, and thresholds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from platform.agreement import stored_tree
from platform.cli.output import answer, table
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.parties.identities import (
    client_names,
    create_enrolment,
    node_of,
    read_enrolment,
    write_enrolment,
)
from platform.relay.links import status_of
from platform.relay.packets import Status
from platform.results.reading import resolve_run, resolved
from platform.rounds.leaving import Standing, standings
from privacy.errors import CalibrationError
from privacy.secure_aggregation import Enrolment, fingerprint, node_fingerprint, plan
from privacy.secure_aggregation.masking import packed_bytes
from privacy.secure_aggregation.parameters import GraphChoice

CONNECTED: tuple[str, ...] = ("client", "reachable", "asked for", "last answer")
PATIENCE = 10.0
"""Seconds that a hub may take to answer."""
NOTE = (
    "reachable: a relay is connected for the client; only an answer shows that its process is "
    "there, and a running Flower app shows all its clients as reachable"
)


def status_command(socket: Path, storage: str | None, run_id: str, *, as_json: bool) -> None:
    """Print the clients of a running coordinator: its hub's view, and its records of them."""
    try:
        found = status_of(socket, PATIENCE)
    except OSError as error:
        raise ConfigError(
            f"SOCKET: no coordinator at {str(socket)!r} ({error.strerror or error}); valid is the "
            "federation.socket of a run that goes on"
        ) from error
    known: Mapping[str, Standing] = {}
    if storage is not None:
        with closing(open_existing(storage)) as database:
            name = resolved(database, run_id, storage)
            with database.unit_of_work(read_only=True) as uow:
                section = stored_tree(uow.runs.get(name)).get("federation")
                if section is None:
                    raise ConfigError(
                        f"--run: {name} is a simulation; valid: a run with a federation"
                    )
                known = standings(uow, name, section["clients"])
    standing = {name: one.words for name, one in known.items()}
    rows: list[tuple[str, ...]] = connected_rows(found)
    columns = CONNECTED
    if known:
        rows = [(*row, standing.get(row[0], "-")) for row in rows]
        columns = (*columns, "standing")
    clients = [{**asdict(c), "standing": standing.get(c.name)} for c in found.clients]
    answer(clients, table(None, columns, rows), NOTE, as_json=as_json)


def connected_rows(found: Status) -> list[tuple[str, ...]]:
    """Return the cells of each client of a hub, one for each column of `CONNECTED`."""
    return [
        (c.name, "yes" if c.reachable else "no", c.asked or "-", c.last or "-")
        for c in found.clients
    ]


def remove_command(
    run_id: str, client: str, statement: Path | None, storage: str, *, as_json: bool
) -> None:
    """Take a client off a run, and say how much was erased."""
    from platform.experiment.federating import remove_client
    from platform.experiment.planning import Surroundings

    found = resolve_run(run_id, storage)
    gone = remove_client(found, storage, client, statement=statement, surroundings=Surroundings())
    answer(
        {"run_id": found, **asdict(gone)},
        f"{client} no longer takes part in run {found}; {gone.generations} generations of the pool "
        "were erased with it, and its charges stay",
        as_json=as_json,
    )


def create_command(folder: Path, clients: int, *, as_json: bool) -> None:
    """Make keys and an enrolment for the clients of a simulation, all in one folder."""
    _show_enrolment(create_enrolment(folder, client_names(clients)), as_json=as_json)


def show_command(file: Path, *, as_json: bool) -> None:
    """Show who is enrolled."""
    _show_enrolment(read_enrolment(file), as_json=as_json)


def change_command(path: Path, change: Callable[[Enrolment], Enrolment], *, as_json: bool) -> None:
    """Apply one change, unless it is refused, to an enrolment file, which is made if missing."""
    before = read_enrolment(path) if path.exists() else Enrolment()
    try:
        after = change(before)
    except ValueError as error:
        raise ConfigError(f"enrolment: {error}") from error
    write_enrolment(path, after)
    _show_enrolment(after, as_json=as_json)


def parse_public(text: str) -> bytes:
    """Return a public key from hex; other text is refused."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ConfigError(f"PUBLIC: {text!r} is not valid; it must be 64 hex digits") from error


def parse_node(text: str) -> str:
    """Return a node key from a line that programs print, which may end in a comment."""
    return " ".join(text.split()[:2])


def show_node_command(file: Path, name: str) -> None:
    """Print a client's node key, as OpenSSH writes it."""
    sys.stdout.write(f"{node_of(read_enrolment(file), name)}\n")


def _show_enrolment(enrolment: Enrolment, *, as_json: bool) -> None:
    members: list[dict[str, Any]] = [
        {
            "name": name,
            "fingerprint": "-" if m.current is None else fingerprint(m.current),
            "node": m.node,
            "retired_keys": len(m.retired),
        }
        for name, m in sorted(enrolment.members.items())
    ]
    rows = [{**one, "node": one["node"] and node_fingerprint(one["node"])} for one in members]
    answer(
        {"serial": enrolment.serial, "fingerprint": enrolment.fingerprint, "members": members},
        table(
            *(None, ("name", "fingerprint of the key", "node key", "retired keys")),
            [["-" if text is None else text for text in row.values()] for row in rows],
        ),
        f"serial {enrolment.serial}, fingerprint {enrolment.fingerprint}",
        "compare the fingerprint with the other parties by telephone or in person",
        as_json=as_json,
    )


# Wire sizes of `docs/protocol/secure-aggregation.md`: bytes that a client sends for each neighbour
# (box and revealed share; against an active adversary two commitments more) and once.
_PER_NEIGHBOUR = {False: 98 + 38, True: 98 + 64 + 38}
_ONCE = {False: 4 * 68 + 64 + 32 + 38, True: 5 * 116 + 64 + 32 + 64 + 32 + 38}

SHAPE = ("neighbours", "threshold", "corrupt", "smallest_sum")
_REGIMES: tuple[tuple[bool, GraphChoice], ...] = (
    (False, "complete"),
    (False, "k_regular"),
    (True, "complete"),
)


def secagg_plan_command(
    clients: int,
    *,
    corrupt_rate: float = 0.05,
    dropout_rate: float = 0.1,
    length: int = 65_536,
    ring_bits: int = 32,
    as_json: bool,
) -> None:
    """Print the numbers of every regime for a cohort, and which graph `auto` takes."""
    planned = partial(plan, clients, corrupt_rate=corrupt_rate, dropout_rate=dropout_rate)
    documents: list[dict[str, Any]] = []
    for active, graph in _REGIMES:
        base = {
            "adversary": "active" if active else "semi_honest",
            "graph": graph,
            "rule": "2t > n + c" if active else "t > c" if graph == "complete" else "bounds",
        }
        try:
            found, auto = planned(active=active, graph=graph), planned(active=active, graph="auto")
            packed = packed_bytes(length, ring_bits)
        except CalibrationError as error:
            refused = {"chosen": False, "refused": str(error)}
            documents.append(base | dict.fromkeys(SHAPE) | refused)
            continue
        except ValueError as error:
            raise ConfigError(f"secagg-plan: {error}") from error
        sent = found.neighbours * _PER_NEIGHBOUR[active] + _ONCE[active]
        numbers: dict[str, float | None] = {name: getattr(found, name) for name in SHAPE}
        bits = {name: getattr(found, name) for name in ("security_bits", "correctness_bits")}
        # Infinity, for a rule that always holds, is not JSON.
        numbers |= {n: None if math.isinf(b) else round(b, 1) for n, b in bits.items()}
        numbers["bytes_up"] = sent + packed
        documents.append(base | numbers | {"chosen": found == auto, "refused": None})
    names = ("adversary", "graph", "rule", *SHAPE)
    short = ("adversary", "graph", "rule", "k", "t", "c", "least sum")
    columns = (*short, "leaks", "aborts", "bytes up", "auto")
    rows = []
    for d in documents:
        cells, shown_bits, up = [d[name] for name in names], ["-", "-"], "-"
        if d["refused"] is None:
            both = (d["security_bits"], d["correctness_bits"])
            shown_bits = ["never" if one is None else f"2^-{one:.1f}" for one in both]
            up = f"{d['bytes_up']:,}"
        known = ["-" if cell is None else str(cell) for cell in cells]
        rows.append((*known, *shown_bits, up, "yes" if d["chosen"] else ""))
    title = f"secure aggregation of {clients} clients"
    refusals = [
        f"{d['adversary']}, {d['graph']}: {d['refused']}" for d in documents if d["refused"]
    ]
    answer(documents, table(title, columns, rows), refusals, as_json=as_json)
