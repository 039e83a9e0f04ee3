"""Reads pickles of plain data without unpickling: no name in a file is looked up or called.

A pickle is a program for a stack machine that may import and call anything. Published data sets
come as pickles all the same (CIFAR's Python version, FedBN's lists), and need few instructions:
dicts, lists, tuples, bytes, texts, numbers and NumPy arrays. `pickletools.genops` takes a file
apart without running it; this machine knows the instructions that build such data, up to protocol
4, and refuses all others. It knows the names with which NumPy's own pickles rebuild an array; each
stands for a constructor here, which checks every part. An array is a view of the bytes that were
read.

The result cannot be much larger than the file: the machine counts instructions, and charges copies
out of the memo against the file's size. A list may still hold itself, and an array may lack its
content, so a reader takes what it expects by type and goes no deeper.
"""

from __future__ import annotations

import math
import pickletools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.errors import DataError

MOST_AXES: Final = 8
MOST_INSTRUCTIONS: Final = 1_000_000
"""CIFAR-100, with a file name and two labels for each of 50,000 images, has a fifth of it."""
_DTYPES: Final = re.compile(r"b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,5}|O8?")
_LAST_CHARACTER: Final = 0x10FFFF
_KEYS: Final = (str, bytes, int, float, bool, type(None))


class NotPlainError(ValueError):
    """A pickle holds other things than plain data; the message continues a sentence."""


@dataclass(frozen=True)
class _Name:
    """A name that a pickle may use."""

    text: str


@dataclass(eq=False)
class _Unfinished:
    """An array, or a type of a kind and size (`text`); `built` is there with its content."""

    text: object = None
    built: object = None


_ARRAY, _DTYPE, _RECONSTRUCT, _ENCODE, _BYTES = map(
    _Name, ("ndarray", "dtype", "_reconstruct", "encode", "bytes")
)
_NAMES: Final[Mapping[str, _Name]] = {
    # NumPy 1 and 2.
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy ndarray": _ARRAY,
    "numpy dtype": _DTYPE,
    # Protocols 0 to 2 write the bytes of Python 3, and empty bytes, in these ways.
    "_codecs encode": _ENCODE,
    "__builtin__ bytes": _BYTES,
    "builtins bytes": _BYTES,
}


def read_plain(data: bytes, name: str) -> object:
    """Return the content of a pickle of plain data, or refuse it; texts of Python 2 are Latin-1."""
    valid = "dicts, lists, tuples, numbers, texts, bytes and NumPy arrays of those"
    try:
        with warnings.catch_warnings():
            # Python warns of strange escapes in texts, which do no harm here.
            warnings.simplefilter("ignore")
            return _Machine(len(data)).run(pickletools.genops(data))
    except NotPlainError as error:
        what = f"is no pickle of plain data, and was not run: {error}"
        raise DataError.at(repr(name), what, valid) from error
    except (ValueError, OverflowError) as error:
        what = "is no pickle, or a damaged or incomplete one"
        raise DataError.at(repr(name), what, valid) from error


