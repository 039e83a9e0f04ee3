"""What must hold of every data set, whoever read it: checked once, before anything is dealt out."""

from __future__ import annotations

from platform.data.dataset import Dataset, Split
from platform.data.images import Indices
from platform.errors import DataError


def require_sound(dataset: Dataset) -> None:
    """Check a data set's labels, domains and sizes.

    Raises:
        DataError: If a side has no example, an example has no row in one of its parts, or a label
            or domain is none of the data set's.
    """
    for split, side in ((dataset.train, "training"), (dataset.test, "test")):
        if not split.num_examples:
            raise DataError(
                f"task.root: {dataset.name} has no {side} example; valid: at least one of each side"
            )
        _require_rows(dataset.name, split, side)
        _require_below(dataset.name, split.labels, dataset.classes, f"label of a {side} example")
        _require_below(dataset.name, split.domains, dataset.domains, f"domain of a {side} example")


def require_every_class(dataset: Dataset, labels: Indices, classes: tuple[str, ...]) -> None:
    """Check that there is something to deal out of each class.

    Args:
        dataset: For its name.
        labels: Of the training examples that are dealt out, (n,).
        classes: Those that are dealt out.

    Raises:
        DataError: If a class has none.
    """
    held = set(labels.tolist())
    absent = [repr(name) for label, name in enumerate(classes) if label not in held]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise DataError(
            f"task.root: {dataset.name} has no training example of {', '.join(absent[:3])}{more}; "
            "valid: at least one of each class in the domains that are dealt out"
        )


def _require_rows(name: str, split: Split, side: str) -> None:
    examples = len(split.images) if split.texts is None else len(split.texts)
    for what, count in (("domains", len(split.domains)), ("examples", examples)):
        if count != split.num_examples:
            raise DataError(
                f"task.root: {name} has {count} {side} {what} and {split.num_examples} labels; "
                "valid: as many of each"
            )


def _require_below(name: str, values: Indices, names: tuple[str, ...], what: str) -> None:
    for bad in (int(values.min()), int(values.max())):
        if not 0 <= bad < len(names):
            raise DataError(
                f"task.root: {name} has {bad} for the {what}; valid: 0 to {len(names) - 1}"
            )
