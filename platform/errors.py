"""Errors of the platform, and what the command line makes of them.

PlatformError
|- ConfigError          a value in a configuration or on the command line is not valid
|  `- DataError         a data set's files are missing, damaged, or not what they should be
|- UnknownRun           no such run
|- Declined             a data holder takes no part in a run that would pass its own limits
|- ProtocolError        a message does not parse or does not belong here
|  |- CoordinatorBehind a client knows more than the coordinator, whose database is an old copy
|  `- ClientRestored    a client's store came back from a backup and has not caught up
|- Unwritable           a file cannot be written, e.g. on a full disk (also an `OSError`)
|- RoundAborted         a round ended without a result; the phase is named
`- RunStopped           the run cannot go on
   |- RunBusy           another process is running the run
   |- TooFewLeft        fewer clients are left than any round needs
   |- ClientsSilent     clients that must be heard outside rounds gave no answer
   `- RecordsDisagree   two records of a run contradict each other
      `- PluginMissing    they cannot be read without a plug-in that is not here
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

MOST_NAMED: Final = 10
"""The most valid names that a sentence lists."""
MOST_FAULTS: Final = 20
"""The most sentences that one error shows."""


_FIELD: Final = re.compile(r"(--?[a-z][a-z-]*|[A-Z][A-Z_|]*|[A-Za-z_]\w*(?:\.\w+)*): ")
"""The beginning of a sentence about a value: a key, an option, or an argument of a command."""


def field_of(sentence: str) -> str | None:
    """Return the key, option or argument that a sentence is about, None for any other sentence."""
    found = _FIELD.match(sentence)
    return None if found is None else found[1]


def renamed(lines: str, names: Mapping[str, str]) -> str:
    """Return sentences, perhaps about cells, in which fields have the names that a user gave."""
    for field, name in names.items():
        begin = rf"(?m)^(cell \(.*?\)(?: and \d+ more)?: )?{re.escape(field)}: "
        lines = re.sub(begin, rf"\g<1>{name}: ", lines)
    return lines


_LONG: Final = re.compile(r"'[^']{500,}'|\S{500,}")
"""A value too long for a person to read; useful paths are shorter."""


def readable(sentence: str) -> str:
    """Return a sentence in which no value is longer than what a person reads."""
    return _LONG.sub(lambda found: f"{found[0][:200]}... ({len(found[0])} characters)", sentence)


def listed(names: Sequence[str]) -> str:
    """Return names separated by commas: the first few, and how many more there are."""
    more = len(names) - MOST_NAMED
    shown = ", ".join(names[:MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown or "none, as there are none yet"


def printable(text: str) -> str:
    r"""Return a text on one line that a terminal can only show, never obey.

    Names come from files and stores that anybody may have written: escape sequences, line breaks
    and marks that turn the direction of writing are shown as escapes such as `\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class PlatformError(Exception):
    """Root of the platform's errors; the message is one plain sentence for the user."""


class ConfigError(PlatformError):
    """A field, its value and what is valid; where there are several faults, a line for each.

    Attributes:
        faults: All sentences; the message shows the first `MOST_FAULTS` and counts the others.
    """

    def __init__(self, *faults: str) -> None:
        """Take one sentence for each fault."""
        super().__init__(*dict.fromkeys(faults))
        self.faults: tuple[str, ...] = self.args

    @property
    def lines(self) -> list[str]:
        """The lines of the message."""
        shown, more = self.faults[:MOST_FAULTS], len(self.faults) - MOST_FAULTS
        return [*shown, *([f"and {more:,} faults more"] if more > 0 else [])]

    def __str__(self) -> str:
        """Return the sentences, in lines."""
        return "\n".join(self.lines)


class DataError(ConfigError):
    """A data set's file or label, what is wrong with it, and what is valid."""

    @classmethod
    def at(cls, where: Path | str, fault: str, valid: str, field: str = "task.root") -> Self:
        """Return the sentence about a path, or about a place that is quoted already."""
        place = repr(str(where)) if isinstance(where, Path) else where
        return cls(f"{field}: {place} {fault}; valid: {valid}")


class Faults(list[str]):
    """Keeps the `ConfigError`s of each block `with` it, so that a user sees all faults at once."""

    def __enter__(self) -> None:
        """Begin a block."""

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        """Keep the block's faults, and go on after it."""
        if isinstance(error, ConfigError):
            self.extend(error.faults)
        return isinstance(error, ConfigError)

    def require_none(self, kind: type[ConfigError] = DataError) -> None:
        """Raise all that was kept."""
        if self:
            raise kind(*self)


class UnknownRun(PlatformError):
    """The named run is not in the database."""


class Declined(PlatformError):
    """A data holder takes no part in a run; the message is the first reason.

    Attributes:
        reasons: All of them, one sentence each: the run's key and value, the holder's limit.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        """Take the reasons, at least one."""
        super().__init__(reasons[0])
        self.reasons = tuple(reasons)


class ProtocolError(PlatformError):
    """A message was refused; it changed nothing."""


class CoordinatorBehind(ProtocolError):
    """A client has answered or committed an attempt that the coordinator does not know."""


class ClientRestored(ProtocolError):
    """A client's store came from a backup, and lacks the releases since that backup."""


class Unwritable(PlatformError, OSError):
    """A file cannot be written; its earlier content, if any, is unchanged."""

    def __str__(self) -> str:
        """Return the sentence for the user."""
        return f"{self.filename} cannot be written: {self.strerror}"


class RoundAborted(PlatformError):
    """Note that a round ended without a result.

    Attributes:
        phase: The phase in which it ended.
        uploads_asked: Whether clients had been asked to train and upload, so that something may
            have left them.
    """

    def __init__(self, phase: str, message: str, *, uploads_asked: bool) -> None:
        """Name the phase and what may have left the clients."""
        super().__init__(message)
        self.phase = phase
        self.uploads_asked = uploads_asked


class RunStopped(PlatformError):
    """A run cannot go on, for a reason that a retry does not change."""


class RunBusy(RunStopped):
    """Another process is running the run; two at once would charge clients twice."""


class TooFewLeft(RunStopped):
    """So many clients have left for good that no further round can have a result."""


class ClientsSilent(RunStopped):
    """Clients that must be heard outside rounds gave no answer; the run can be resumed."""


class RecordsDisagree(RunStopped):
    """Two records of a run that were written together contradict each other."""

    def __init__(self, run_id: str, disagreement: str) -> None:
        """Name the run and which record disagrees with which."""
        super().__init__(f"run {run_id}: {disagreement}")
        self.run_id = run_id


class PluginMissing(RecordsDisagree):
    """A run's mechanism is a plug-in that is not here, so its records cannot be read."""
