"""What every method must hold to, whatever it is: one suite over all of them and all presets."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from methods import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    MethodError,
    PoolPolicy,
    Registry,
    Source,
    Task,
    TensorSpec,
    Visibility,
    Weighting,
)
from methods.interface.defaults import ALL_UNITS
from platform.config import MethodConfig
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.vectors import require_spec
from privacy.training import LocalTrainer, TrainingPlan
from tests.contract._driving import IdleTrainer, local_trainer, pool_of_rounds
from tests.contract.conftest import (
    CLASSES,
    POPULATION,
    PRESETS,
    Case,
    draw_batch,
    draw_examples,
    draw_experts,
    draw_raw,
    frozen,
    handed_out,
    shipped_cases,
)

NEEDS = {"features", "tokens", "pixels", "text", "domains"}
OTHER_CLASSES = ("house", "lightning", "drop", "old grey flower", "cross")


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def start(method: Method) -> tuple[Arrays, Arrays]:
    """What a client is sent first, and its first personal state; all read-only."""
    state = frozen(method.init_server(rng(1)))
    return frozen(method.broadcast(state, "one")), frozen(method.init_client(rng(1), rng(2)))


def train(method: Method, *, experts: int | None = None, clipping: float | None = None):
    broadcast, personal = start(method)
    return method.client_update(
        ClientView(broadcast, draw_experts(method, experts), personal),
        draw_examples(method, 0),
        local_trainer(clipping=clipping),
        rng(),
    )


def same_arrays(one: Arrays, other: Arrays) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[n], other[n]) for n in one)


def same_results(one: LocalResult, other: LocalResult) -> bool:
    return (
        same_arrays(one.update, other.update)
        and same_arrays(one.pool_entry or {}, other.pool_entry or {})
        and same_arrays(one.personal, other.personal)
        and one.metrics == other.metrics
    )


def test_every_method_has_a_preset_of_its_name_and_every_preset_a_method():
    shipped = Registry(installed=False).available()
    assert {path.stem for path in PRESETS.glob("*.yaml")} == set(shipped)
    for case in shipped_cases():
        assert case.method == case.name


def test_a_preset_states_every_option(case: Case):
    fields = {f.name for f in dataclasses.fields(case.registry.config_type(case.method))}
    assert set(case.options) == fields


def test_the_configuration_is_frozen(case: Case):
    kind = case.registry.config_type(case.method)
    assert kind.__dataclass_params__.frozen
    config = case.config()
    assert isinstance(config, kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.anything = None


def test_an_unknown_option_is_refused_by_name(case: Case):
    config = MethodConfig(name=case.method, **case.options, unheard_of=1)
    with pytest.raises(ConfigError, match=r"method\.unheard_of: .*valid: "):
        validate_options(case.registry, config)


@pytest.mark.parametrize("value", [{}, 1.5, True])
def test_an_option_of_a_wrong_type_is_refused_by_name(case: Case, value):
    kind = case.registry.config_type(case.method)
    known = dataclasses.fields(kind)
    if not known or type(value) in kinds(get_type_hints(kind)[known[0].name]):
        return
    name = known[0].name
    config = MethodConfig(name=case.method, **{**case.options, name: value})
    with pytest.raises(ConfigError, match=rf"method\.{name}: "):
        validate_options(case.registry, config)


def kinds(hint: object) -> set[object]:
    """All types that a hint has in it."""
    return {hint}.union(*map(kinds, get_args(hint)))


def test_the_method_says_what_it_is(case: Case):
    info = case.registry.info(case.method)
    assert info.name == case.method
    assert info.title
    assert info.source
    assert set(info.options) == {
        f.name for f in dataclasses.fields(case.registry.config_type(case.method))
    }


def test_the_interface(method: Method):
    assert isinstance(method.needs, frozenset)
    assert method.needs <= NEEDS
    assert isinstance(method.visibility, Visibility)
    assert isinstance(method.units, frozenset)
    assert method.units <= ALL_UNITS
    for spec in method.shared_spec().values():
        assert isinstance(spec, TensorSpec)
        assert isinstance(spec.weighting, Weighting)
        assert np.dtype(spec.dtype).kind == "f"
    policy = method.pool_policy()
    assert policy is None or isinstance(policy, PoolPolicy)
    if policy is not None:
        assert policy.spec
        assert policy.k >= 1


def test_an_example_is_prepared_alone_and_always_in_the_same_way(method: Method):
    """Row i depends on example i alone: in any order, in any company."""
    raw = draw_raw(method, 6, 5)
    whole = method.prepare(raw)
    order = [3, 0, 4, 1, 2]
    shuffled = method.prepare({name: value[order] for name, value in raw.items()})
    alone = method.prepare({name: value[2:3] for name, value in raw.items()})
    for name, value in whole.items():
        assert len(value) == 5
        assert value.dtype.kind != "f" or np.isfinite(value).all()
        np.testing.assert_allclose(shuffled[name], value[order], atol=1e-6)
        np.testing.assert_allclose(alone[name][0], value[2], atol=1e-6)
    assert not set(whole) & {"labels", "domains"}


def test_examples_of_one_class_move_what_is_shared_unless_it_is_announced(method: Method):
    broadcast, personal = start(method)
    data = dict(draw_examples(method, 0).arrays)
    data["labels"] = np.full_like(data["labels"], 2)
    view = ClientView(broadcast, handed_out(method), personal)
    update = method.client_update(view, Examples(frozen(data)), local_trainer(), rng()).update
    assert all(np.isfinite(array).all() for array in update.values())
    if update and method.learns and method.learns_one_class:
        assert any(np.any(array) for array in update.values())


def test_a_loss_of_a_whole_batch_is_not_trained_on_records(method: Method):
    if method.couples_examples:
        assert "record" not in method.units


def test_a_loss_is_of_one_example_unless_it_is_announced(method: Method):
    """One step on {a, b} is the mean of one step on {a} and one on {b}: so are their gradients."""
    if method.couples_examples:
        return
    broadcast, personal = start(method)
    data, experts = draw_examples(method, 0, 2), draw_experts(method)
    moves = []
    for rows in (slice(0, 2), slice(0, 1), slice(1, 2)):
        part = Examples(frozen({n: v[rows] for n, v in data.arrays.items()}))
        trainer = local_trainer(learning_rate=0.01, steps=1)
        result = method.client_update(
            ClientView(broadcast, experts, personal), part, trainer, rng()
        )
        moved = {n: v - personal[n] for n, v in result.personal.items() if n in personal}
        trained = {n: v for n, v in result.update.items() if is_mean(method, n)}
        moves.append({**moved, **{f"update.{n}": v for n, v in trained.items()}})
    both, first, second = moves
    for name in both:
        mean = (first[name] + second[name]) / 2
        np.testing.assert_allclose(both[name], mean, rtol=1e-3, atol=1e-6)


def is_mean(method: Method, name: str) -> bool:
    """Whether a tensor of the update is a mean of something of each example."""
    return method.shared_spec()[name].source is not Source.STATISTIC


def test_the_update_is_what_was_announced(method: Method):
    result = train(method)
    require_spec(result.update, method.shared_spec())
    for name, spec in method.shared_spec().items():
        assert result.update[name].dtype == np.dtype(spec.dtype)
        assert np.isfinite(result.update[name]).all()


def test_the_pool_entry_is_what_was_announced(method: Method):
    result, policy = train(method), method.pool_policy()
    if policy is None:
        assert result.pool_entry is None
        return
    if policy.fixed:
        assert result.pool_entry is None
        view = ClientView(start(method)[0], (), frozen(result.personal))
        result = method.contribute(view, draw_examples(method, 0), local_trainer(), rng())
        assert result.update == {}
    assert result.pool_entry is not None
    require_spec(result.pool_entry, policy.spec)
    for name, spec in policy.spec.items():
        assert result.pool_entry[name].dtype == np.dtype(spec.dtype)


def test_a_client_without_shared_tensors_or_pool_releases_nothing(method: Method):
    result = train(method)
    assert bool(result.update) == bool(method.shared_spec())
    assert (result.pool_entry is None) == (pool_of_rounds(method) is None)


def test_training_moves_something_or_the_method_says_that_it_does_not(method: Method):
    result, (_, personal) = train(method), start(method)
    moved = any(value.any() for value in result.update.values())
    learns = moved or not same_arrays(result.personal, personal)
    assert learns == method.learns


def test_the_update_is_a_difference_to_the_broadcast(method: Method):
    broadcast, personal = start(method)
    # Seven, so that no class's share is the equal one that a server may start from.
    data, experts = draw_examples(method, 0, 7), draw_experts(method)
    idle = method.client_update(
        ClientView(broadcast, experts, personal), data, IdleTrainer(), rng()
    )
    for name, value in idle.update.items():
        # What is said to be there without training must be there.
        assert value.any() == (method.shared_spec()[name].source is not Source.TRAINING)


def test_a_pool_entry_is_absolute(method: Method):
    """Where it is the shared tensor, it is broadcast plus update."""
    result, (broadcast, _) = train(method), start(method)
    for name, value in (result.pool_entry or {}).items():
        if name in result.update:
            np.testing.assert_allclose(value, broadcast[name] + result.update[name], atol=1e-6)
            # Bit for bit, or `pool.noise: same` is refused.
            assert np.array_equal(value - broadcast[name], result.update[name])


@pytest.mark.parametrize("clipping", [None, 0.5])
@pytest.mark.parametrize("experts", [None, 0])
def test_one_seed_gives_one_result(method: Method, clipping, experts):
    if clipping is not None and method.couples_examples:
        # Refused before a run: there is no gradient of one example alone.
        return
    first = train(method, clipping=clipping, experts=experts)
    second = train(method, clipping=clipping, experts=experts)
    assert same_results(first, second)


def test_initial_states_depend_on_their_seed_alone(method: Method):
    assert same_arrays(method.init_server(rng(4)), method.init_server(rng(4)))
    one, other = (method.init_client(rng(4), rng(5)) for _ in range(2))
    assert same_arrays(one, other)


def test_nothing_that_is_handed_in_is_kept_or_changed(method: Method):
    """All inputs are read-only, so a change raises; what comes back shares no memory with data."""
    broadcast, personal = start(method)
    data = draw_examples(method, 0)
    before = {name: value.copy() for name, value in data.arrays.items()}
    result = method.client_update(
        ClientView(broadcast, draw_experts(method), personal), data, local_trainer(), rng()
    )
    assert same_arrays(data.arrays, before)
    for value in (*result.update.values(), *(result.pool_entry or {}).values()):
        assert not any(np.shares_memory(value, given) for given in data.arrays.values())
        assert not any(np.shares_memory(value, given) for given in broadcast.values())


def test_states_survive_storage(method: Method):
    states = [
        method.init_server(rng(1)),
        method.init_client(rng(1), rng(2)),
        train(method).personal,
    ]
    for state in states:
        restored = decode_arrays(encode_arrays(state))
        assert same_arrays(state, restored)
        assert all(restored[name].dtype == value.dtype for name, value in state.items())


def test_a_second_round_goes_on_from_stored_state(method: Method):
    first = train(method, experts=0)
    broadcast, _ = start(method)
    again = [
        method.client_update(
            ClientView(broadcast, draw_experts(method), frozen(personal)),
            draw_examples(method, 0),
            local_trainer(),
            rng(),
        )
        for personal in (first.personal, decode_arrays(encode_arrays(first.personal)))
    ]
    assert same_results(*again)


@pytest.mark.parametrize("classes", [CLASSES, CLASSES[2:0:-1], OTHER_CLASSES, ("house",)])
@pytest.mark.parametrize("experts", [None, 0])
def test_prediction_for_any_classes(method: Method, classes, experts):
    broadcast, personal = start(method)
    batch = draw_batch(method, 4)
    served = draw_experts(method, experts)
    for state in (personal, train(method, experts=experts).personal):
        view = ClientView(broadcast, served, frozen(state))
        if method.closed_classes and not set(classes) <= set(CLASSES):
            with pytest.raises(MethodError, match=r"classes: .*valid: "):
                method.predict(view, batch, classes)
            continue
        logits = method.predict(view, batch, classes)
        assert logits.shape == (5, len(classes))
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()


def test_a_closed_method_names_its_outputs_by_class(method: Method):
    """The logits of some classes, in any order, are those columns of all of them."""
    if not method.closed_classes:
        return
    broadcast, personal = start(method)
    view = ClientView(broadcast, draw_experts(method), personal)
    batch = draw_batch(method, 4)
    whole, some = (method.predict(view, batch, c) for c in (CLASSES, CLASSES[2:0:-1]))
    np.testing.assert_allclose(some, whole[:, [2, 1]], rtol=1e-5, atol=1e-6)


def test_a_prediction_depends_on_its_own_image_only(method: Method):
    broadcast, personal = start(method)
    batch = draw_batch(method, 4)
    alone = {name: value[2:3] for name, value in batch.items()}
    experts = draw_experts(method)
    together = method.predict(ClientView(broadcast, experts, personal), batch, CLASSES)
    single = method.predict(ClientView(broadcast, experts, personal), alone, CLASSES)
    np.testing.assert_allclose(together[2:3], single, atol=1e-4)


@pytest.mark.parametrize("experts", [None, 0])
def test_weights_of_experts_are_shares_of_one_image(method: Method, experts):
    broadcast, _ = start(method)
    served = draw_experts(method, experts)
    personal = train(method, experts=experts).personal
    batch, view = draw_batch(method, 4), ClientView(broadcast, served, frozen(personal))
    weights = method.expert_weights(view, batch, CLASSES)
    if weights is None:
        return
    assert served or method.pool_policy() is None
    assert len(weights) == 5
    assert weights.dtype == np.float32
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    alone = {name: value[2:3] for name, value in batch.items()}
    single = method.expert_weights(view, alone, CLASSES)
    np.testing.assert_allclose(weights[2:3], single, atol=1e-5)


def test_personalising_gives_arrays_that_predict(method: Method):
    broadcast, _ = start(method)
    experts, data = draw_experts(method), draw_examples(method, 0)
    trained = frozen(train(method).personal)
    personal = method.personalise(
        ClientView(broadcast, experts, trained), data, local_trainer(), rng()
    )
    restored = decode_arrays(encode_arrays(personal))
    batch = draw_batch(method, 0, 8)
    logits = method.predict(ClientView(broadcast, experts, restored), batch, CLASSES)
    assert np.isfinite(logits).all()


def server_update(method: Method, state: Arrays, results: dict[str, LocalResult]) -> Arrays:
    sums = {
        name: sum(result.update[name] for result in results.values())
        / (1 if spec.weighting is Weighting.SUM else len(results))
        for name, spec in method.shared_spec().items()
    }
    individual = {key: frozen(result.update) for key, result in results.items()}
    pool = [result.pool_entry for result in results.values() if result.pool_entry is not None]
    shown = individual if method.visibility is Visibility.PER_CLIENT else None
    aggregate = Aggregate(frozen(sums), 16.0, len(results), POPULATION, shown)
    return method.server_update(frozen(state), aggregate, pool, rng(9))


def test_a_broadcast_has_the_same_arrays_in_every_round(method: Method):
    """Clients refuse any others, so that nobody can choose where training breaks."""

    def looks(state: Arrays, client: str | None) -> dict:
        broadcast = method.broadcast(state, client)
        return {name: (array.shape, array.dtype) for name, array in broadcast.items()}

    names, state = ("client-0", "client-1"), method.init_server(rng(1))
    first = looks(state, None)
    personal = {name: method.init_client(rng(1), rng(2)) for name in names}
    experts = handed_out(method)
    for _ in range(2):
        results = {}
        for i, name in enumerate(names):
            view = ClientView(method.broadcast(state, name), experts, personal[name])
            assert looks(state, name) == first
            trainer = local_trainer()
            results[name] = method.client_update(view, draw_examples(method, i), trainer, rng())
            personal[name] = results[name].personal
        state = server_update(method, state, results)
    assert looks(state, "client-0") == looks(state, "new") == looks(state, None) == first


def test_one_party_that_holds_all_data_sends_nothing_and_says_so(case: Case, method: Method):
    """In the title too, which is what a list of methods shows of it."""
    told = "centralised" in case.registry.info(case.method).title
    assert told == method.centralised
    if method.centralised:
        assert method.has_personal_state
        assert not method.shared_spec() and method.pool_policy() is None
        assert method.init_server(rng(1)) == {}


def test_a_method_that_keeps_nothing_says_so_truly(method: Method):
    if not method.has_personal_state:
        assert method.init_client(rng(1), rng(2)) == {}
        assert train(method).personal == {}


def test_what_is_averaged_moves_by_its_combined_change(method: Method):
    """So that a server optimiser, which only changes what is handed over, has its effect."""
    assert method.averaged <= set(method.shared_spec())
    state = method.init_server(rng(1))
    results = {"one": train(method), "two": train(method, experts=0)}
    # Twice, as what a server remembers of earlier rounds shows in the second.
    for _ in range(2):
        after = server_update(method, state, results)
        for name in method.averaged:
            total = results["one"].update[name] + results["two"].update[name]
            is_sum = method.shared_spec()[name].weighting is Weighting.SUM
            change = total if is_sum else total / 2
            assert np.array_equal(after[name], (state[name] + change).astype(state[name].dtype))
        state = after


def test_a_federation_of_one_that_shares_everything_trains_centrally(method: Method):
    """Three rounds of one epoch are one training of three epochs, for the same batches.

    Unless a client is held at what was broadcast, which then must show.
    """
    shared = set(method.shared_spec())
    if method.has_personal_state or not shared or method.averaged != shared:
        return
    state, data = method.init_server(rng(1)), draw_examples(method, 0)
    rate = 0.5 if method.anchored else 0.05
    whole = method.client_update(
        ClientView(frozen(method.broadcast(state))), data, epochs(3, rate), rng(5)
    ).update
    batches, now = rng(5), state
    for _ in range(3):
        view = ClientView(frozen(method.broadcast(now)))
        update = method.client_update(view, data, epochs(1, rate), batches).update
        now = method.server_update(now, Aggregate(update, 8.0, 1, 1), (), rng(9))
    off = max(np.abs(now[n] - state[n] - whole[n]).max() for n in shared)
    assert (off > 1e-5) == method.anchored, off
    for name in shared:
        assert np.abs(whole[name]).max() > 0


def epochs(count: int, rate: float) -> LocalTrainer:
    return LocalTrainer(TrainingPlan(local_epochs=count, batch_size=3, learning_rate=rate))


def test_the_server_state_keeps_its_shape(method: Method):
    state = method.init_server(rng(1))
    results = {"one": train(method), "two": train(method, experts=0)}
    after = server_update(method, state, results)
    assert set(state) <= set(after)
    if method.visibility is Visibility.AGGREGATE_ONLY:
        assert set(state) == set(after)
    for name, value in state.items():
        assert after[name].shape == value.shape
        assert after[name].dtype == value.dtype
    assert same_arrays(after, server_update(method, state, results))
    assert same_arrays(after, decode_arrays(encode_arrays(after)))


def test_what_is_broadcast_can_be_sent(method: Method):
    state = server_update(method, method.init_server(rng(1)), {"one": train(method)})
    for key in ("one", "never seen", None):
        broadcast = method.broadcast(state, key)
        assert same_arrays(broadcast, decode_arrays(encode_arrays(broadcast)))


def test_methods_that_need_a_backbone_say_so(case: Case, method: Method):
    """Those that read what the frozen model makes of images, and no others."""
    encoded = method.needs & {"features", "tokens"}
    if method.pixel_size is None:
        encoded |= method.needs & {"pixels"}
    without = Task(CLASSES, ("ink",), POPULATION, None)
    if not encoded:
        other = case.registry.build(case.method, case.config(), without)
        assert other.needs == method.needs
        return
    with pytest.raises(MethodError, match="CLIP model"):
        case.registry.build(case.method, case.config(), without)


def test_the_method_is_one_file(case: Case):
    folders = [Path(p) for p in importlib.import_module(case.registry.package).__path__]
    folders += [] if case.registry.folder is None else [case.registry.folder]
    assert sum((folder / f"{case.method}.py").is_file() for folder in folders) == 1
