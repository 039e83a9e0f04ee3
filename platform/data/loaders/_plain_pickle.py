"""Reads pickles of plain data without unpickling: no name in a file is looked up or called.

A pickle is a program for a stack machine that may import and call anything. Published data sets
come as pickles all the same (CIFAR's Python version, FedBN's lists), and need few instructions:
dicts, lists, tuples, bytes, texts, numbers and NumPy arrays. `pickletools.genops` takes a file
apart without running it; this machine knows the instructions that build such data and refuses all
others. It knows the names with which NumPy's own pickles rebuild an array; each stands for a
constructor here, which checks every part. An array is a view of the bytes that were read.

The result cannot be much larger than the file: the machine counts instructions, charges copies out
of the memo against the file's size, closes a container once another holds it, so that no container
holds itself, and bounds the depth.
"""

from __future__ import annotations

import math
import pickletools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from platform.errors import DataError

MOST_AXES: Final = 8
MOST_EMPTY: Final = 1_000_000
_DTYPES: Final = re.compile(r"b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,5}|O8?")
_LAST_CHARACTER: Final = 0x10FFFF


class NotPlainError(ValueError):
    """A pickle holds other things than plain data; the message continues a sentence."""


def dtype_of(text: object, state: object) -> np.dtype[Any]:
    """Return a type of plain values by a text such as `u1`, and a state with the byte order."""
    match state:
        case (3, "<" | ">" | "|" | "=" as order, None, None, None, int(), int(), int()):
            pass
        case _:
            raise NotPlainError("it holds an array of a structured or unknown type")
    if not isinstance(text, str) or _DTYPES.fullmatch(text) is None:
        raise NotPlainError(f"it holds an array of type {str(text)[:20]!r}")
    return np.dtype(text if text.startswith("O") else order + text)


def array_of(dtype: np.dtype[Any], shape: object, content: object, *, order: str) -> NDArray[Any]:
    """Return the array, read-only, of its bytes (a text where Python 2 wrote them), or objects."""
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES:
        raise NotPlainError("it holds an array without a shape")
    for size in shape:
        if type(size) is not int or not 0 <= size < 2**40:
            raise NotPlainError("it holds an array of an impossible shape")
    # An empty array with a billion rows takes no bytes, but as a list it is a billion lists.
    if not math.prod(shape) and math.prod(max(size, 1) for size in shape) > MOST_EMPTY:
        raise NotPlainError("it holds an empty array of an impossible shape")
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
    if math.prod(shape) != flat.size:
        raise NotPlainError(f"it holds an array of shape {shape} with {flat.size} elements")
    made = flat.reshape(shape, order="F" if order == "F" else "C")
    made.flags.writeable = False
    return made


MOST_INSTRUCTIONS: Final = 1_000_000
"""CIFAR-100, with a file name and two labels for each of 50,000 images, has a fifth of it."""
MOST_DEPTH: Final = 32
MOST_BITS: Final = 64

Kept = TypeVar("Kept", bound="list[object] | dict[Any, object] | tuple[object, ...]")


class _Name(Enum):
    """The names that a pickle may use."""

    RECONSTRUCT = auto()
    FROM_BUFFER = auto()
    ARRAY = auto()
    DTYPE = auto()
    ENCODE = auto()
    BYTES = auto()


_NAMES: Final[Mapping[str, _Name]] = {
    # NumPy 1 and 2.
    "numpy.core.multiarray _reconstruct": _Name.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _Name.RECONSTRUCT,
    "numpy.core.numeric _frombuffer": _Name.FROM_BUFFER,
    "numpy._core.numeric _frombuffer": _Name.FROM_BUFFER,
    "numpy ndarray": _Name.ARRAY,
    "numpy dtype": _Name.DTYPE,
    # Protocols 0 to 2 write the bytes of Python 3, and empty bytes, in these ways.
    "_codecs encode": _Name.ENCODE,
    "__builtin__ bytes": _Name.BYTES,
    "builtins bytes": _Name.BYTES,
}


