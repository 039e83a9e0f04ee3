"""What a method's `Config` says of an option beside its type and bounds: marks in `Annotated`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptionsOf:
    """Marks an option that holds the options of a method that another option names.

    In a configuration it is a section of its own, validated against that method's `Config`; `build`
    is given that `Config`.

    Attributes:
        option: Which option names the method.
    """

    option: str


@dataclass(frozen=True)
class CountsWith:
    """Marks an option that does nothing unless another is as it must be.

    Where it was set and does nothing, that is said before the run. An option may have several of
    these marks, each of which must hold.

    Attributes:
        option: The other option of the same `Config`, or with a dot a key of the run, such as
            `privacy.personal`.
        values: What it must be one of; empty for anything but null, false and 0.
    """

    option: str
    values: tuple[object, ...] = ()

    def holds(self, value: object) -> bool:
        """Return whether the marked option counts with this value of the other one."""
        return value in self.values if self.values else bool(value)

    @property
    def wanted(self) -> str:
        """What the other option must be, in words."""
        return " or ".join(map(str, self.values)) or "another value"


@dataclass(frozen=True)
class CountsUpTo:
    """Marks a number of which a run has only so much use, and else does without, which is said.

    Attributes:
        key: The run's number that it is held against, such as `rounds` or `task.clients`.
        so: What happens where the option is more than that.
    """

    key: str
    so: str
