"""Why masks add nothing where pool entries are the uploads: the entries are the sum's summands."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from platform.contract import driving
from platform.experiment.caveats import run_warnings
from platform.protection.uploads import LEVELS
from platform.wire.messages import decode_disclosure
from privacy import UploadNoise
from tests.trunk._runs import NO_POOL as WITHOUT_POOL
from tests.trunk._runs import opened
from tests.trunk.test_round import SECURE, Counting, data

NOISED = dataclasses.replace(SECURE, mechanism=UploadNoise(1.0, 2.0), pool_noise="same")
SAME = "pool.noise same: the coordinator reads every survivor's upload by name"


@dataclasses.dataclass
class Reading:
    """A transport that keeps what the coordinator is sent anyway."""

    inner: object
    entries: list[np.ndarray] = dataclasses.field(default_factory=list)

    def exchange(self, stage, outgoing, deadline):
        answers = self.inner.exchange(stage, outgoing, deadline)
        if stage == "unmask":
            self.entries += [decode_disclosure(a).entry[LEVELS] for a in answers.values()]
        return answers


def test_the_entries_sum_is_the_securely_opened_sum_bit_for_bit(stores):
    clients = driving.make_clients(Counting(), data(), stores, NOISED)
    reading, unused = Reading(driving.transport_to(clients, NOISED)), stores / "unused"
    unused.mkdir()
    outcome = driving.play(Counting(), data(), unused, NOISED, transport=reading)
    protection = driving.make_protection(Counting(), NOISED)
    levels = [entry.astype(np.uint64) for entry in reading.entries]
    assert len({tuple(level) for level in levels}) == len(outcome.survivors) == 5
    total = np.sum(levels, axis=0, dtype=np.uint64)
    totals = protection.layout.open_sum(total, len(levels), protection.sums.grid())
    recomputed = protection.layout.average(totals).vector
    assert recomputed.tobytes() == outcome.summed.vector.tobytes()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), True),
        (("pool.noise=independent",), False),
        (("secure_aggregation.enabled=false",), False),
        (WITHOUT_POOL, False),
    ],
)
def test_the_report_says_so_exactly_where_it_is_true(storage, overrides, says):
    with opened(storage.create("rounds=1", *overrides)) as simulation:
        told = run_warnings(simulation.run, [])
    assert any(one.text.startswith(SAME) for one in told) is says
