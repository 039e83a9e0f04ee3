"""Methods whose clients swap something before the first round, in whole runs: paid for once."""

from __future__ import annotations

import pytest

from platform.errors import ConfigError
from platform.wire.codec import decode_arrays
from tests.trunk._runs import FIXED, RECORDS, Storage

NETWORK = "network: cnn, image_size: 16, channels: [2, 3]"
METHODS = {
    "ccst": f"method={{name: ccst, {NETWORK}, space: pixels}}",
    "elcfs": f"method={{name: elcfs, {NETWORK}}}",
}
SHORT = ("rounds=2", "evaluation.local_twins=false")


@pytest.mark.parametrize("name", METHODS)
def test_a_run_pays_once_and_all_rounds_have_the_entries(storage: Storage, name: str) -> None:
    run = storage.run(METHODS[name], *FIXED, *SHORT, "pool.clipping_norm=2.5")
    rows = storage.rows(
        "SELECT round_number, channel, clipping_norm, standard_deviation, count(*) FROM ledger"
        " GROUP BY 1, 2, 3, 4 ORDER BY 1"
    )
    assert rows == [(1, "pool", 2.5, 10.0, 5), (2, "sum", 1.0, 4.0, 5), (3, "sum", 1.0, 4.0, 5)]
    # Of four entries one client's own is left out; one of five has none.
    for _, experts in run.personal_parts().values():
        assert len(decode_arrays(experts)) // len(ENTRY[name]) in (3, 4)
    assert run.summary["final"]["accuracy"]["mean"] is not None


ENTRY = {"ccst": ("style.mean", "style.square"), "elcfs": ("amplitude",)}


@pytest.mark.parametrize("name", METHODS)
def test_noised_steps_do_not_cover_what_is_swapped(storage: Storage, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^privacy\.mechanism"):
        storage.create(METHODS[name], *RECORDS, *SHORT)
    assert not storage.file.exists()


REFUSED = {
    f"method={{name: ccst, {NETWORK}, space: pixels, style: single}}": "method.style: 'single'",
    f"method={{name: elcfs, {NETWORK}, spectrum: per_image}}": "method.spectrum: 'per_image'",
    f"method={{name: elcfs, {NETWORK}, spectrum: full}}": "method.spectrum: 'full'",
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_is_near_the_images_themselves_is_refused(storage: Storage, method: str) -> None:
    with pytest.raises(ConfigError) as refused:
        storage.create(method, *FIXED, *SHORT)
    assert str(refused.value).startswith(REFUSED[method]) and "; valid: " in str(refused.value)
    assert not storage.file.exists()
