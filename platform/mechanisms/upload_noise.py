"""`upload_noise`: each client clips its upload and adds all of the noise itself."""

from __future__ import annotations

from platform.mechanisms.mechanism import Mechanism, Settings, no_caveats
from privacy import UPLOAD_NOISE as FACTS
from privacy import IntegerUploadNoise, UploadNoise


def on_the_client(settings: Settings) -> UploadNoise | IntegerUploadNoise:
    """Build all of the noise on one client: Gaussian, or on the grid wherever the run's is."""
    if settings.distribution == "gaussian":
        return UploadNoise(settings.norm, settings.multiplier, settings.relation)
    # Also for Skellam: a single Skellam share costs as much as the discrete Gaussian, with more
    # tail.
    return IntegerUploadNoise(
        clipping_norm=settings.norm,
        noise_multiplier=settings.multiplier,
        scale=settings.scale_for(1),
        relation=settings.relation,
        cones=settings.cones,
    )


UPLOAD_NOISE = Mechanism(
    facts=FACTS,
    relations=("replace_one", "add_or_remove_one"),
    distributions=("gaussian", "discrete_gaussian"),
    upload=on_the_client,
    entry=on_the_client,
    training=None,
    caveats=no_caveats,
)
