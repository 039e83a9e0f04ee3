"""`none`: uploads are carried as they are, and epsilon is infinite."""

from __future__ import annotations

from platform.mechanisms.mechanism import Mechanism, Settings, no_caveats
from privacy import NONE as FACTS
from privacy import NoProtection


def _upload(settings: Settings) -> NoProtection:
    return NoProtection(settings.value_bound, settings.relation)


NONE = Mechanism(
    facts=FACTS,
    # Rows name a relation without a claim too, so that all ledgers have the same form.
    relations=("replace_one", "add_or_remove_one"),
    distributions=(),
    upload=_upload,
    entry=None,
    training=None,
    caveats=no_caveats,
)
