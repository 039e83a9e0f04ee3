"""Build the page of accountants from the table of what each of them supports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from docs.pages.markdown import table
from privacy import RELATIONS, Support, support_table

BESIDE = Path(__file__).resolve().parents[1] / "privacy.md"


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    entries = support_table()
    accountants = list(dict.fromkeys(entry.accountant for entry in entries))
    events = list(dict.fromkeys(entry.event for entry in entries))
    head = ("release", *(f"`{name}`" for name in accountants))
    rows = [
        (
            event,
            *(
                cell([e for e in entries if (e.event, e.accountant) == (event, name)])
                for name in accountants
            ),
        )
        for event in events
    ]
    refusals = dict.fromkeys(
        f"- `{e.accountant}`, {e.event}, `{e.relation}`: {e.answer}\n"
        for e in entries
        if e.answer != "yes"
    )
    return "\n".join(
        (
            "# Accountants\n",
            f"Accountants are explained in [privacy.md]({os.path.relpath(BESIDE, folder)}).\n",
            table([head, *rows]),
            "## Why not\n",
            "".join(refusals),
        )
    )


def cell(found: Sequence[Support]) -> str:
    """Return the relations for which an accountant bounds an event."""
    able = [entry.relation for entry in found if entry.answer == "yes"]
    if len(able) == len(RELATIONS):
        return "yes"
    return f"`{able[0]}` only" if able else "no"
