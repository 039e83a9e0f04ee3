"""What a run tells whoever watches it; a run behaves the same whoever does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Observer(Protocol):
    """Watches a run. Every method may do nothing."""

    def recognised(self, sentences: Sequence[str]) -> None:
        """Hear what was made of files whose layout nobody told, before anything is done."""
        ...

    def warned(self, sentences: Sequence[str]) -> None:
        """Hear what of the configuration does nothing, or was dropped, before anything is done."""
        ...

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear that something before the first round has come `done` of `total` far."""
        ...

    def run_created(self, run_id: str) -> None:
        """Hear that a run is in the database under this name; it can be gone on with from here."""
        ...

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Hear that the run begins, or goes on after this many committed rounds."""
        ...

    def round_started(self, round_number: int, cohort: int) -> None:
        """Hear that a round is about to be opened."""
        ...

    def client_answered(self) -> None:
        """Hear that one client has answered one stage of the current round."""
        ...

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Hear that a round is committed; `document` is its part of `summary.json`."""
        ...


class SilentObserver:
    """Watches without a word."""

    def recognised(self, sentences: Sequence[str]) -> None:
        """Do nothing."""

    def warned(self, sentences: Sequence[str]) -> None:
        """Do nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Do nothing."""

    def run_created(self, run_id: str) -> None:
        """Do nothing."""

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Do nothing."""

    def round_started(self, round_number: int, cohort: int) -> None:
        """Do nothing."""

    def client_answered(self) -> None:
        """Do nothing."""

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Do nothing."""
