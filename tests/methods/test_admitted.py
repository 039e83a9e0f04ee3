"""What the options of a method admit: whose updates the server must see, and which mechanisms."""

from __future__ import annotations

import pytest

from methods import (
    Aggregate,
    MethodError,
    Visibility,
    fedclip,
    fedcp,
    feddg_ga,
    fedgen,
    fedgh,
    fedotp,
    fedpcl,
    fedrod,
    pfedmoap,
    pfedpg,
    pfedprompt,
    prompt_fedamp,
    stablefdg,
)
from tests.methods._training import rng

SINGLE, SUMS = Visibility.PER_CLIENT, Visibility.AGGREGATE_ONLY
CLIENT, BOTH = {"client"}, {"client", "record"}


@pytest.mark.parametrize(
    ("module", "options", "visibility", "units"),
    [
        # The symmetric loss contrasts the images of a batch.
        (fedclip, {}, SUMS, CLIENT),
        (fedclip, {"loss": "cross_entropy"}, SUMS, BOTH),
        (fedcp, {}, SUMS, CLIENT),
        (fedcp, {"mmd_weight": 0.0}, SUMS, BOTH),
        (fedcp, {"mmd_weight": 0.0, "gumbel": True}, SUMS, CLIENT),
        # Counts of labels change the loss of all examples.
        (fedrod, {}, SUMS, CLIENT),
        (fedrod, {"generic_loss": "cross_entropy"}, SUMS, BOTH),
        (fedgen, {"labels": "uniform"}, SINGLE, CLIENT),
        (fedgen, {"ensemble": "mean"}, SUMS, CLIENT),
        (fedgen, {"ensemble": "mean", "labels": "uniform"}, SUMS, BOTH),
        (fedgh, {}, SINGLE, CLIENT),
        (fedgh, {"prototypes": "mean"}, SUMS, CLIENT),
        # Each client's table is contrasted with.
        (fedpcl, {"network": "features"}, SINGLE, CLIENT),
        (fedpcl, {"network": "features", "contrast": "global"}, SUMS, CLIENT),
        # A gap of one client's data is sent beside the update.
        (feddg_ga, {}, SINGLE, CLIENT),
        (pfedpg, {}, SINGLE, BOTH),
        (prompt_fedamp, {}, SINGLE, BOTH),
        (pfedprompt, {}, SUMS, BOTH),
        (stablefdg, {}, SUMS, CLIENT),
    ],
)
def test_what_is_seen_and_protected(task, module, options, visibility, units):
    method = module.build(module.Config(**options), task)
    assert (method.visibility, method.units) == (visibility, units)
    if visibility is SINGLE:
        with pytest.raises(MethodError, match=r"individual is None"):
            method.server_update(method.init_server(rng()), Aggregate({}, 1.0, 1, 4), (), rng())


@pytest.mark.parametrize(
    ("module", "options", "decouples"),
    [
        (pfedmoap, {"experts": 2}, True),
        # A gate that is shared cannot be trained after the last release.
        (pfedmoap, {"experts": 2, "gate_sharing": "aggregated"}, False),
        (fedotp, {}, True),
    ],
)
def test_what_can_be_trained_after_the_last_release(task, module, options, decouples):
    assert module.build(module.Config(**options), task).decouples == decouples


def test_single_updates_come_in_the_order_of_their_keys():
    told = Aggregate({}, 2.0, 2, 4, {"b": {}, "a": {}})
    assert list(told.each()) == ["a", "b"]
