"""What a run takes from outside its configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from methods import Registry
from platform.config import Sources
from platform.data.shapes import Stream
from platform.wire.transport import InProcessTransport, Transport


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run takes from outside its configuration; tests give their own.

    Attributes:
        registry: The methods.
        sources: Packaged configurations and method presets.
        now: The time, for records.
        clock: Seconds, for durations.
        carry: How messages travel, made from how they travel within this process.
        images: Who rendered images are for; a dry run's are not the federation's.
    """

    registry: Registry = field(default_factory=Registry)
    sources: Sources = field(default_factory=Sources)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.perf_counter
    carry: Callable[[InProcessTransport], Transport] = lambda within: within
    images: Stream = Stream.FEDERATION

    @classmethod
    def with_methods(cls, folder: Path | None, *, as_published: bool = False) -> Self:
        """Return what there is, with the methods of a folder that the user named.

        Args:
            folder: None for nowhere.
            as_published: Whether configurations are read with the settings of published runs.
        """
        registry = Registry(folder=folder)
        sources = Sources(registry=registry, as_published=as_published)
        return cls(registry=registry, sources=sources)
