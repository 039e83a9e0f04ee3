"""Ledger rows of the storage and releases of the accounting: the same facts in two types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from platform.mechanisms import Mechanisms
from privacy import (
    NOISE_KINDS,
    Channel,
    CohortSampling,
    IntegerNoise,
    MechanismFacts,
    NoiseLaw,
    Relation,
    Release,
    Sampling,
)
from storage import LedgerRow


def as_row(release: Release) -> LedgerRow:
    """Return a release as the storage keeps it.

    Whether an aborted release may have left the client is no column: a row is settled as
    `aborted` only where nothing did.
    """
    return LedgerRow(
        run_id=release.run_id,
        round_number=release.round_number,
        attempt=release.attempt,
        pseudonym=release.pseudonym,
        channel=release.channel,
        mechanism=release.mechanism.name,
        standard_deviation=release.standard_deviation,
        # The storage writes "nothing bounds it" as infinity, the accounting as 0.
        clipping_norm=release.clipping_norm or math.inf,
        relation=release.relation,
        sampling=release.sampling,
        status=release.status,
        sampling_probability=release.sampling_probability,
        count=release.count,
        **_law_columns(release.law),
        **_cohort_columns(release.cohort),
    )


def as_releases(rows: Iterable[LedgerRow], mechanisms: Mechanisms) -> list[Release]:
    """Return stored rows as the accounting prices them.

    A stored row holds a mechanism's name; what it means is looked up here and nowhere else.

    A row is set to `aborted` only where it is known that nothing left the client, so such rows
    are free; whatever may have left stays `reserved` or becomes `released`, and is charged.

    Args:
        rows: As stored.
        mechanisms: All that there are.

    Raises:
        UnknownMechanism: A row names one that is not among them, so that nobody can price it.
    """
    return [_as_release(row, mechanisms.facts_of(row.mechanism)) for row in rows]


def _as_release(row: LedgerRow, facts: MechanismFacts) -> Release:
    return Release(
        mechanism=facts,
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
        cohort=_cohort(row),
    )


def law_of(row: LedgerRow) -> str:
    """Return the name of the law of a stored row's noise.

    Rows from before laws were named have one where noise was made of integers only. Noise of other
    laws than Gaussian was not to be had then.
    """
    return row.noise_kind or ("gaussian" if row.standard_deviation else "none")


def _law_columns(law: NoiseLaw) -> dict[str, Any]:
    if not isinstance(law, IntegerNoise):
        return {"noise_kind": law.name}
    return {
        "noise_kind": law.name,
        "share_deviation": law.share_deviation,
        "shares": law.shares,
        "dimension": law.dimension,
        "corrupt": law.corrupt,
    }


def _cohort_columns(cohort: CohortSampling | None) -> dict[str, Any]:
    if cohort is None:
        return {}
    return {
        "cohort_kind": cohort.kind,
        "cohort_size": cohort.size,
        "cohort_population": cohort.population,
        "cohort_drawn": cohort.is_drawn,
    }


def _law(row: LedgerRow) -> NoiseLaw:
    name = law_of(row)
    # The storage takes all numbers of shares or none.
    if row.shares is None or name not in NOISE_KINDS:
        return NoiseLaw(name)
    numbers: dict[str, Any] = {
        "share_deviation": row.share_deviation,
        "shares": row.shares,
        "dimension": row.dimension,
        "corrupt": row.corrupt,
    }
    return IntegerNoise(name, **numbers)


def _cohort(row: LedgerRow) -> CohortSampling | None:
    if row.cohort_kind is None:
        return None
    facts: dict[str, Any] = {
        "kind": row.cohort_kind,
        "size": row.cohort_size,
        "population": row.cohort_population,
        "is_drawn": row.cohort_drawn,
    }
    return CohortSampling(**facts)
