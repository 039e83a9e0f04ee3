"""One comparison with published code, in a process of its own, which prints JSON.

    python benchmarks/_parity_run.py MODULE:FUNCTION FOLDER '["stand-in", ...]'

The process of `parity.py` never imports a user's folder. This one does, and only that one: the
folder comes first on `sys.path`, and nothing of it is copied. What the published code imports and
this environment lacks gets a stand-in of ours: a module of classes that do nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[str, Any, Any]
"""A quantity's name, the published code's value and ours."""


class Nothing:
    """Takes any arguments, has any attribute, decorates by doing nothing; made for imports only."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if given else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key: Any) -> Any:
        return Nothing()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the given modules and those below them before anything else, and notes which."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.used = frozenset(names), set[str]()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        parents = [name, *(name[:i] for i, letter in enumerate(name) if letter == ".")]
        if not self.names.intersection(parents):
            return None
        self.used.update(self.names.intersection(parents))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        def made(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Nothing,), {"register": staticmethod(Nothing())})

        module.__getattr__ = made  # type: ignore[method-assign]


def flat(values: Any) -> NDArray[np.float64]:
    """One vector of an array, a tensor, a number, or a sequence or mapping of them."""
    if isinstance(values, Mapping):
        values = [values[name] for name in sorted(values)]
    if isinstance(values, list | tuple):
        return np.concatenate([flat(value) for value in values])
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, np.float64).reshape(-1)


def difference(theirs: Any, own: Any) -> dict[str, float]:
    """Return the largest difference, also as a share of the published code's largest value.

    Raises:
        ValueError: If the two are not of one size, or a published value is not finite.
    """
    one, other = flat(theirs), flat(own)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} published values, {other.size} of ours; valid: as many")
    if not np.isfinite(one).all():
        raise ValueError("the published code gives a number that is not finite")
    largest = float(np.abs(one).max(initial=0.0))
    absolute = float(np.abs(one - other).max(initial=0.0))
    return {
        "values": one.size,
        "largest": largest,
        "absolute": absolute if np.isfinite(other).all() else float("inf"),
        "relative": absolute / largest if largest else float(absolute > 0),
    }


def main() -> None:
    adapter, folder, names = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    module, _, function = adapter.partition(":")
    compare: Callable[[Path], Iterator[Pair]] = getattr(importlib.import_module(module), function)
    stand_ins = StandIns(names)
    sys.meta_path.insert(0, stand_ins)
    sys.path.insert(0, str(folder))
    rows = []
    with contextlib.redirect_stdout(io.StringIO()):
        for quantity, theirs, own in compare(folder):
            rows.append({"quantity": quantity, **difference(theirs, own)})
    json.dump({"rows": rows, "stand_ins": sorted(stand_ins.used)}, sys.stdout)


if __name__ == "__main__":
    main()