@dataclass(eq=False)
class _Unfinished:
    """An array or a type without its content.

    Attributes:
        name: `ARRAY` or `DTYPE`.
        text: Kind and size of a type.
        slots: Its places in the memo.
    """

    name: _Name
    text: object = None
    slots: list[int] = field(default_factory=list)


_NO_DATA: Final = (_Name, _Unfinished, np.dtype)
_CONTAINERS: Final = (list, dict, tuple)
_KEYS: Final = (str, bytes, int, float, bool, type(None))


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
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        # Bytes are copied at most twice: out of a text of an old protocol, and by decoding.
        self._copies_left = 2 * size
        # By identity; the container is kept, so that no other object gets its identity.
        self._depths: dict[int, tuple[int, object]] = {}
        self._closed: set[int] = set()

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
        self._hold(self._stack)
        return self._stack[0]

    def push(self, value: object) -> None:
        self._stack.append(value)

    def push_number(self, value: int) -> None:
        if value.bit_length() > MOST_BITS:
            raise NotPlainError(f"it holds a number of more than {MOST_BITS} bits")
        self._stack.append(value)

    def mark(self, _: object) -> None:
        self._marks.append(len(self._stack))

    def empty_list(self, _: object) -> None:
        self._stack.append(self._registered([], 1))

    def empty_dict(self, _: object) -> None:
        self._stack.append(self._registered({}, 1))

    def marked_list(self, _: object) -> None:
        items = self._marked()
        self._stack.append(self._registered(items, self._hold(items) + 1))

    def marked_dict(self, _: object) -> None:
        items = self._marked()
        self.empty_dict(None)
        self._set(items)

    def marked_tuple(self, _: object) -> None:
        self._tuple(self._marked())

    def short_tuple(self, size: int) -> None:
        self._tuple([self._pop() for _ in range(size)][::-1])

    def append(self, _: object) -> None:
        self._extend([self._pop()])

    def appends(self, _: object) -> None:
        self._extend(self._marked())

    def set_item(self, _: object) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def set_items(self, _: object) -> None:
        self._set(self._marked())

    def put(self, slot: int) -> None:
        value = self._top()
        self._memo[slot] = value
        if isinstance(value, _Unfinished):
            value.slots.append(slot)

    def memoize(self, _: object) -> None:
        self.put(len(self._memo))

    def get(self, slot: int) -> None:
        if slot not in self._memo:
            raise NotPlainError("it asks for what it never had")
        self._stack.append(self._memo[slot])

    def find(self, name: str) -> None:
        if name not in _NAMES:
            raise NotPlainError(f"it names {name[:80]!r}")
        self._stack.append(_NAMES[name])

    def find_on_stack(self, _: object) -> None:
        name, module = self._pop(), self._pop()
        self.find(f"{module} {name}" if isinstance(name, str) and isinstance(module, str) else "")

    def call(self, _: object) -> None:
        arguments, called = self._pop(), self._pop()
        match called, arguments:
            case _Name.RECONSTRUCT, (_Name.ARRAY, tuple(), bytes() | str()):
                self._stack.append(_Unfinished(_Name.ARRAY))
            case _Name.DTYPE, (text, bool() | 0, bool() | 1):
                self._stack.append(_Unfinished(_Name.DTYPE, text))
            case _Name.ENCODE, (str(text), "latin1"):
                self._charge(len(text))
                self._stack.append(text.encode("latin-1"))
            case _Name.BYTES, ():
                self._stack.append(b"")
            case _Name.FROM_BUFFER, (
                bytes() as content,
                np.dtype() as dtype,
                shape,
                "C" | "F" as o,
            ):
                self._charge(len(content))
                self._stack.append(array_of(dtype, shape, content, order=o))
            case _:
                raise NotPlainError("it calls something")

    def build(self, _: object) -> None:
        state, unfinished = self._pop(), self._pop()
        if not isinstance(unfinished, _Unfinished):
            raise NotPlainError("it changes an object")
        built: object
        match state:
            case _ if unfinished.name is _Name.DTYPE:
                built = dtype_of(unfinished.text, state)
            case (
                1,
                shape,
                np.dtype() as dtype,
                bool() | 0 | 1 as is_fortran,
                bytes() | str() | list() as content,
            ):
                self._charge(len(content))
                built = array_of(dtype, shape, content, order="F" if is_fortran else "C")
            case _:
                raise NotPlainError("it holds an array of an unknown version")
        for slot in unfinished.slots:
            self._memo[slot] = built
        self._stack.append(built)

    def _charge(self, amount: int) -> None:
        self._copies_left -= amount
        if self._copies_left < 0:
            raise NotPlainError("it copies more than it holds")

    def _top(self) -> object:
        # Values below a mark are out of reach.
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise NotPlainError("it takes what is not there")
        return self._stack[-1]

    def _pop(self) -> object:
        value = self._top()
        del self._stack[-1]
        return value

    def _marked(self) -> list[object]:
        if not self._marks:
            raise NotPlainError("it takes what is not there")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _registered(self, container: Kept, depth: int) -> Kept:
        if depth > MOST_DEPTH:
            raise NotPlainError(f"its parts lie more than {MOST_DEPTH} deep in each other")
        self._depths[id(container)] = (depth, container)
        return container

    def _hold(self, items: Sequence[object]) -> int:
        """Close containers that another one holds now, and return the greatest depth."""
        deepest = 0
        for item in items:
            if isinstance(item, _CONTAINERS):
                # A tuple of names is an argument of a call, and has no depth.
                if id(item) not in self._depths:
                    raise NotPlainError("it keeps a name as if it were data")
                self._closed.add(id(item))
                deepest = max(deepest, self._depths[id(item)][0])
            elif isinstance(item, _NO_DATA):
                raise NotPlainError("it keeps a name as if it were data")
        return deepest

    def _tuple(self, items: list[object]) -> None:
        made = tuple(items)
        if not any(isinstance(item, _NO_DATA) for item in items):
            self._registered(made, self._hold(items) + 1)
        self._stack.append(made)

    def _open(self, kind: type[Kept]) -> Kept:
        container = self._top()
        if not isinstance(container, kind) or id(container) in self._closed:
            raise NotPlainError("it changes what is finished")
        return container

    def _extend(self, items: list[object]) -> None:
        depth = self._hold(items) + 1
        container: list[object] = self._open(list)
        container.extend(items)
        self._registered(container, max(depth, self._depths[id(container)][0]))

    def _set(self, items: list[object]) -> None:
        depth = self._hold(items) + 1
        container: dict[Any, object] = self._open(dict)
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or any(type(key) not in _KEYS for key in keys):
            raise NotPlainError("it holds a dict with a key that is neither text nor a number")
        container.update(zip(keys, values, strict=True))
        self._registered(container, max(depth, self._depths[id(container)][0]))


def _nothing(machine: _Machine, argument: object) -> None:
    """Take a marker of the file's own structure."""


_Step = Callable[[_Machine, Any], None]
_STEPS: Final[Mapping[str, _Step]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _nothing),
    **dict.fromkeys(
        (
            *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
            *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT"),
        ),
        _Machine.push,
    ),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _Machine.push_number
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "BYTEARRAY8": lambda machine, content: machine.push(bytes(content)),
    "MARK": _Machine.mark,
    "EMPTY_LIST": _Machine.empty_list,
    "EMPTY_DICT": _Machine.empty_dict,
    "EMPTY_TUPLE": lambda machine, _: machine.short_tuple(0),
    "TUPLE1": lambda machine, _: machine.short_tuple(1),
    "TUPLE2": lambda machine, _: machine.short_tuple(2),
    "TUPLE3": lambda machine, _: machine.short_tuple(3),
    "TUPLE": _Machine.marked_tuple,
    "LIST": _Machine.marked_list,
    "DICT": _Machine.marked_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    "MEMOIZE": _Machine.memoize,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": _Machine.find,
    "STACK_GLOBAL": _Machine.find_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
