"""The examples of a simulation: training examples of every client, and the sets for measuring.

Epsilon is a claim about the messages of a client, and relies on the path from the folder to them.
So an audit begins by comparing the records of two neighbouring folders: one client's folder must
change no other client's records, and one record must change the side of no other record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples, Method
from platform.config import RunConfig
from platform.data.checking import damaged, require_one_label
from platform.data.dataset import ImageFiles, Indices, Rows, Split, content_digests
from platform.data.loading import TaskData, public_rows
from platform.data.preparing import CHUNK, Encoders, prepared_arrays
from platform.errors import DataError
from platform.experiment.evaluation import EvaluationPlan, NewClient
from platform.parties.identities import client_names
from platform.parties.scoring import EvaluationSet
from platform.wire.transport import ClientId

BatchMaking = Callable[[NDArray[np.uint8] | Sequence[str]], Arrays]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The part of a run that no privacy setting changes.

    Attributes:
        classes: The classes that are dealt out, in label order.
        train: Each client's training examples.
        evaluation: The sets for measuring clients' models.
        batch_of: Makes the method's arrays of images (n, H, W, 3) or texts.
    """

    method: Method
    classes: tuple[str, ...]
    train: Mapping[ClientId, Examples]
    evaluation: EvaluationPlan
    device: str
    batch_of: BatchMaking


def deal_examples(
    data: TaskData,
    method: Method,
    encoders: Encoders,
    protocol: str,
    *,
    measuring: tuple[int, np.random.Generator] | None = None,
) -> tuple[dict[ClientId, Examples], EvaluationPlan]:
    """Return training examples of every client, and the sets for measuring their models.

    `measuring` is the number of clients that are measured, and draws them; None measures all. Two
    equal examples with two labels are refused.
    """
    dataset, names = data.dataset, client_names(len(data.clients))
    new, everybody = client_names(len(data.new_clients), "new"), [*data.clients, *data.new_clients]
    # Only images of clients are read: a few-shot run needs few images of a large data set.
    learnt = [*(c.train for c in everybody), *(c.validation for c in data.clients)]
    tested = [c.test for c in everybody]
    tested += [*(common.rows for common in data.common.values()), *data.all_tests.values()]
    learnt_rows, tested_rows = (np.unique(np.concatenate(rows)) for rows in (learnt, tested))
    try:
        remarks = require_one_label(dataset, learnt_rows, tested_rows)
        held = _Held.of(method, dataset.train, learnt_rows, encoders)
        shown = _Held.of(method, dataset.test, tested_rows, encoders)
    except DataError as error:
        # The user sees every image that cannot be opened, and not the first alone.
        unread = [*damaged(dataset.train, learnt_rows), *damaged(dataset.test, tested_rows)]
        raise DataError(*error.faults, *unread) from error
    # A method learns domains in training only.
    validating = _Held(held.rows, dict(held.arrays))
    if "domains" in method.needs:
        # Counted among the domains that are dealt out; a held-out domain has no number.
        numbers = np.searchsorted(data.domains, dataset.train.domains[held.rows])
        held.arrays["domains"] = numbers.astype(np.int64)
    train = {n: held.select(c.train) for n, c in zip(names, data.clients, strict=True)}
    own = {n: shown.select(c.test) for n, c in zip(names, data.clients, strict=True)}
    chosen, said = _measured(data, measuring)
    common = {}
    for name, rows in data.common.items():
        arrays = dict(shown.select(rows.rows).arrays)
        arrays["labels"] = arrays["labels"] - rows.first_label
        common[name] = EvaluationSet(Examples(arrays), rows.classes)
    # Under `all_classes` all test examples, as each client sees them.
    sets = {s: EvaluationSet(shown.select(r), data.classes) for s, r in data.all_tests.items()}
    senses = data.senses or ("",) * len(everybody)
    pairs = zip((*names, *new), senses, strict=True)
    everything = {name: sets[sense] for name, sense in pairs} if sets else {}
    validation = {}
    if any(len(client.validation) for client in data.clients):
        held_back = [validating.select(client.validation) for client in data.clients]
        validation = dict(zip(names, held_back, strict=True))
    plan = EvaluationPlan(
        protocol=protocol,
        classes=data.classes,
        own=own,
        measured=tuple(names[position] for position in chosen),
        remarks=(*remarks, *said),
        everything=everything,
        common=common,
        validation=validation,
        new_clients={
            name: NewClient(held.select(client.train), shown.select(client.test))
            for name, client in zip(new, data.new_clients, strict=True)
        },
    )
    return train, plan


