"""`distributed_noise`: each client adds a share, and only a masked sum has enough noise."""

from __future__ import annotations

from collections.abc import Iterator

from platform.mechanisms.mechanism import Circumstances, Mechanism, Settings
from platform.mechanisms.upload_noise import on_the_client
from privacy import DISTRIBUTED_NOISE as FACTS
from privacy import DistributedNoise


def _share(settings: Settings) -> DistributedNoise:
    if settings.sums is None:
        # The noise of a share depends on the least number of shares.
        raise ValueError("sums are missing; distributed_noise cannot be built without them")
    return DistributedNoise(
        clipping_norm=settings.norm,
        noise_multiplier=settings.multiplier,
        minimum_survivors=settings.sums.smallest,
        corrupt=settings.sums.corrupt,
        scale=settings.scale_for(settings.sums.smallest - settings.sums.corrupt),
        kind="skellam" if settings.distribution == "skellam" else "discrete_gaussian",
        relation=settings.relation,
        counts=settings.counts,
        cones=settings.cones,
    )


def _caveats(circumstances: Circumstances) -> Iterator[str]:
    obeys = "" if circumstances.is_active else "it follows the protocol and "
    several = "client colludes" if circumstances.corrupt == 1 else "clients collude"
    yield (
        f"distributed_noise: epsilon for server holds if {obeys}at most {circumstances.corrupt} "
        f"{several} with it"
    )
    if circumstances.corrupt < 1:
        yield (
            "distributed_noise with secure_aggregation.corrupt = 0: a peer knows its own share "
            "of the noise, so epsilon for peers is infinite"
        )


DISTRIBUTED_NOISE = Mechanism(
    facts=FACTS,
    relations=("replace_one", "add_or_remove_one"),
    distributions=("discrete_gaussian", "skellam"),
    upload=_share,
    # An entry is in no sum, so its owner adds all of the noise.
    entry=on_the_client,
    training=None,
    caveats=_caveats,
)
