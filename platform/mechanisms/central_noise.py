"""`central_noise`: clients clip, and a trusted coordinator adds the noise to the sum."""

from __future__ import annotations

from collections.abc import Iterator

from platform.mechanisms.mechanism import Circumstances, Mechanism, Settings
from platform.mechanisms.upload_noise import on_the_client
from privacy import CENTRAL_NOISE as FACTS
from privacy import CentralNoise, default_scale


def _clipped(settings: Settings) -> CentralNoise:
    return CentralNoise(
        clipping_norm=settings.norm,
        noise_multiplier=settings.multiplier,
        scale=default_scale(settings.norm),
        relation=settings.relation,
        counts=settings.counts,
        cones=settings.cones,
    )


def _caveats(circumstances: Circumstances) -> Iterator[str]:
    yield "central_noise trusts the coordinator: epsilon against the server is infinite"


CENTRAL_NOISE = Mechanism(
    facts=FACTS,
    relations=("replace_one", "add_or_remove_one"),
    # This mechanism is for amplification by sampling, which no accountant has for integer noise.
    distributions=("gaussian",),
    upload=_clipped,
    # The coordinator adds no noise to an entry, so the entry's owner does.
    entry=on_the_client,
    training=None,
    caveats=_caveats,
)
