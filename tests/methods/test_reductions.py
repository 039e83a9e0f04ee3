"""What is left of a method when its own part is taken away: FedAvg, or PromptFL, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from methods import (
    ClientView,
    ccst,
    dbe,
    ditto,
    elcfs,
    fedadg,
    fedavg,
    feddg_ga,
    feddistill,
    fedgen,
    fedpgp,
    fedpr,
    fedproto,
    fedprox,
    fedrod,
    moon,
    pfedmoap,
    pfedprompt,
    prompt_fedper,
    prompt_fedprox,
    promptfl,
    promptfl_ft,
    scaffold,
    stablefdg,
)
from methods.networks.class_tables import KNOWN, TABLE
from methods.prompts.prompt import CONTEXT
from platform.contract.examples import draw_examples
from tests.methods._tiny_networks import some_examples, tiny
from tests.methods._training import rng, trainer

CNN = {"network": "cnn", "image_size": 20, "channels": (2, 3), "feature_width": 4}
NETWORKS = {
    "fedprox without mu": (fedprox, {"mu": 0.0}),
    "moon without mu": (moon, {"mu": 0.0, "projection": "none"}),
    "ditto's global network": (ditto, {"proximal_weight": 2.0}),
    "ditto, decoupled": (ditto, {"proximal_weight": 2.0, "decoupled": True}),
    "scaffold, equal controls": (scaffold, {}),
    "fedadg without adversary": (fedadg, {"first_share": 1.0, "smoothing": 0.0}),
    "fedrod without balancing": (fedrod, {"generic_loss": "cross_entropy"}),
    "fedgen without weight": (fedgen, {"weight": 0.0}),
    "dbe's first round": (dbe, {}),
    "feddg_ga's base": (feddg_ga, {"base_options": CNN, "held_out": 0.0}),
    "elcfs without others' blocks": (elcfs, {}),
    "ccst without others' styles": (ccst, {"space": "pixels"}),
    "stablefdg without its parts": (
        stablefdg,
        {"sharing_probability": 0.0, "exploration_probability": 0.0, "attention_width": None},
    ),
}


# Others' losses are of a batch, or of more layers than are compared.
CLIPPED = ("fedprox without mu", "moon without mu", "ditto's global network")


@pytest.mark.parametrize(
    ("case", "clipping"), [*((c, None) for c in NETWORKS), *((c, 0.3) for c in CLIPPED)]
)
def test_the_network_is_trained_as_by_fedavg(task, case, clipping):
    module, options = NETWORKS[case]
    task = dataclasses.replace(task, decoupled=options.get("decoupled", False))
    own = {name: value for name, value in options.items() if name != "decoupled"}
    network = {} if "base_options" in own else CNN
    method = module.build(module.Config(**network, **own), task)
    plain = fedavg.build(fedavg.Config(**CNN), task)
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    data = draw_examples(method, 0)
    view = ClientView(method.broadcast(state), personal=personal)
    learner = {"learning_rate": 0.01, "clipping": clipping}
    mine = method.client_update(view, data, trainer(**learner), rng(4)).update
    # FedRoD calls the shared head generic.
    named = {name.replace("generic", "head"): name for name in state}
    start = {name: state[named[name]] for name in plain.shared_spec()}
    theirs = plain.client_update(ClientView(start), data, trainer(**learner), rng(4)).update
    for name, value in theirs.items():
        assert value.any()
        np.testing.assert_allclose(mine[named[name]], value, atol=1e-7)


@pytest.mark.parametrize("why", ["no weight", "no rows"])
@pytest.mark.parametrize("method", ["fedproto", "feddistill"])
def test_without_what_the_table_teaches_it_is_local_training(method, why):
    """What FedAvg's client makes of the same network."""
    given = why == "no weight"
    weight = 0.0 if given else 5.0
    if method == "fedproto":
        built, width = tiny(fedproto.FedProto, fedproto, 3, 4, prototype_weight=weight), 4
    else:
        built, width = tiny(feddistill.FedDistill, feddistill, 3, 4, distillation_weight=weight), 2
    data, own = some_examples(10, 3), built.init_client(rng(1), rng())
    table = {TABLE: np.ones((2, width), np.float32), KNOWN: np.full(2, given, np.float32)}
    got = built.client_update(ClientView(table, (), own), data, trainer(), rng(2)).personal
    plain = tiny(fedavg.FedAvg, fedavg, 3, 4)
    expected = plain.client_update(ClientView(own), data, trainer(), rng(2)).update
    for name, change in expected.items():
        assert change.any()
        np.testing.assert_allclose(got[name] - own[name], change, atol=1e-6)


STILL = {"mu": 0.0, "adapter_init": "zero", "personal_learning_rate": 0.0, "bottleneck": 2}
PROMPTS = {
    "prompt_fedprox without mu": (prompt_fedprox, {"mu": 0.0}),
    "prompt_fedper, all shared": (prompt_fedper, {"shared_tokens": 4}),
    "promptfl_ft's rounds": (promptfl_ft, {}),
    "fedpr's first round": (fedpr, {}),
    "pfedprompt's rounds": (pfedprompt, {}),
    "pfedmoap without experts": (pfedmoap, {"experts": 2, "gate_dim": 32, "gate_heads": 4}),
    "fedpgp, still": (fedpgp, STILL),
    "fedpgp of full rank, still": (fedpgp, {**STILL, "rank": "full"}),
    "fedpgp, decoupled": (fedpgp, {"bottleneck": 2, "decoupled": True}),
}


@pytest.mark.parametrize("clipping", [None, 0.05])
@pytest.mark.parametrize("case", PROMPTS)
def test_the_prompt_is_trained_and_predicts_as_promptfls(task, examples, case, clipping):
    module, options = PROMPTS[case]
    task = dataclasses.replace(task, decoupled=options.get("decoupled", False))
    own = {name: value for name, value in options.items() if name != "decoupled"}
    method = module.build(module.Config(context_tokens=4, **own), task)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    assert np.array_equal(state[CONTEXT], plain.init_server(rng(1))[CONTEXT])
    view, start = ClientView(state, personal=personal), ClientView({CONTEXT: state[CONTEXT]})
    mine = method.client_update(view, examples, trainer(clipping=clipping), rng(4)).update
    theirs = plain.client_update(start, examples, trainer(clipping=clipping), rng(4)).update
    assert theirs[CONTEXT].any()
    assert np.array_equal(mine[CONTEXT], theirs[CONTEXT])
    np.testing.assert_array_equal(
        method.predict(view, examples.arrays, task.classes),
        plain.predict(start, examples.arrays, task.classes),
    )
