"""Senses of clients: whose names mean what, where each group of clients has a sense of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from platform.data.catalogue import DataRequest, load_dataset
from platform.data.dataset import Dataset, joined
from platform.data.homonyms import SENSES
from platform.data.images import Indices
from platform.data.partition import ClientIndices


def senses_of_clients(number: int) -> tuple[str, ...]:
    """Return the sense of each client, in turn."""
    return tuple(SENSES[position % len(SENSES)] for position in range(number))


def in_senses_of_holders(
    made: Dataset,
    request: DataRequest,
    clients: Sequence[ClientIndices],
    of_clients: Sequence[str],
    *,
    merged: bool,
) -> Dataset:
    """Draw a data set's images anew, each in the sense of who holds it.

    Labels, domains and the order of rows stay, so who holds what does as well. What nobody holds is
    drawn in the first sense.

    Args:
        made: The data set as it was made, training and test examples apart.
        request: What was asked for.
        clients: Who holds what.
        of_clients: Sense of each client.
        merged: Whether it was dealt out as one pool, training examples first.
    """
    ends = made.train.num_examples
    senses = np.zeros(ends + made.test.num_examples, np.int64)
    first_test = 0 if merged else ends
    for client, name in zip(clients, of_clients, strict=True):
        rows = (client.train, client.validation, client.test + first_test)
        senses[np.concatenate(rows)] = SENSES.index(name)
    train, test = (part.reshape(len(made.domains), -1) for part in np.split(senses, [ends]))
    drawn = load_dataset(made.name, replace(request, senses=(train, test)))
    return drawn.merged() if merged else drawn


def with_tests_in_each_sense(
    dataset: Dataset, request: DataRequest, rows: Indices, senses: Sequence[str], *, merged: bool
) -> tuple[Dataset, dict[str, Indices]]:
    """Add test images in each sense, whoever holds them.

    Args:
        dataset: As its holders see it.
        request: What was asked for.
        rows: Which test rows, ascending.
        senses: The senses, each once.
        merged: Whether it was dealt out as one pool.

    Returns:
        The data set with these rows of each sense after all others, and where they are by sense.
    """
    # Nobody looks at training images here, and none need be drawn but where test images are some.
    asked = request if merged else replace(request, draws=replace(request.draws, train_per_class=0))
    parts, places = [dataset.test], {}
    for sense in senses:
        drawn = load_dataset(dataset.name, replace(asked, senses=sense))
        places[sense] = np.arange(len(rows)) + sum(part.num_examples for part in parts)
        parts.append((drawn.merged() if merged else drawn).test.only(rows))
    return replace(dataset, test=joined(parts)), places
