"""The one error that this interface raises for a value that is not valid."""

from __future__ import annotations


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
        """Keep the sentence and its parts."""
        super().__init__(message)
        self.field, self.value, self.valid = field, value, valid


def invalid(field: str, value: object, valid: str) -> Error:
    """Return the error for a value that is not valid."""
    return Error(
        f"{field}: {value!r} is not valid; valid: {valid}", field=field, value=value, valid=valid
    )
