"""What a method declares about itself, before and after it is built, and its initial states."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, Final, get_args, get_type_hints

import numpy as np
import pytest

from methods import (
    Arrays,
    ClientView,
    CountsUpTo,
    CountsWith,
    LocalResult,
    Method,
    MethodError,
    PoolPolicy,
    Task,
    TensorSpec,
    Visibility,
    Weighting,
)
from methods.interface.defaults import ALL_UNITS
from methods.interface.method import Need, marks_of
from platform.config import MethodConfig
from platform.config.loading import validate_options
from platform.config.run import known_keys
from platform.contract.cases import Case
from platform.contract.driving import local_trainer, rng, same_arrays, server_update
from platform.contract.examples import CLASSES, POPULATION, draw_examples, draw_raw, handed_out
from platform.errors import ConfigError
from platform.wire.codec import decode_arrays, encode_arrays


def test_a_preset_states_every_option(case: Case) -> None:
    """The preset, NAME.yaml, states every option of `Config` and no other."""
    fields = {f.name for f in dataclasses.fields(case.registry.config_type(case.method))}
    assert set(case.options) == fields


def test_the_configuration_is_frozen(case: Case) -> None:
    """`Config` is a frozen dataclass."""
    kind = case.registry.config_type(case.method)
    config = case.config()
    assert isinstance(config, kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.anything = None


def test_what_is_said_of_an_option_names_others_that_there_are(case: Case) -> None:
    """A mark of an option names another option, or a key of the run, that exists."""
    marks = list(marks_of(case.registry.config_type(case.method)))
    if not marks:
        return
    options, run = case.config(), {one.name for one in known_keys()}
    for key, mark in marks:
        if isinstance(mark, CountsUpTo):
            assert mark.key in run, f"{key} is held against {mark.key}"
        if isinstance(mark, CountsWith):
            assert mark.option in run or hasattr(options, mark.option), f"{key}: {mark.option}"


def test_an_unknown_option_is_refused_by_name(case: Case) -> None:
    """An unknown option is refused, and the refusal names it."""
    config = MethodConfig(name=case.method, **{**case.options, "unheard_of": 1})
    with pytest.raises(ConfigError, match=r"method\.unheard_of: .*valid: "):
        validate_options(case.registry, config)


@pytest.mark.parametrize("value", [{}, 1.5, True])
def test_an_option_of_a_wrong_type_is_refused_by_name(case: Case, value: object) -> None:
    """An option of a wrong type is refused, and the refusal names it."""
    kind = case.registry.config_type(case.method)
    known = dataclasses.fields(kind)
    if not known or type(value) in kinds(get_type_hints(kind)[known[0].name]):
        return
    name = known[0].name
    config = MethodConfig(name=case.method, **{**case.options, name: value})
    with pytest.raises(ConfigError, match=rf"method\.{name}: "):
        validate_options(case.registry, config)


def kinds(hint: object) -> set[object]:
    """Return a hint and all types inside it."""
    return {hint}.union(*map(kinds, get_args(hint)))


def test_the_method_says_what_it_is(case: Case) -> None:
    """The module's docstring has a title and, in a second paragraph, the method's source."""
    info = case.registry.info(case.method)
    assert info.name == case.method
    assert info.title
    assert info.source
    assert set(info.options) == {
        f.name for f in dataclasses.fields(case.registry.config_type(case.method))
    }


NEEDS: Final = frozenset(get_args(Need))


def test_the_interface(method: Method) -> None:
    """Every member of `Method` has the type that the interface declares."""
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


def test_what_is_said_of_a_pool_before_it_is_built_holds(case: Case, method: Method) -> None:
    """`serving` describes the pool as `pool_policy` does, except for an entry's content."""
    said = case.registry.serving(case.method, case.config(), POPULATION)
    if said is not None:
        policy = method.pool_policy()
        assert policy is not None
        assert replace(policy, spec={}, trains=False) == said


def test_an_example_is_prepared_alone_and_always_in_the_same_way(method: Method) -> None:
    """`prepare` makes row i from example i alone, whatever the order and the other examples are."""
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


def test_a_loss_of_a_whole_batch_is_not_trained_on_records(method: Method) -> None:
    """A method whose loss couples examples does not list `record` in its units."""
    if method.couples_examples:
        assert "record" not in method.units


def test_initial_states_depend_on_their_seed_alone(method: Method) -> None:
    """`init_server` and `init_client` give the same states for the same generators."""
    assert same_arrays(method.init_server(rng(4)), method.init_server(rng(4)))
    one, other = (method.init_client(rng(4), rng(5)) for _ in range(2))
    assert same_arrays(one, other)


def test_states_survive_storage(method: Method, result: LocalResult) -> None:
    """Every state consists of arrays that storage returns unchanged."""
    states = [method.init_server(rng(1)), method.init_client(rng(1), rng(2)), result.personal]
    for state in states:
        restored = decode_arrays(encode_arrays(state))
        assert same_arrays(state, restored)
        assert all(restored[name].dtype == value.dtype for name, value in state.items())


def test_a_broadcast_has_the_same_arrays_in_every_round(method: Method) -> None:
    """A broadcast has the same names, shapes and types in every round; clients refuse others."""
    # Otherwise the coordinator could choose a broadcast at which training breaks.

    def looks(state: Arrays, client: str | None) -> dict[str, Any]:
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


def test_what_is_broadcast_can_be_sent(method: Method, result: LocalResult) -> None:
    """A broadcast consists of arrays that a message carries unchanged, for every client."""
    state = server_update(method, method.init_server(rng(1)), {"one": result})
    for key in ("one", "never seen", None):
        broadcast = method.broadcast(state, key)
        assert same_arrays(broadcast, decode_arrays(encode_arrays(broadcast)))


def test_a_method_that_sends_nothing_says_so(case: Case, method: Method) -> None:
    """A module has `SENDS_NOTHING = True` exactly if nothing is shared and there is no pool."""
    sends = bool(method.shared_spec()) or method.pool_policy() is not None
    assert case.registry.sends_nothing(case.method) != sends


def test_one_party_that_holds_all_data_sends_nothing_and_says_so(
    case: Case, method: Method
) -> None:
    """A method without a federation shares nothing, and its title says `centralised`."""
    told = "centralised" in case.registry.info(case.method).title
    assert told == method.centralised
    if method.centralised:
        assert method.has_personal_state
        assert not method.shared_spec() and method.pool_policy() is None
        assert method.init_server(rng(1)) == {}


def test_a_method_that_keeps_nothing_says_so_truly(method: Method, result: LocalResult) -> None:
    """A method that declares no personal state returns no personal state."""
    if not method.has_personal_state:
        assert method.init_client(rng(1), rng(2)) == {}
        assert result.personal == {}


def test_methods_that_need_a_backbone_say_so(case: Case, method: Method) -> None:
    """`build` refuses a task without a CLIP model exactly if the method reads CLIP's output."""
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