class _Machine:
    """The stack machine; one for each file."""

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        # Bytes are copied at most twice: out of a text of an old protocol, and by decoding.
        self._copies_left = 2 * size

    def run(self, instructions: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> object:
        """Return the only object on the stack at the end."""
        for count, (instruction, argument, _) in enumerate(instructions):
            if count >= MOST_INSTRUCTIONS:
                raise NotPlainError(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
            step = _STEPS.get(instruction.name)
            if step is None:
                raise NotPlainError(f"it has the instruction {instruction.name}")
            step(self, argument)
        if len(self._stack) != 1 or self._marks:
            raise NotPlainError("it leaves something over")
        return self._stack[0]

    def push(self, value: object) -> None:
        if type(value) is int and value.bit_length() > 64:
            raise NotPlainError("it holds a number of more than 64 bits")
        self._stack.append(value)

    def mark(self, _: object) -> None:
        self._marks.append(len(self._stack))

    def tuple_of(self, size: int) -> None:
        self.push(tuple([self._pop() for _ in range(size)][::-1]))

    def extend(self, items: list[Any]) -> None:
        if type(self._top()) is not list:
            raise NotPlainError("it changes something else than a list")
        self._top().extend(items)

    def set_items(self, items: list[Any]) -> None:
        if type(self._top()) is not dict:
            raise NotPlainError("it changes something else than a dict")
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or any(type(key) not in _KEYS for key in keys):
            raise NotPlainError("it holds a dict with a key that is neither text nor a number")
        self._top().update(zip(keys, values, strict=True))

    def new_dict(self, items: list[Any]) -> None:
        self.push({})
        self.set_items(items)

    def put(self, slot: int | None) -> None:
        self._memo[len(self._memo) if slot is None else slot] = self._top()

    def get(self, slot: int) -> None:
        if slot not in self._memo:
            raise NotPlainError("it asks for what it never had")
        value = self._memo[slot]
        is_built = isinstance(value, _Unfinished) and value.built is not None
        self.push(value.built if is_built else value)  # type: ignore[attr-defined]

    def find(self, name: str) -> None:
        if name not in _NAMES:
            raise NotPlainError(f"it names {name[:80]!r}")
        self.push(_NAMES[name])

    def find_on_stack(self, _: object) -> None:
        name, module = self._pop(), self._pop()
        self.find(f"{module} {name}" if isinstance(name, str) and isinstance(module, str) else "")

    def call(self, _: object) -> None:
        arguments, called = self._pop(), self._pop()
        match called, arguments:
            case _Name("_reconstruct"), (_Name("ndarray"), tuple(), bytes() | str()):
                self.push(_Unfinished())
            case _Name("dtype"), (str(text), bool() | 0, bool() | 1):
                self.push(_Unfinished(text))
            case _Name("encode"), (str(text), "latin1"):
                self._charge(len(text))
                self.push(text.encode("latin-1"))
            case _Name("bytes"), ():
                self.push(b"")
            case _:
                raise NotPlainError("it calls something")

    def build(self, _: object) -> None:
        state, unfinished = self._pop(), self._pop()
        match unfinished, state:
            case _Unfinished(text=str(text)), (3, str(order), None, None, None, *_):
                unfinished.built = _dtype_of(text, order)
            case (
                _Unfinished(text=None),
                (1, shape, np.dtype() as dtype, bool() | 0 | 1 as is_fortran, content),
            ):
                self._charge(len(content) if isinstance(content, str | bytes | list) else 0)
                unfinished.built = _array_of(dtype, shape, content, order="CF"[is_fortran])
            case _Unfinished(), _:
                raise NotPlainError("it holds an array of a structured or unknown type or version")
            case _:
                raise NotPlainError("it changes an object")
        self.push(unfinished.built)

    def marked(self) -> list[Any]:
        if not self._marks:
            raise NotPlainError("it takes what is not there")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _charge(self, amount: int) -> None:
        self._copies_left -= amount
        if self._copies_left < 0:
            raise NotPlainError("it copies more than it holds")

    def _top(self) -> Any:
        # Values below a mark are out of reach.
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise NotPlainError("it takes what is not there")
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        del self._stack[-1]
        return value


def _dtype_of(text: str, order: str) -> np.dtype[Any]:
    if _DTYPES.fullmatch(text) is None or order not in ("<", ">", "|", "="):
        raise NotPlainError(f"it holds an array of type {text[:20]!r}")
    return np.dtype(text if text.startswith("O") else order + text)


def _array_of(dtype: np.dtype[Any], shape: object, content: object, *, order: Any) -> NDArray[Any]:
    """Return the array, read-only, of its bytes (a text where Python 2 wrote them), or texts."""
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES:
        raise NotPlainError("it holds an array without a shape")
    flat: NDArray[Any]
    if dtype.kind == "O":
        if not isinstance(content, list) or any(type(item) is not str for item in content):
            raise NotPlainError("it holds an array of objects that are no texts")
        flat = np.empty(len(content), object)
        flat[:] = content
    else:
        if isinstance(content, str):
            content = content.encode("latin-1")
        if not isinstance(content, bytes) or len(content) % dtype.itemsize:
            raise NotPlainError(f"it holds an array whose content is not of type {dtype.str!r}")
        if dtype.kind == "U" and len(content):
            # NumPy would notice an impossible character only when the text is used.
            codes = np.frombuffer(content, f"{dtype.byteorder.replace('|', '=')}u4")
            if codes.max() > _LAST_CHARACTER:
                raise NotPlainError("it holds a text of impossible characters")
        flat = np.frombuffer(content, dtype)
    # An empty array with a billion rows takes no bytes, but as a list it is a billion lists.
    is_possible = all(type(size) is int and 0 < size <= flat.size for size in shape)
    if not is_possible or math.prod(shape) != flat.size:
        raise NotPlainError("it holds an array of a shape that does not fit its content")
    made = flat.reshape(shape, order=order)
    made.flags.writeable = False
    return made


def _on_marked(take: Callable[[_Machine, list[Any]], None]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: take(machine, machine.marked())


_STEPS: Final[Mapping[str, Callable[[_Machine, Any], None]]] = {
    # Markers of the file's own structure.
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(
        (
            *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
            *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT"),
            *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
        ),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": _Machine.mark,
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": _on_marked(lambda machine, items: machine.push(tuple(items))),
    "LIST": _on_marked(_Machine.push),
    "DICT": _on_marked(_Machine.new_dict),
    "APPEND": lambda machine, _: machine.extend([machine._pop()]),
    "APPENDS": _on_marked(_Machine.extend),
    "SETITEM": lambda machine, _: machine.set_items([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": _on_marked(_Machine.set_items),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": _Machine.find,
    "STACK_GLOBAL": _Machine.find_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
