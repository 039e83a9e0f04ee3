"""A run's configuration: all sections, and nothing in them that contradicts the rest."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from platform.config.rules import require_consistent
from platform.config.schema import RunSections


class RunConfig(RunSections):
    """A whole run."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_consistent(self)
        return self