def own_examples(
    data: TaskData, method: Method, cached: Encoders, plain: Encoders
) -> tuple[Examples, Examples, Examples, tuple[str, ...]]:
    """Return a client's own examples for training, test and validation, and what is left out.

    An image that cannot be read or encoded is left out alone, and changes nothing for the others. A
    cache that cannot be written only costs time. A method that fails even with a black image is
    refused.
    """
    (rows,), dataset, left_out = data.clients, data.dataset, list[str]()
    zero, one = np.zeros(1, np.int64), np.arange(1)
    # A black image shows the names, types and shapes of the arrays.
    black = Split(np.zeros((1, 8, 8, 3), np.uint8), zero, zero)
    nothing = _Held.of(method, black, one, plain).select(one[:0])

    def joined(parts: Sequence[Examples]) -> Examples:
        names = nothing.arrays
        return Examples({n: np.concatenate([part.arrays[n] for part in parts]) for n in names})

    def read(split: Split, rows: Indices) -> Examples:
        """Return the readable examples; rows that fail together are tried by halves."""
        for encoders in (cached, plain):
            try:
                return joined([nothing, _Held.of(method, split, rows, encoders).select(rows)])
            # A malicious image may make decoders and encoders raise any error.
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
        if len(rows) == 1:
            files = split.images
            where = files.paths[int(rows[0])] if isinstance(files, ImageFiles) else "an image"
            left_out.append(f"{where}: {failed}")
            return nothing
        half = len(rows) // 2
        return joined([read(split, rows[:half]), read(split, rows[half:])])

    def chosen(split: Split, rows: Indices) -> Examples:
        starts = range(0, len(rows), CHUNK)
        return joined([nothing, *(read(split, rows[i : i + CHUNK]) for i in starts)])

    train, validation = (chosen(dataset.train, part) for part in (rows.train, rows.validation))
    return train, chosen(dataset.test, rows.test), validation, tuple(left_out)


def _measured(
    data: TaskData, measuring: tuple[int, np.random.Generator] | None
) -> tuple[list[int], list[str]]:
    """Return the positions of the clients that are measured, and remarks for the report."""
    number, said, what = len(data.clients), [], "clients"
    able = [position for position, c in enumerate(data.clients) if len(c.test)]
    if len(able) < number and not data.all_tests:
        said.append(
            f"{number - len(able)} of {number} clients have no test example and count in no "
            "accuracy on test examples"
        )
        what = "clients with test examples"
    if data.all_tests:
        able = list(range(number))
    if measuring is None:
        return list(range(number)), said
    wanted, rng = measuring
    if wanted >= len(able):
        return able, said
    drawn = rng.choice(len(able), wanted, replace=False)
    said.append(
        f"{wanted} of {len(able)} {what}, drawn at random, were measured and trained "
        "alone: all accuracies but new clients' are theirs"
    )
    return [able[place] for place in sorted(drawn.tolist())], said


def public_examples(
    config: RunConfig, data: TaskData, encoders: Callable[[Method], Encoders], method: Method
) -> Examples:
    """Return the images of `public_data`, as a method keeps them."""
    split, rows = public_rows(config, data)
    return _Held.of(method, split, rows, encoders(method)).select(rows)


@dataclass(frozen=True)
class _Held:
    """The arrays that a method keeps of one split's examples; row i is of example `rows[i]`."""

    rows: Indices
    arrays: dict[str, Rows]

    @classmethod
    def of(cls, method: Method, split: Split, rows: Indices, encoders: Encoders) -> _Held:
        """Prepare the examples of these rows."""
        examples = split.images if split.texts is None else split.texts
        kept = dict(prepared_arrays(method, examples, rows, encoders))
        return cls(rows, {**kept, "labels": split.labels[rows]})

    def select(self, rows: Indices) -> Examples:
        """Return the examples of these rows of the split."""
        # Indexing copies the rows out of those that all clients share.
        positions = np.searchsorted(self.rows, rows)
        return Examples({name: np.asarray(array[positions]) for name, array in self.arrays.items()})


Records = Counter[tuple[str, bytes, str]]
"""Records by side (`train`, `validation` or `test`), digest of their content, and class."""


def differing(before: Mapping[str, Records], after: Mapping[str, Records]) -> Mapping[str, Records]:
    """Return the records of each client that are on one side only, for clients with any."""
    none: Records = Counter()
    found = {}
    for client in dict.fromkeys((*before, *after)):
        one, two = before.get(client, none), after.get(client, none)
        if one != two:
            found[client] = (one - two) + (two - one)
    return found


def records_of(config: RunConfig, data: TaskData) -> Mapping[str, Records]:
    """Return each client's records by its domain's name where it has one, else its position."""
    everybody = (*data.clients, *data.new_clients)
    is_own = config.task.partition.kind == "domain" and len(everybody) == len(data.domains)
    names = data.domain_names if is_own else [str(number) for number in range(len(everybody))]
    train, test = data.dataset.train, data.dataset.test
    return {
        name: _counted(data, "train", train, rows.train)
        + _counted(data, "validation", train, rows.validation)
        + _counted(data, "test", test, rows.test)
        for name, rows in zip(names, everybody, strict=True)
    }


def _counted(data: TaskData, side: str, split: Split, rows: Indices) -> Records:
    labels = [data.classes[label] for label in split.labels[rows]]
    pairs = zip(content_digests(split, rows), labels, strict=True)
    return Counter((side, digest, name) for digest, name in pairs)
