"""The coordinator's noise of an attempt is drawn once, whatever stops it before its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from platform.errors import ClientsSilent
from platform.wire.messages import Stage
from platform.wire.outside_rounds import decode_examination
from platform.wire.transport import ClientId, Dropout, InProcessTransport
from tests.trunk._runs import Storage
from tests.trunk._transports import carried

CENTRAL = (
    *("privacy.mechanism=central_noise", "privacy.noise_source=os"),
    *("privacy.target_epsilon=null", "privacy.noise_multiplier=4.0"),
    *("method.name=promptfl", "method.context_tokens=2"),
    *("rounds=1", "cohort.dropout_rate=0", "evaluation.local_twins=false"),
)
NAME = "client-00001"


@dataclass
class Watched:
    """Keeps the models that one client is sent to measure; `is_deaf` loses its answers."""

    is_deaf: bool = True
    models: list[bytes] = field(default_factory=list)
    within: InProcessTransport | None = None

    def at(self, within: InProcessTransport) -> Watched:
        self.within = within
        return self

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        assert self.within is not None
        replies = dict(self.within.exchange(stage, messages, deadline))
        if stage == "evaluate" and NAME in messages:
            shown = decode_examination(messages[NAME]).broadcast
            self.models.append(b"".join(shown[name].tobytes() for name in sorted(shown)))
            if self.is_deaf:
                del replies[NAME]
        return replies


def test_a_client_that_answers_no_measurement_sees_one_noised_sum(storage: Storage) -> None:
    """Sums of the same updates under noise of their own would average it away, at one charge."""
    watched = Watched()
    place = carried(storage, watched.at)
    with pytest.raises(ClientsSilent):
        place.run(*CENTRAL)
    watched.is_deaf, before = False, len(watched.models)
    place.resume(storage.only_run())
    assert 0 < before < len(watched.models)
    assert len(set(watched.models)) == 1
    assert storage.rows("SELECT count(*) FROM attempts") == [(1,)]
    # What was kept of the attempt is gone with it.
    assert storage.rows("SELECT count(*) FROM stages") == [(0,)]
