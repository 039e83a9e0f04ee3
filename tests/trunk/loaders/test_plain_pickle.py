"""Pickles as data: the same as `pickle` would make of plain ones, and nothing of all others.

`pickle` writes what is read here, and its own reader is the oracle; no test unpickles a file that
was tampered with.
"""

from __future__ import annotations

import builtins
import os
import pickle
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.data.loaders._plain_pickle import read_plain
from platform.errors import DataError
from tests.drawn.arrays import as_python_2

PROTOCOLS = range(6)
ARRAYS = [
    np.arange(6, dtype="u1").reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype="<i8").reshape(2, 3)),
    np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2],
    np.array([0.5, -2.0, np.inf], "f4"),
    np.array([[1.5]], ">f8"),
    np.array([True, False]),
    np.array(["a", "büro", "\U0001f600"]),
    np.array(["ab", "c"], ">U2"),
    np.array([b"x", b"\xff\x00y"]),
    np.array(["path/one.jpg", "two"], object),
    np.array([["p", "q"], ["r", "s"], ["t", "u"]], object),
    np.array(["p"] * 4, object).reshape(2, 2, order="F"),
    np.zeros((0, 3), "u1"),
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
    assert text.startswith("task.root: 'list.pkl' is no pickle")
    assert text.endswith("texts, bytes and NumPy arrays of those")
    assert len(text) < 350
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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=plain)
@settings(max_examples=20, deadline=None)
def test_plain_values_are_what_was_pickled(protocol: int, value: object):
    found = read_plain(pickle.dumps(value, protocol), "list.pkl")
    assert repr(found) == repr(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}-{a.shape}")
