"""What a run tells whoever watches it; a run behaves the same whoever does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Observer(Protocol):
    """Watches a run. Every method may do nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Something before the first round has come `done` of `total` far."""
        ...

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """The run begins, or goes on after this many committed rounds."""
        ...

    def round_started(self, round_number: int, cohort: int) -> None:
        """A round is about to be opened."""
        ...

    def client_answered(self) -> None:
        """One client has answered one stage of the current round."""
        ...

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """A round is committed; `document` is its part of `summary.json`."""
        ...


class SilentObserver:
    """Watches without a word."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Does nothing."""

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Does nothing."""

    def round_started(self, round_number: int, cohort: int) -> None:
        """Does nothing."""

    def client_answered(self) -> None:
        """Does nothing."""

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Does nothing."""
