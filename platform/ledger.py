"""Ledger rows of the storage and releases of the accounting: the same facts in two types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

from platform.errors import RunStopped
from privacy import Channel, Mechanism, Relation, Release, Sampling
from storage import LedgerRow


def as_row(release: Release) -> LedgerRow:
    """A release as the storage keeps it.

    Raises:
        RunStopped: If it has facts that a row cannot hold, and that its price depends on.
    """
    plain = (release.sampling, release.count, release.integer_noise) == ("none", 1, None)
    if not plain:
        raise RunStopped(
            f"ledger: a release under {release.mechanism} with sampling, several steps or integer "
            "noise cannot be kept yet, so it is not made"
        )
    return LedgerRow(
        run_id=release.run_id,
        round_number=release.round_number,
        attempt=release.attempt,
        pseudonym=release.pseudonym,
        channel=release.channel,
        mechanism=release.mechanism,
        standard_deviation=release.standard_deviation,
        # The storage writes "nothing bounds it" as infinity, the accounting as 0.
        clipping_norm=release.clipping_norm or math.inf,
        relation=release.relation,
        sampling=release.sampling,
        status=release.status,
    )


def as_releases(rows: Iterable[LedgerRow]) -> list[Release]:
    """Stored rows as the accounting prices them.

    A row is set to `aborted` only where it is known that nothing left the client, so such rows
    are free; whatever may have left stays `reserved` or becomes `released`, and is charged.
    """
    return [_as_release(row) for row in rows]


def _as_release(row: LedgerRow) -> Release:
    return Release(
        mechanism=cast("Mechanism", row.mechanism),
        standard_deviation=row.standard_deviation,
        clipping_norm=0.0 if math.isinf(row.clipping_norm) else row.clipping_norm,
        relation=cast("Relation", row.relation),
        channel=cast("Channel", row.channel),
        run_id=row.run_id,
        round_number=row.round_number,
        attempt=row.attempt,
        pseudonym=row.pseudonym,
        status=row.status,
        sampling=cast("Sampling", row.sampling),
        left_client=row.status != "aborted",
    )
