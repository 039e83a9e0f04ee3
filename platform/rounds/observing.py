"""The events that a run reports to an observer. A run behaves the same with every observer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Observer:
    """Watches a run. Each method does nothing unless a subclass overrides it."""

    def recognised(self, sentences: Sequence[str]) -> None:
        """Hear, before anything is done, how the run reads data files of an undeclared layout."""

    def warned(self, sentences: Sequence[str]) -> None:
        """Hear, before anything is done, which settings do nothing or were dropped."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear that `done` of `total` parts of a step before the first round are finished."""

    def run_created(self, run_id: str) -> None:
        """Hear that the database holds the run under this name; the run can be resumed from now."""

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Hear that the run begins, or continues after this many committed rounds."""

    def round_started(self, round_number: int, cohort: int) -> None:
        """Hear that a round is about to be opened."""

    def client_answered(self) -> None:
        """Hear that one client has answered one stage of the current round."""

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Hear that a round is committed; `document` is its part of `summary.json`."""


SilentObserver = Observer
