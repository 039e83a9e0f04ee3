"""Checks of a federation of many holders after its end, whichever holders were lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._crowd import Losses
from platform.agreement.checking import disagreements, faults_of
from platform.agreement.reading import read_records
from platform.agreement.trail import OwnLedger, config_of
from platform.disk.opening import open_existing
from platform.holder.settings import load_holder, own_account
from platform.mechanisms import BUILT_IN
from storage import open_client_store


def own_ledgers(folder: Path, names: Sequence[str]) -> list[OwnLedger]:
    """Each holder's own ledger, read after a check of every row and page of its store."""
    found = []
    for name in names:
        store = open_client_store(folder / name / "store" / "client.db", read_only=True)
        store.verify_integrity()
        found.append(OwnLedger(name, store.identity.pseudonym, store.rows()))
    return found


def faults(
    folder: Path, database: Path, summary: Mapping[str, Any], losses: Losses
) -> Iterator[str]:
    """Yield a sentence for each fault.

    Args:
        folder: Holds each holder's folder.
        database: The coordinator's database.
        summary: The summary of the run.
        losses: Which holders were lost.
    """
    run_id, own = str(summary["run_id"]), own_ledgers(folder, losses.names)
    with open_existing(f"sqlite:///{database}") as opened:
        opened.verify_integrity()
        # The audit chain, the report, the ledger's rows and statuses, and their agreement.
        yield from map(str, faults_of(opened, run_id)[1])
        with opened.unit_of_work(read_only=True) as uow:
            records = read_records(uow, run_id)
        # The same against each holder's own ledger; otherwise only a simulation has these at hand.
        config = config_of(records.run, BUILT_IN)
        yield from disagreements(records, own, records.rounds, config)
    numbers = [row.round_number for row in records.rounds]
    if numbers != list(range(1, losses.rounds + 1)):
        yield f"the run applied the rounds {numbers}, not every round once in order"
    for row in records.rounds:
        kept = set(row.document["survivors"]) & set(losses.of(row.round_number))
        if kept:
            yield f"round {row.round_number}: {sorted(kept)} were lost but are in the sum"
    yield from _epsilons(folder, summary, own)


def _epsilons(folder: Path, summary: Mapping[str, Any], own: Sequence[OwnLedger]) -> Iterator[str]:
    """Yield a fault for each holder that spent more than the run states, or if none spent as much.

    A holder that was lost before it sent anything has spent less than the run states for all.
    """
    stated, prices = float(summary["final"]["epsilon"]["server"]), []
    for ledger in own:
        settings = load_holder(folder / ledger.client / "client.yaml")
        store = open_client_store(settings.store_file, read_only=True)
        price = own_account(store, settings.limits).total.epsilon
        if price is None:
            yield f"{ledger.client}: its ledger has no price"
            continue
        prices.append(price)
        if price > stated * (1 + 1e-6):
            yield f"{ledger.client}: spent {price} by its own ledger, {stated} by the run's"
    if not prices or not math.isclose(max(prices), stated, rel_tol=1e-6):
        yield f"the run states epsilon {stated}, but own ledgers state {max(prices, default=0)}"
