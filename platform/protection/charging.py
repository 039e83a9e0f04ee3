"""Charges of clients: ledger rows and releases, the spending of a lifetime, and the limits.

Ledger rows of the storage and releases of the accounting are the same facts in two types.

In a federation each client has its own store, which keeps one pseudonym for good. In a simulation
the data identify the clients: runs on the same source are runs of the same clients. Nearly every
key of a task deals the images out again, and a new folder does too. So it is unknown which client
of another run held the images that a client holds now. Each client is therefore charged for all
other runs on its source, each at the highest charge of any client in that run.

The coordinator stops a run before it overspends, from its own ledger. A client does not rely on
that: before it answers an invitation it prices its own ledger, of this run and of all runs on the
same data, and takes no part in a round that would pass a limit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from platform.config import RunConfig
from platform.config.rules import FILELESS, HANDWRITING, OWN
from platform.errors import RecordsDisagree
from platform.mechanisms import KNOWN, Mechanisms
from privacy import (
    NOISE_KINDS,
    Accountant,
    Channel,
    CohortSampling,
    IntegerNoise,
    NoiseLaw,
    Relation,
    Release,
    RunningLedger,
    Sampling,
    require_affordable,
)
from storage import LedgerRow, RunRecord, UnitOfWork


def as_row(release: Release) -> LedgerRow:
    """Return a release as the storage keeps it.

    No column says whether an aborted release may have left the client: the coordinator settles a
    row as `aborted` only if nothing left.
    """
    columns: dict[str, Any] = {"noise_kind": release.law.name}
    if isinstance(release.law, IntegerNoise):
        columns |= {
            "share_deviation": release.law.share_deviation,
            "shares": release.law.shares,
            "dimension": release.law.dimension,
            "corrupt": release.law.corrupt,
        }
    if release.cohort is not None:
        columns |= {
            "cohort_kind": release.cohort.kind,
            "cohort_size": release.cohort.size,
            "cohort_population": release.cohort.population,
            "cohort_drawn": release.cohort.is_drawn,
        }
    return LedgerRow(
        run_id=release.run_id,
        round_number=release.round_number,
        attempt=release.attempt,
        pseudonym=release.pseudonym,
        channel=release.channel,
        mechanism=release.mechanism.name,
        standard_deviation=release.standard_deviation,
        # The storage writes an unbounded norm as infinity, the accounting as 0.
        clipping_norm=release.clipping_norm or math.inf,
        relation=release.relation,
        sampling=release.sampling,
        status=release.status,
        sampling_probability=release.sampling_probability,
        count=release.count,
        **columns,
    )


def as_releases(rows: Iterable[LedgerRow], mechanisms: Mechanisms) -> list[Release]:
    """Return stored rows as the accounting prices them.

    A stored row holds a mechanism's name, and only this function looks up its meaning;
    `UnknownMechanism` has no price.

    A row becomes `aborted` only if certainly nothing left the client, so such rows are free. A
    release that may have left stays `reserved` or becomes `released`, and is charged.
    """
    found: list[Release] = []
    for row in rows:
        cohort = None
        if row.cohort_kind is not None:
            facts: dict[str, Any] = {
                "kind": row.cohort_kind,
                "size": row.cohort_size,
                "population": row.cohort_population,
                "is_drawn": row.cohort_drawn,
            }
            cohort = CohortSampling(**facts)
        found.append(
            Release(
                mechanism=mechanisms.facts_of(row.mechanism),
                standard_deviation=row.standard_deviation,
                clipping_norm=0.0 if math.isinf(row.clipping_norm) else row.clipping_norm,
                relation=cast("Relation", row.relation),
                law=_law(row),
                channel=cast("Channel", row.channel),
                run_id=row.run_id,
                round_number=row.round_number,
                attempt=row.attempt,
                pseudonym=row.pseudonym,
                status=row.status,
                sampling=cast("Sampling", row.sampling),
                sampling_probability=row.sampling_probability,
                left_client=row.status != "aborted",
                count=row.count,
                cohort=cohort,
            )
        )
    return found


def is_charged(row: LedgerRow) -> bool:
    """Return whether a release may have left the row's client.

    Ledgers of early versions have rows of clients that a secret draw left out; these are free.
    """
    return row.status != "aborted" and row.cohort_drawn is not False


def law_of(row: LedgerRow) -> str:
    """Return the name of the law of a stored row's noise.

    Old rows name a law only if the noise was made of integers. All other noise was Gaussian then.
    """
    return row.noise_kind or ("gaussian" if row.standard_deviation else "none")


def _law(row: LedgerRow) -> NoiseLaw:
    name = law_of(row)
    # A stored row has all numbers of shares or none.
    if row.shares is None or name not in NOISE_KINDS:
        return NoiseLaw(name)
    numbers: dict[str, Any] = {
        "share_deviation": row.share_deviation,
        "shares": row.shares,
        "dimension": row.dimension,
        "corrupt": row.corrupt,
    }
    return IntegerNoise(name, **numbers)


_SAME: Final = dict.fromkeys(("digits", *HANDWRITING), "handwriting")
"""Names of data sets that share images."""
_FOLDERS: Final = (*OWN, "folders")
"""Data sets whose files the user puts into `task.root`."""


@dataclass(frozen=True)
class Source:
    """The source of a simulation's data.

    Attributes:
        name: Name of a data set that is the same in every folder; None for the user's own folders.
        root: The folder of the data, without links; None if the run reads no folder.
    """

    name: str | None
    root: Path | None

    @classmethod
    def of(cls, dataset: str, root: str) -> Source:
        """Return the source of `task.dataset` and `task.root`, the only keys that matter."""
        return cls(
            None if dataset in _FOLDERS else _SAME.get(dataset, dataset),
            None if dataset in FILELESS else Path(os.path.realpath(root)),
        )

    def overlaps(self, other: Source) -> bool:
        """Whether the two may hold the same data: by name, else if one folder is in the other."""
        if self.name is not None and other.name is not None:
            return self.name == other.name
        if self.root is None or other.root is None:
            return False
        return self.root.is_relative_to(other.root) or other.root.is_relative_to(self.root)


def is_by_source(config: RunConfig) -> bool:
    """Whether each client is charged for all runs on its source; else for runs of its pseudonym."""
    return config.federation is None and config.privacy.lifetime_budget is not None


def rows_that_count(
    uow: UnitOfWork, config: RunConfig, run_id: str, pseudonyms: Collection[str]
) -> list[LedgerRow]:
    """Return the ledger rows of other runs that have spent from the lives of a run's clients."""
    if not is_by_source(config):
        return [row for row in uow.ledger.rows_of(pseudonyms) if row.run_id != run_id]
    source = Source.of(config.task.dataset, config.task.root)
    others = (run for run in uow.runs.list() if run.run_id != run_id)
    return [
        row
        for run in others
        if source.overlaps(_source_of(run))
        for row in uow.ledger.rows(run.run_id)
    ]


