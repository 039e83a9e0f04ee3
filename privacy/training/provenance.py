"""Under `dp_sgd`, checks that arrays come from private training, and seals the data.

The guarantee of `dp_sgd` covers what noised steps returned and whatever is computed from that
alone. Two checks keep a method to it, of different strength:

- `seal` closes the client's data, so that only the trainer can open it. What a method cannot read
  cannot reach a release by another way. This *prevents*.
- `require_released` compares what a method hands back with what the trainer returned. It *notices*
  arrays of another origin, also where data was left open. It cannot notice a choice between
  permitted arrays, or a starting value made from data and trained at learning rate zero; `seal`
  takes the ground from under both.

Neither is a sandbox: code that goes looking for private attributes finds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from privacy.errors import SensitivityViolation

Arrays = Mapping[str, NDArray[Any]]
Key = tuple[str, tuple[int, ...], bytes]


class ReleasedArrays:
    """Copies of what private fits returned; a method may change its own arrays in place.

    Only trained arrays are kept. A constant that went through `fit` untouched is not a release.

    Attributes:
        steps: Noised optimiser steps taken so far; each is one composition of the ledger.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._arrays: dict[Key, NDArray[Any]] = {}

    def add(self, arrays: Iterable[NDArray[Any]], *, steps: int) -> None:
        """Record one fit.

        Args:
            arrays: What it trained.
            steps: How many noised steps it took.
        """
        self._arrays.update((array_key(array), np.array(array)) for array in arrays)
        self.steps += steps

    def clear(self) -> None:
        """Forget all, for the next round."""
        self.steps = 0
        self._arrays.clear()

    def __contains__(self, array: NDArray[Any]) -> bool:
        return array_key(array) in self._arrays

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self._arrays.values())

    def __len__(self) -> int:
        return len(self._arrays)


def require_released(
    arrays: Arrays, record: ReleasedArrays, constants: Iterable[Arrays], *, part: str = "update"
) -> None:
    """Raise unless every array was returned by private training or was known before it.

    Accepted, bit for bit: an array of the record; a constant; either of them minus a constant, in
    the arrays' own dtype (an update is trained minus broadcast). Names do not matter. Other
    functions of accepted arrays, such as a mean, would be just as private and are refused all the
    same, because from its value nobody can tell such an array from one that was made of data.

    Args:
        arrays: What would be sent or kept.
        record: What fits of this round returned.
        constants: What the client had before it touched data: broadcast, experts, and its
            personal state if that passed this check when it was kept.
        part: What `arrays` is, for the message.

    Raises:
        SensitivityViolation: Naming the first array of another origin, never its values.
    """
    known = [array for group in constants for array in group.values()]
    direct = {array_key(array) for array in known}
    for name, array in arrays.items():
        key = array_key(array)
        if array in record or key in direct or _is_difference(key, [*record, *known], known):
            continue
        raise SensitivityViolation(
            f"{part} {name!r} was neither returned by the trainer nor known before; under dp_sgd "
            "valid are arrays that the trainer returned, constants, and one minus a constant"
        )


def array_key(array: NDArray[Any]) -> Key:
    """Return dtype, shape and SHA-256 of the bytes: equal for equal arrays only."""
    value = np.ascontiguousarray(array)
    return value.dtype.str, np.shape(array), hashlib.sha256(value.tobytes()).digest()


def _is_difference(
    key: Key, minuends: Iterable[NDArray[Any]], constants: list[NDArray[Any]]
) -> bool:
    dtype, shape, _ = key
    fitting = [c for c in constants if (c.dtype.str, c.shape) == (dtype, shape)]
    return any(
        array_key(minuend - constant) == key
        for minuend in minuends
        if (minuend.dtype.str, minuend.shape) == (dtype, shape) and minuend.dtype.kind != "b"
        for constant in fitting
    )


class SealedArray:
    """An array of a client's data that only the trainer can read."""

    __slots__ = ("__array", "__name")

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.__array = array
        self.__name = name

    def __repr__(self) -> str:
        return f"SealedArray({self.__name!r})"

    def __getattr__(self, attribute: str) -> NoReturn:
        self._refuse()

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __getitem__(self, index: object) -> NoReturn:
        self._refuse()

    def __eq__(self, other: object) -> NoReturn:
        self._refuse()

    __hash__ = None  # type: ignore[assignment]  # a hash would tell equal data

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SensitivityViolation(
            f"example array {self.__name!r} was read outside the trainer; under dp_sgd a method "
            "reaches its data by trainer.fit only, and its size not at all"
        )

    def _open(self) -> NDArray[Any]:
        return self.__array


def seal(examples: Arrays) -> Arrays:
    """Close a client's data for everybody but `LocalTrainer.fit` under dp_sgd.

    Args:
        examples: Arrays by name.

    Returns:
        The same names; reading a value, its shape or its length raises `SensitivityViolation`.
    """
    closed = {name: SealedArray(name, array) for name, array in examples.items()}
    return cast("Arrays", closed)


def opened(examples: Arrays, *, is_private: bool) -> Arrays:
    """Return the arrays behind `seal`, for the trainer; arrays that are not sealed pass unchanged.

    `SensitivityViolation` if sealed data would be used without noise.
    """
    values: dict[str, Any] = dict(examples)
    for name, value in values.items():
        if isinstance(value, SealedArray):
            if not is_private:
                raise SensitivityViolation(
                    f"example array {name!r} is sealed; valid is training under dp_sgd only"
                )
            values[name] = value._open()
    return values
