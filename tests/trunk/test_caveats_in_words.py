"""What must be said of a mechanism, as a reader meets it."""

from __future__ import annotations

import pytest

from platform.mechanisms.distributed_noise import DISTRIBUTED_NOISE
from platform.mechanisms.mechanism import Circumstances


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [(1, "at most 1 client colludes with it"), (2, "at most 2 clients collude with it")],
)
def test_one_client_colludes_and_two_collude(corrupt: int, words: str) -> None:
    (said,) = DISTRIBUTED_NOISE.caveats(Circumstances(corrupt, is_active=False))
    assert said.endswith(words)
