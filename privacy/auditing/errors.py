"""The one error of the direct tests: noise is not what was promised."""

from __future__ import annotations

from privacy.errors import PrivacyError


class AuditError(PrivacyError):
    """Noise fails a test that right noise fails with probability at most the stated alpha.

    Attributes:
        p_value: How likely right noise looks at least as wrong, before any correction for the
            number of comparisons.
    """

    def __init__(self, message: str, *, p_value: float) -> None:
        """Keep the number beside the sentence, for reports."""
        super().__init__(message)
        self.p_value = p_value
