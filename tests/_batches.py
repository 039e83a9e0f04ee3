"""A trainer that keeps how large its batches were."""

from __future__ import annotations

from privacy.training import LocalTrainer


class BatchTrainer(LocalTrainer):
    """Trains, and keeps the sizes of the batches of each fit."""

    @property
    def fitted(self) -> list[list[int]]:
        return self.__dict__.setdefault("sizes", [])

    def _batches(self, count, rng):
        sizes = []
        self.fitted.append(sizes)
        for rows in super()._batches(count, rng):
            sizes.append(len(rows))
            yield rows
