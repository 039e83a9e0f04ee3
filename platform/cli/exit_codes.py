"""What the process's exit code says."""

from __future__ import annotations

FAILED = 1
"""A run could not go on, its records do not agree, or a claim was refuted."""
BAD_INPUT = 2
AUDIT_BROKEN = 3
ABOVE_CLAIM = 4
"""A run finished, and its own canaries show more than it claims, as one right run in twenty does.
Where they refute the claim the code is 1."""
SIGNALLED = 128
"""Plus the number of the signal that ended it: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."""
