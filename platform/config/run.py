"""A run's configuration: all sections, and nothing in them that contradicts the rest."""

from __future__ import annotations

from typing import Self

from pydantic import PrivateAttr, model_validator

from platform.config.rules import require_consistent
from platform.config.schema import RunSections


class RunConfig(RunSections):
    """A whole run."""

    _remarks: tuple[str, ...] = PrivateAttr(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said of how it was read, a sentence each; not a part of it."""
        return self._remarks

    def with_remarks(self, remarks: tuple[str, ...]) -> Self:
        """Return the same configuration, of whose reading more is to be said."""
        told = self.model_copy()
        told._remarks = (*remarks, *self._remarks)
        return told

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_consistent(self)
        return self
