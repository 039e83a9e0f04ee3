"""Every error that `privacy` raises on purpose, as one tree.

    PrivacyError
    ├── UnknownMechanism            no such mechanism exists
    ├── CalibrationError            no noise multiplier or ring is large enough
    ├── BudgetExhausted             the next release would pass the target epsilon
    ├── UnsupportedEvent            an accountant cannot bound a release of the ledger
    ├── SensitivityViolation        one client may change the sum by more than the ledger says
    │   └── NonFiniteUpdate         an update holds NaN or infinity, so no norm bounds it
    ├── AuditError                  noise fails a direct test (in `privacy.auditing`)
    ├── UploadSaturated             a coordinate is beyond what the quantiser can carry
    └── ProtocolViolation           a party or a message left the protocol
        ├── Authentication          a signature, tag or key does not verify
        ├── InvalidShare            a secret share is malformed or not the one committed to
        └── ThresholdNotMet         too few clients are left to unmask the sum

Messages are one plain sentence that names the field, the value and what is valid; they never hold
a key, a share, a mask or a coordinate of anybody's update. `ValueError` is kept for programmers'
mistakes at a function's door (a negative count, a matrix where a vector belongs).
"""

from __future__ import annotations


class PrivacyError(Exception):
    """Root of everything that `privacy` raises on purpose."""


class UnknownMechanism(PrivacyError):
    """Somebody asked for a mechanism that does not exist."""


class CalibrationError(PrivacyError):
    """No noise multiplier or ring is large enough, or the target is not a valid one."""


class BudgetExhausted(PrivacyError):
    """The planned releases would pass the target epsilon; raised before anything is sent.

    Attributes:
        epsilon: What the ledger would cost with the planned releases.
        target_epsilon: What it may cost.
    """

    def __init__(self, message: str, *, epsilon: float, target_epsilon: float) -> None:
        """Keep both numbers, for reports."""
        super().__init__(message)
        self.epsilon = epsilon
        self.target_epsilon = target_epsilon


class UnsupportedEvent(PrivacyError):
    """The accountant has no bound for a release of the ledger, so it gives no number."""


class SensitivityViolation(PrivacyError):
    """One client or record may change an upload by more than the ledger's sensitivity."""


class NonFiniteUpdate(SensitivityViolation):
    """An update holds NaN or infinity: its norm is undefined and no clipping bounds it."""


class UploadSaturated(PrivacyError):
    """A coordinate is beyond the quantiser's range; cutting it would make the sum wrong.

    Attributes:
        index: Position of the worst coordinate in the flat vector; the caller, which knows the
            layout, turns it into the tensor's name.
        value_bound: The largest coordinate that fits.
    """

    def __init__(self, message: str, *, index: int, value_bound: float) -> None:
        """Keep the position, for a caller that knows the tensors' names."""
        super().__init__(message)
        self.value_bound = value_bound
        self.index = index


class ProtocolViolation(PrivacyError):
    """A party or a message left the secure aggregation protocol; nothing has changed."""


class Authentication(ProtocolViolation):
    """A signature, an authentication tag or a key does not verify."""


class InvalidShare(ProtocolViolation):
    """A secret share is malformed, or is not the one that its dealer committed to."""


class ThresholdNotMet(ProtocolViolation):
    """Fewer clients are left than the threshold needs, so the sum stays masked.

    Attributes:
        phase: Stage of the protocol at which too few answered, such as "share_keys".
    """

    def __init__(self, message: str = "", *, phase: str) -> None:
        """Make the sentence from the phase where the caller has none of its own."""
        super().__init__(message or f"too few clients are left at phase {phase!r}")
        self.phase = phase
