"""The one error that this interface raises for a value that is not valid."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Final

from platform.errors import field_of

_CELL: Final = re.compile(r"cell \(.*?\)(?: and \d+ more)?: ")
_VALUE: Final = re.compile(
    r"([\w.|-]+)(?::| is) ('[^']*'|\"[^\"]*\"|(?:-?\d[\d.e+-]*|None|True|False)(?= is |;))"
)
_VALID: Final = re.compile(r"; (?:valid|it must|input should)(?: keys)?(?::| is| are| be)? (.+)")


class Error(Exception):
    """A value is not valid, or something cannot be done; the message is one plain sentence.

    Attributes:
        field: The argument or key that the sentence is about; None where there is none.
        value: What was given.
        valid: What would be valid, in words.
    """

    def __init__(
        self, message: str, *, field: str | None = None, value: object = None, valid: str = ""
    ) -> None:
        """Keep the sentence and its parts, which the first line tells if no field is given."""
        super().__init__(message)
        self.field, self.value, self.valid = field, value, valid
        if field is None:
            line = _CELL.sub("", message.partition("\n")[0], count=1)
            self.field = field_of(line)
            if found := _VALUE.match(line):
                self.field, said = found.groups()
                self.value = said[1:-1] if said[0] in "'\"" else literal_eval(said)
            if known := _VALID.search(line):
                self.valid = known[1]


def invalid(field: str, value: object, valid: str) -> Error:
    """Return the error for a value that is not valid."""
    return Error(
        f"{field}: {value!r} is not valid; valid: {valid}", field=field, value=value, valid=valid
    )
