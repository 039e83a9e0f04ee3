"""What the process's exit code says."""

from __future__ import annotations

FAILED = 1
"""A run could not go on, its records do not agree, or a claim was refuted."""
BAD_INPUT = 2
AUDIT_BROKEN = 3
INTERRUPTED = 130
