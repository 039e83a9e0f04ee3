"""The one error that this interface raises for a value that is not valid."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Final

_SENTENCE: Final = re.compile(
    r"(?:cell \(.*?\)(?: and \d+ more)?: )?(?:([\w.|\[\]'-]+)(?:: | is (?=['\d-])))?"
    r"(?:'([^']*)'|(-?\d[\d.e+-]*|True|False)(?= is |;))?"
    r"(?:.*?; (?:valid|it must|input should)(?: keys)?(?::| is| are| be)? (.+))?"
)
"""A field, its value as a text or a number, and what is valid; each may be missing."""


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
        if field is None and (found := _SENTENCE.match(message)):
            self.field, text, number, known = found.groups()
            self.value, self.valid = literal_eval(number) if number else text, known or ""


def invalid(field: str, value: object, valid: str) -> Error:
    """Return the error for a value that is not valid."""
    return Error(
        f"{field}: {value!r} is not valid; valid: {valid}", field=field, value=value, valid=valid
    )
