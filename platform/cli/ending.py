"""How every command line ends: what is meant for the user is one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from platform.cli import exit_codes


def end_with(app: Callable[[], object]) -> None:
    """Run a command line, and exit with what its errors say; heavy imports wait for one."""
    try:
        app()
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        from platform.errors import printable

        typer.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    """Return exit code of an error that is meant for the user; None for a programming mistake."""
    from methods import BrokenMethod, MethodError, UnknownMethod
    from platform.errors import ConfigError, PlatformError, UnknownRun
    from privacy import PrivacyError
    from storage import AuditChainBroken, LogBroken, StorageError

    if isinstance(error, (ConfigError, UnknownRun, UnknownMethod, BrokenMethod)):
        return exit_codes.BAD_INPUT
    if isinstance(error, (AuditChainBroken, LogBroken)):
        return exit_codes.AUDIT_BROKEN
    known = (PlatformError, MethodError, PrivacyError, StorageError)
    return exit_codes.FAILED if isinstance(error, known) else None
