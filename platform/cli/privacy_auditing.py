"""`audit-privacy`: try to refute a configuration's claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from platform.bootstrap import Surroundings, plan_run
from platform.cli import exit_codes
from platform.cli.output import console, epsilon, print_json, table
from platform.config import load_config
from platform.observing import SilentObserver
from platform.privacy_audit import AuditPlan, audit_protection


def audit_privacy_command(
    config: Path, overrides: Sequence[str], *, canaries: int, as_json: bool
) -> None:
    """Audits a configuration's mechanism; exit code 1 if its claim is refuted.

    Raises:
        ConfigError: If it cannot be run, or claims nothing.
    """
    loaded = load_config(config, overrides)
    plan = plan_run(loaded, SilentObserver(), Surroundings())
    progress = console(error=True)
    documents = audit_protection(
        AuditPlan(loaded, plan.protection, canaries), lambda what: progress.print(what)
    )
    if as_json:
        print_json(documents)
    else:
        _show(documents)
    if not all(document["passed"] for document in documents):
        raise typer.Exit(exit_codes.FAILED)


def _show(documents: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    columns = ("channel", "claimed mu", "seen mu", "interval", "claimed eps", "seen eps", "verdict")
    rows = [
        (
            d["channel"],
            f"{d['claimed_mu']:.3f}",
            f"{d['estimated_mu']:.3f}",
            "{} to {}".format(*(epsilon(bound) for bound in d["mu_interval"])),
            epsilon(d["claimed_epsilon"]),
            epsilon(d["epsilon_lower_bound_95"]),
            "not refuted" if d["passed"] else "REFUTED",
        )
        for d in documents
    ]
    out.print(table("one release of one client, unit client", columns, rows))
    for document in documents:
        for reason in document["reasons"]:
            out.print(f"{document['channel']}: {reason}", soft_wrap=True)
        out.print(
            f"{document['channel']}: {document['canaries']} canaries would have noticed halved "
            f"noise with probability {document['power']:.3f}",
            soft_wrap=True,
        )
