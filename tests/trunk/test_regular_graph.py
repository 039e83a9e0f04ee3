"""Rounds on the k-regular graph: exact sums of large cohorts, a clean end below the smallest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from platform.contract.driving import quick_folder
from platform.errors import ProtocolError, RoundAborted
from platform.parties.identities import client_names
from platform.rounds.attempts import Attempts
from platform.rounds.observing import SilentObserver
from platform.rounds.spending import Spending
from platform.wire.messages import SecureRound, decode_invitation, encode_invitation
from tests._plans import changed
from tests.trunk._runs import opened
from tests.trunk._seams import overrides, seam_storage
from tests.trunk._secure import Lying, cohort
from tests.trunk.test_secure_terms import LARGE, configured, secure_terms

TERMS = secure_terms(configured(LARGE))
NAMES = client_names(LARGE)
STEP = 2 * 256.0 / (2**20 - 1)
SPARE = LARGE - TERMS.smallest_sum


@pytest.fixture
def stores() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


def test_the_graph_is_the_one_that_auto_takes() -> None:
    assert (LARGE, SPARE) == (66, 7)
    assert 0 < TERMS.degree < LARGE - 1


@pytest.mark.parametrize("stage", ["advertise", "share", "train", "unmask"])
def test_the_sum_is_exact_with_as_many_lost_as_are_tolerated(stores: Path, stage: str) -> None:
    """1 + ... + 66 = 2,211, less every ninth where it is lost before its upload."""
    found = cohort(stores, TERMS)
    lost = NAMES[4::9][:SPARE]
    outcome = found.run(found.transport(lost, stage))
    numbers = {name: number for number, name in enumerate(NAMES, start=1)}
    left = NAMES if stage == "unmask" else tuple(n for n in NAMES if n not in lost)
    assert outcome.survivors == left
    expected = sum(numbers[name] for name in left)
    assert expected == (2_211 if stage == "unmask" else 2_211 - sum(range(5, 67, 9)))
    np.testing.assert_allclose(outcome.summed.vector, expected, atol=LARGE * STEP / 2)


@pytest.mark.parametrize(
    ("stage", "phase", "asked"),
    [
        ("advertise", "advertise_keys", False),
        ("share", "share_keys", False),
        ("train", "masked_input", True),
    ],
)
def test_below_the_smallest_sum_nothing_is_opened(
    stores: Path, stage: str, phase: str, asked: bool
) -> None:
    """One more is lost: the threshold of shares would be met, the smallest sum is not."""
    found = cohort(stores, TERMS)
    transport = Lying(found.transport(NAMES[: SPARE + 1], stage), "unmask", lambda _, m: m)
    with pytest.raises(RoundAborted) as caught:
        found.run(transport)
    assert (caught.value.phase, caught.value.uploads_asked) == (phase, asked)
    assert not any(sent == "unmask" for sent, _ in transport.answers)


def test_all_clients_of_an_attempt_are_told_one_graph(stores: Path) -> None:
    found, told = cohort(stores, TERMS), set()

    def read(client: str, message: bytes) -> bytes:
        secure = decode_invitation(message).secure
        assert secure is not None
        told.add(secure.graph.seed)
        return message

    found.run(Lying(found.transport(), "advertise", read))
    assert told == {found.plan.graph_seed}
    assert len(found.plan.graph_seed) == 32


def test_every_attempt_has_a_graph_of_its_own(tmp_path: Path) -> None:
    """Drawn once the cohort is, and never given out for a complete graph."""
    chosen = overrides("upload_noise", "semi_honest", tmp_path)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        run = simulation.run
        complete = Attempts(run, SilentObserver(), Spending(run=run))
        protection = run.terms.protection
        sums = dataclasses.replace(
            protection.sums, terms=dataclasses.replace(protection.terms, degree=2)
        )
        terms = dataclasses.replace(
            run.terms, protection=dataclasses.replace(protection, sums=sums)
        )
        regular = dataclasses.replace(complete, run=dataclasses.replace(run, terms=terms))
        seeds = [bytes.fromhex(regular._draw(1, attempt).plan["graph_seed"]) for attempt in (1, 2)]
        assert complete._draw(1, 1).plan["graph_seed"] == ""
    assert [len(seed) for seed in seeds] == [32, 32]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    "change",
    [
        {"degree": TERMS.degree - 2},
        {"degree": 0, "graph_seed": b""},
        {"threshold": TERMS.threshold - 1},
        {"smallest_sum": TERMS.smallest_sum - 1},
        {"graph_seed": bytes(31)},
    ],
    ids=str,
)
def test_another_graph_is_refused(stores: Path, change: dict[str, object]) -> None:
    found = cohort(stores, TERMS)

    def lie(client: str, message: bytes) -> bytes:
        honest = decode_invitation(message)
        assert isinstance(honest.secure, SecureRound)
        seat = changed(honest.secure, **change)
        return encode_invitation(dataclasses.replace(honest, secure=seat))

    transport = Lying(found.transport(), "advertise", lie)
    with pytest.raises(ProtocolError, match="message: the invitation is not valid"):
        found.run(transport)
    assert transport.answers == {}


def test_a_client_talks_to_its_neighbours_only(stores: Path) -> None:
    """What it sends grows with the degree and not with the cohort."""
    regular = cohort(stores / "regular", TERMS)
    complete = dataclasses.replace(TERMS, degree=0, threshold=45)
    whole = cohort(stores / "complete", complete)
    up = [found.run().bytes_up for found in (regular, whole)]
    # A box of 98 bytes and a share of 38 for each neighbour, beside what does not depend on it.
    spared = (LARGE - 1 - TERMS.degree) * (98 + 38)
    assert up[1] - up[0] == pytest.approx(spared, rel=0.05)
