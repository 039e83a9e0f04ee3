"""Pickles as data: the same as `pickle` would make of plain ones, and nothing of all others.

`pickle` writes what is read here, and its own reader is the oracle; no test unpickles a file that
was tampered with.
"""

from __future__ import annotations

import builtins
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.data.loaders._plain_pickle import read_plain
from platform.errors import DataError
from tests.drawn.arrays import as_python_2

PROTOCOLS = range(5)
ARRAYS = [
    np.arange(6, dtype="u1").reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype="<i8").reshape(2, 3)),
    np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2],
    np.array([0.5, -2.0, np.inf], "f4"),
    np.array(["a", "büro", "\U0001f600"]),
    np.array([b"x", b"\xff\x00y"]),
    np.array(["path/one.jpg", "two"], object),
    np.array(["p"] * 4, object).reshape(2, 2, order="F"),
    np.array(7, "i2"),
]
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-300, 300) | st.binary(), inner)
    ),
    max_leaves=30,
)


def refused(data: bytes) -> str:
    with pytest.raises(DataError) as caught:
        read_plain(data, "list.pkl")
    text = str(caught.value)
    assert text.startswith("task.root: 'list.pkl' is no pickle") and len(text) < 350
    return text


class Trap:
    """Calls a function with arguments when it is unpickled."""

    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


@pytest.fixture
def untouched(tmp_path: Path):
    """A file's path that must not be there at the end."""
    path = tmp_path / "made-by-a-pickle"
    yield path
    assert not path.exists()


@given(value=plain, protocol=st.sampled_from(PROTOCOLS))
@settings(max_examples=40, deadline=None)
def test_plain_values_are_what_was_pickled(protocol: int, value: object):
    found = read_plain(pickle.dumps(value, protocol), "list.pkl")
    assert repr(found) == repr(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}-{a.shape}")
def test_arrays_are_what_was_pickled(protocol: int, array: np.ndarray):
    found, again = read_plain(pickle.dumps([array, array], protocol), "list.pkl")
    assert found is again
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable


@pytest.mark.parametrize("protocol", range(4))
def test_numpy_1_names_its_modules_otherwise(protocol: int):
    new = pickle.dumps([ARRAYS[0], ARRAYS[4]], protocol)
    old = new.replace(b"numpy._core.", b"numpy.core.")
    assert old != new
    for found, array in zip(read_plain(old, "list.pkl"), (ARRAYS[0], ARRAYS[4]), strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_batch_of_python_2_is_read_as_latin_1():
    batch = {"labels": [3, 0], "names": ["\xe4.png", "b.png"]}
    data = as_python_2(batch)
    oracle = pickle.loads(data, encoding="latin-1")  # noqa: S301 -- made here, a line above
    assert read_plain(data, "data_batch_1") == oracle == batch


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("call", [os.system, builtins.exec])
def test_calls_are_refused_and_not_made(protocol: int, call, untouched: Path):
    argument = f"touch {untouched}" if call is os.system else f"open({str(untouched)!r}, 'w')"
    data = pickle.dumps({"data": [Trap(call, argument)]}, protocol)
    assert "it names '" in refused(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cos\nsystem\n(S'touch x'\ntR.", "it names 'os system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it names 'os system'"),
        (b"(S'touch x'\nios\nsystem\n.", "instruction INST"),
        (b"(cos\nsystem\nS'x'\no.", "it names 'os system'"),
        (b"K\x01K\x02\x81.", "instruction NEWOBJ"),
        (b"Pspam\n.", "instruction PERSID"),
        (b"\x82\x01.", "instruction EXT1"),
        (b"K\x010.", "instruction POP"),
        (b"]}b.", "it changes an object"),
        (b"cnumpy\nndarray\n)R.", "it calls something"),
        (b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "it calls something"),
        (b"c__builtin__\nbytes\n(J\xff\xff\xff\x7ftR.", "it calls something"),
        (b"]].", "leaves something over"),
        (b"a.", "what is not there"),
        (b"h\x05.", "it never had"),
        (b"K\x01K\x02a.", "else than a list"),
        (b"]K\x01K\x02s.", "else than a dict"),
        (b"}]K\x01s.", "a dict with a key"),
        (b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".", "more than 64 bits"),
        (b"](" + b"N" * 1_000_000 + b"e.", "1,000,000 instructions"),
        # Damaged files.
        (b"", "damaged or incomplete"),
        (b"L" + b"9" * 5000 + b"L\n.", "damaged or incomplete"),
        (b"\x8e" + b"\xff" * 8 + b"x.", "damaged or incomplete"),
        (b"Sunquoted\n.", "damaged or incomplete"),
        (pickle.dumps({"data": np.arange(99)}, 4)[:-20], "damaged or incomplete"),
    ],
)
def test_what_is_more_than_plain_is_refused(data: bytes, reason: str):
    assert reason in refused(data)


def test_a_list_that_holds_itself_or_a_million_others_is_read_and_freed():
    found = read_plain(b"]q\x00h\x00a.", "list.pkl")
    assert found[0] is found
    read_plain(b"]" * 400_000 + b"a" * 399_999 + b".", "list.pkl")


def test_a_bomb_of_shared_lists_stays_as_small_as_its_file():
    layers = b"](K\x01K\x01eq\x00"
    for i in range(25):
        layers += b"](" + (b"h" + bytes([i])) * 10 + b"eq" + bytes([i + 1])
    found = read_plain(b"(" + layers + b"t.", "list.pkl")
    assert len(found) == 26
    assert found[25][0] is found[24]


def test_copies_out_of_the_memo_are_charged():
    text = b"X" + struct.pack("<i", 10_000) + b"a" * 10_000 + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    assert isinstance(read_plain(b"(" + text + again + b"t.", "list.pkl"), tuple)
    assert "copies more than" in refused(b"(" + text + again * 9 + b"t.")


def array_pickle(shape: bytes, dtype: bytes, content: bytes, state: bytes = b"N") -> bytes:
    kind = b"cnumpy\ndtype\nU" + bytes([len(dtype)]) + dtype + b"K\x00K\x01\x87R"
    kind += b"(K\x03U\x01<" + state * 3 + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return start + b"(K\x01" + shape + kind + b"\x89" + content + b"tb."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (array_pickle(b"K\x03\x85", b"u2", b"U\x04\x01\x00\x02\x00"), "does not fit its content"),
        (array_pickle(b"K\x01\x85", b"u2", b"U\x03\x01\x00\x02"), "not of type"),
        (array_pickle(b"J\xff\xff\xff\xff\x85", b"u1", b"U\x00"), "does not fit its content"),
        (array_pickle(b"K\x05", b"u1", b"U\x00"), "without a shape"),
        (array_pickle(b"K\x00J\xff\xff\xff\x7f\x86", b"u1", b"U\x00"), "does not fit its content"),
        (array_pickle(b"K\x01\x85", b"O8", b"](K\x01e"), "objects that are"),
        (array_pickle(b"K\x01\x85", b"U1", b"U\x04\xff\xff\xff\xff"), "impossible characters"),
        (array_pickle(b"K\x01\x85", b"M8", b"U\x08aaaaaaaa"), "array of type 'M8'"),
        (array_pickle(b"K\x01\x85", b"u1", b"U\x01a", b"K\x01"), "structured or unknown"),
        (pickle.dumps(np.zeros(2, [("a", "u1")]), 4), "structured or unknown"),
        (pickle.dumps(np.array([Trap(os.getpid)], object)), "it names 'posix getpid'"),
    ],
)
def test_arrays_that_are_none_are_refused(data: bytes, reason: str):
    assert reason in refused(data)


@given(data=st.data())
@settings(max_examples=40)
def test_damage_anywhere_gives_plain_data_or_one_sentence(data: st.DataObject):
    value = {"data": ARRAYS[0], "labels": [1, 2], "names": ARRAYS[6], "more": (b"x", None, "y")}
    whole = bytearray(pickle.dumps(value, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_plain(bytes(whole[: data.draw(st.integers(0, len(whole)))]), "list.pkl")
    except DataError as error:
        assert str(error).startswith("task.root: 'list.pkl' is no pickle")