def test_arrays_are_what_was_pickled(protocol: int, array: np.ndarray):
    (found,) = read_plain(pickle.dumps((array,), protocol), "list.pkl")
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_names_its_modules_otherwise(protocol: int):
    new = pickle.dumps([ARRAYS[0], ARRAYS[6]], protocol)
    old = new
    for module in (b"multiarray", b"numeric"):
        long, short = b"numpy._core." + module, b"numpy.core." + module
        sized = bytes([len(long)]) + long
        # From protocol 4 on the lengths of the name and of the frame come before it.
        if sized in old and protocol >= 4:
            old = old.replace(b"\x8c" + sized, b"\x8c" + bytes([len(short)]) + short)
            (size,) = struct.unpack("<Q", old[3:11])
            old = old[:3] + struct.pack("<Q", size - 1) + old[11:]
        else:
            old = old.replace(long, short)
    assert b"_core" not in old
    for found, array in zip(read_plain(old, "list.pkl"), (ARRAYS[0], ARRAYS[6]), strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_batch_of_python_2_is_read_as_latin_1():
    pixels = np.arange(256, dtype="u1").reshape(2, 128)
    batch = {"data": pixels, "labels": [3, 0], "names": ["\xe4.png", "b.png"]}
    data = as_python_2(batch)
    found = read_plain(data, "data_batch_1")
    oracle = pickle.loads(data, encoding="latin-1")  # noqa: S301 -- made here, a line above
    np.testing.assert_array_equal(found.pop("data"), pixels)
    np.testing.assert_array_equal(oracle.pop("data"), pixels)
    assert found == oracle == {"labels": [3, 0], "names": ["\xe4.png", "b.png"]}


def test_shared_parts_stay_shared_and_do_not_grow():
    part = [1, 2]
    found = read_plain(pickle.dumps([part, part, (part,)]), "list.pkl")
    assert found == [[1, 2], [1, 2], ([1, 2],)]
    assert found[0] is found[1] is found[2][0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", [ARRAYS[0], ARRAYS[6], ARRAYS[9]], ids=["u1", "U", "O"])
def test_shared_arrays_and_types_are_finished_in_all_places(protocol: int, array: np.ndarray):
    found = read_plain(pickle.dumps([array, array, array.copy()], protocol), "list.pkl")
    assert found[0] is found[1]
    for one in found:
        np.testing.assert_array_equal(one, array)


def test_a_batch_of_cifar_takes_a_moment():
    batch = {
        "data": np.zeros((10_000, 3072), "u1"),
        "labels": [1] * 10_000,
        "filenames": [f"{i}.png" for i in range(10_000)],
    }
    data = pickle.dumps(batch, 4)
    start = time.perf_counter()
    assert read_plain(data, "data_batch_1")["data"].shape == (10_000, 3072)
    # It takes 20 ms on one core; a busy machine may take a while.
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("call", [os.system, builtins.eval, builtins.exec, os.mkdir])
def test_calls_are_refused_and_not_made(protocol: int, call, untouched: Path):
    arguments = {
        os.system: f"touch {untouched}",
        builtins.eval: f"open({str(untouched)!r}, 'w')",
        builtins.exec: f"open({str(untouched)!r}, 'w')",
        os.mkdir: str(untouched),
    }
    data = pickle.dumps({"data": [Trap(call, arguments[call])]}, protocol)
    assert "it names '" in refused(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cos\nsystem\n(S'touch x'\ntR.", "it names 'os system'"),
        (b"cbuiltins\neval\n.", "it names 'builtins eval'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it names 'os system'"),
        (b"\x80\x04K\x01K\x02\x93.", "it names ''"),
        (b"(S'touch x'\nios\nsystem\n.", "it has the instruction INST"),
        (b"(cos\nsystem\nS'x'\no.", "it names 'os system'"),
        (b"(K\x01o.", "it has the instruction OBJ"),
        (b"K\x01K\x02\x81.", "it has the instruction NEWOBJ"),
        (b"K\x01K\x02K\x03\x92.", "it has the instruction NEWOBJ_EX"),
        (b"Pspam\n.", "it has the instruction PERSID"),
        (b"K\x01Q.", "it has the instruction BINPERSID"),
        (b"\x82\x01.", "it has the instruction EXT1"),
        (b"\x8f.", "it has the instruction EMPTY_SET"),
        (b"K\x012.", "it has the instruction DUP"),
        (b"K\x010.", "it has the instruction POP"),
        (b"\x97.", "it has the instruction NEXT_BUFFER"),
        (b"]}b.", "it changes an object"),
        (b"K\x01)R.", "it calls something"),
        (b"cnumpy\nndarray\n)R.", "it calls something"),
        (b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "it calls something"),
        (b"c__builtin__\nbytes\n(J\xff\xff\xff\x7ftR.", "it calls something"),
        (b"cnumpy\nndarray\n.", "it keeps a name as if it were data"),
        (b"](cnumpy\nndarray\ne.", "it keeps a name as if it were data"),
        (b"}S'a'\ncnumpy\ndtype\ns.", "it keeps a name as if it were data"),
        (b"cnumpy\nndarray\n\x85\x85.", "it keeps a name as if it were data"),
        (b"].]", None),
        (b"]].", "it leaves something over"),
        (b"(].", "it leaves something over"),
        (b".", "it leaves something over"),
        (b"a.", "it takes what is not there"),
        (b"](a.", "it takes what is not there"),
        (b"e.", "it takes what is not there"),
        (b"h\x05.", "it asks for what it never had"),
        (b"K\x01K\x02a.", "it changes what is finished"),
        (b"]q\x00h\x00a.", "it changes what is finished"),
        (b"]q\x00]q\x01h\x00ah\x00h\x01a0.", "it changes what is finished"),
        (b"}]K\x01s.", "a dict with a key that is neither text"),
        (b"}(K\x01K\x02K\x03u.", "a dict with a key that is neither text"),
        (b"\x8a\x09" + b"\xff" * 8 + b"\x7f.", "a number of more than 64 bits"),
        (b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".", "more than 64 bits"),
        (b"L" + b"9" * 100 + b"L\n.", "more than 64 bits"),
    ],
)
def test_what_is_more_than_plain_is_refused(data: bytes, reason: str | None):
    if reason is None:
        # What follows the end is not looked at, as `pickle` does not.
        assert read_plain(data, "list.pkl") == []
    else:
        assert reason in refused(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain text",
        b"L" + b"9" * 5000 + b"L\n.",
        b"\x8b\xff\xff\xff\x7f\x01.",
        b"\x8e" + b"\xff" * 8 + b"x.",
        b"B\xff\xff\xff\xff.",
        b"X\x02\x00\x00\x00\xff\xff.",
        b"Sunquoted\n.",
        pickle.dumps({"data": np.arange(99)}, 4)[:-20],
        pickle.dumps(list(range(99)), 2)[:-1],
    ],
)
def test_damaged_files_are_refused(data: bytes):
    assert "damaged or incomplete" in refused(data)


def test_deep_nesting_is_refused_however_it_is_written():
    sentence = "more than 32 deep"
    for opening, closing in ((b"]", b"a"), (b"(", b"l"), (b"", b"\x85"), (b"}K\x00", b"s")):
        for depth, core in ((30, b"]"), (10_000, b"]")):
            data = opening * depth + core + closing * depth + b"."
            if depth == 30:
                read_plain(data, "list.pkl")
            else:
                assert sentence in refused(data)
    # One at a time, through the memo: each list holds the one before.
    steps = b"".join(b"]q" + bytes([i + 1]) + b"h" + bytes([i]) + b"a0" for i in range(200))
    assert "POP" in refused(b"]q\x000" + steps + b"h\xc8.")
    pairs = b"](" + b"]q\x00" + b"".join(b"]q\x01h\x00aq\x00" for _ in range(200)) + b"e."
    assert sentence in refused(pairs)


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
    assert "it copies more than it holds" in refused(b"(" + text + again * 9 + b"t.")


def test_too_many_instructions_are_refused():
    assert "more than 1,000,000 instructions" in refused(b"](" + b"N" * 1_000_000 + b"e.")


def array_pickle(shape: bytes, dtype: bytes, content: bytes, state: bytes = b"N") -> bytes:
    kind = b"cnumpy\ndtype\nU" + bytes([len(dtype)]) + dtype + b"K\x00K\x01\x87R"
    kind += b"(K\x03U\x01<" + state * 3 + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return start + b"(K\x01" + shape + kind + b"\x89" + content + b"tb."


def test_a_hand_made_array():
    data = array_pickle(b"K\x02\x85", b"u2", b"U\x04\x01\x00\x02\x00")
    assert read_plain(data, "list.pkl").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (array_pickle(b"K\x03\x85", b"u2", b"U\x04\x01\x00\x02\x00"), "shape (3,) with 2"),
        (array_pickle(b"K\x01\x85", b"u2", b"U\x03\x01\x00\x02"), "content is not of type"),
        (array_pickle(b"J\xff\xff\xff\xff\x85", b"u1", b"U\x00"), "impossible shape"),
        (array_pickle(b"K\x05", b"u1", b"U\x00"), "without a shape"),
        (array_pickle(b"(" + b"K\x01" * 9 + b"t", b"u1", b"U\x01x"), "without a shape"),
        (array_pickle(b"K\x00J\xff\xff\xff\x7f\x86", b"u1", b"U\x00"), "empty array of an impos"),
        (array_pickle(b"K\x01\x85", b"O8", b"](K\x01e"), "objects that are no texts"),
        (array_pickle(b"K\x01\x85", b"O8", b"U\x08aaaaaaaa"), "objects that are no texts"),
        (array_pickle(b"K\x01\x85", b"U1", b"U\x04\xff\xff\xff\xff"), "impossible characters"),
        (array_pickle(b"K\x01\x85", b"V8", b"U\x08aaaaaaaa"), "array of type 'V8'"),
        (array_pickle(b"K\x01\x85", b"M8", b"U\x08aaaaaaaa"), "array of type 'M8'"),
        (array_pickle(b"K\x01\x85", b"U0", b"U\x00"), "array of type 'U0'"),
        (array_pickle(b"K\x01\x85", b"u1,u1", b"U\x02aa"), "array of type 'u1,u1'"),
        (array_pickle(b"K\x01\x85", b"u1", b"U\x01a", b"K\x01"), "structured or unknown type"),
        (array_pickle(b"K\x01\x85", b"u1", b"K\x01"), "unknown version"),
        (pickle.dumps(np.zeros(2, [("a", "u1")])), "keeps a name as if it were data"),
        (pickle.dumps(np.zeros(2, "M8[s]")), "structured or unknown type"),
        (pickle.dumps(np.array([{}, []], object)), "objects that are no texts"),
        (pickle.dumps(np.array([Trap(os.getpid)], object)), "it names 'posix getpid'"),
        (pickle.dumps(np.float64(1)), "it names 'numpy._core.multiarray scalar'"),
        (pickle.dumps(np.dtype("u1")), "it keeps a name as if it were data"),
        (pickle.dumps(Path("x"), 2), "it names 'pathlib"),
        (pickle.dumps(2 + 1j), "it names 'builtins complex'"),
        (pickle.dumps(bytearray(b"x"), 2), "it names '__builtin__ bytearray'"),
        # Named, and never given its content.
        (pickle.dumps(ARRAYS[0], 2).split(b"(K\x01")[0] + b".", "keeps a name"),
    ],
)
def test_arrays_that_are_none_are_refused(data: bytes, reason: str):
    assert reason in refused(data)


@given(data=st.data())
def test_damage_anywhere_gives_plain_data_or_one_sentence(data: st.DataObject):
    value = {"data": ARRAYS[0], "labels": [1, 2], "names": ARRAYS[9], "more": (b"x", None, "y")}
    whole = bytearray(pickle.dumps(value, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_plain(bytes(whole[: data.draw(st.integers(0, len(whole)))]), "list.pkl")
    except DataError as error:
        assert str(error).startswith("task.root: 'list.pkl' is no pickle")