def charged_elsewhere(
    config: RunConfig, rows: Iterable[LedgerRow], pseudonyms: Collection[str]
) -> RunningLedger:
    """Return the charges of a run's clients for other runs; `rows` are of `rows_that_count`."""
    charged = RunningLedger(as_releases(rows, config.mechanisms))
    return charged.charged_to_all(pseudonyms) if is_by_source(config) else charged


def _source_of(run: RunRecord) -> Source:
    """Return the source of a run's data; a federation's data are never a simulation's."""
    tree = stored_tree(run)
    if tree.get("federation") is not None:
        return Source(f"federation of run {run.run_id}", None)
    try:
        return Source.of(tree["task"]["dataset"], tree["task"]["root"])
    except (TypeError, KeyError) as error:
        raise RecordsDisagree(
            run.run_id, "the configuration in its row names no data set"
        ) from error


def stored_tree(run: RunRecord) -> dict[str, Any]:
    """Return the configuration in a run's row, as unchecked plain data, or `RecordsDisagree`."""
    try:
        tree = json.loads(run.config_json)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise RecordsDisagree(run.run_id, "the configuration in its row is no JSON object")
    return tree


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits on one client's spending, which the coordinator and the client both enforce.

    Attributes:
        target_epsilon: Limit of one run, None without a limit.
        lifetime_budget: Limit of all runs on the same data, None without a limit.
        mechanisms: All mechanisms that a row may name; earlier runs may have had others.
        noise_multiplier: Configured or calibrated, for reports; None under `none`, and for a client
            that sets limits of its own.
        target_key: The key that sets the limit of one run, for the message.
        lifetime_key: The key that sets the limit of all runs, for the message.
    """

    delta: float
    accountant: Accountant
    target_epsilon: float | None = None
    lifetime_budget: float | None = None
    mechanisms: Mechanisms = KNOWN
    noise_multiplier: float | None = None
    target_key: str = "privacy.target_epsilon"
    lifetime_key: str = "privacy.lifetime_budget"

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.target_epsilon is not None or self.lifetime_budget is not None

    def require(self, run: RunningLedger, life: RunningLedger, planned: Sequence[Release]) -> None:
        """Refuse an attempt that would pass a limit; `BudgetExhausted` names the limit.

        `run` is the spending of one or several clients in the run, and `life` that in their whole
        life, with this run. `planned` lacks releases that are already in the ledger: sending these
        again is free.
        """
        for spent, name, limit in (
            (run, self.target_key, self.target_epsilon),
            (life, self.lifetime_key, self.lifetime_budget),
        ):
            if limit is not None and planned:
                require_affordable(
                    spent,
                    planned,
                    self.delta,
                    target_epsilon=limit,
                    accountant=self.accountant,
                    limit_name=name,
                )
