"""The privacy page says which accountant bounds what, as the accountants themselves say."""

from __future__ import annotations

from pathlib import Path

from privacy import RELATIONS, Support, support_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"


def answer(found: list[Support]) -> str:
    """One cell: for which relations the accountant bounds the event."""
    able = [entry.relation for entry in found if entry.answer == "yes"]
    if len(able) == len(RELATIONS):
        return "yes"
    return f"`{able[0]}` only" if able else "no"


def rendered() -> list[str]:
    """The table's lines."""
    entries = support_table()
    accountants = list(dict.fromkeys(entry.accountant for entry in entries))
    events = list(dict.fromkeys(entry.event for entry in entries))
    lines = [f"| release | {' | '.join(f'`{name}`' for name in accountants)} |"]
    lines.append("|" + "---|" * (len(accountants) + 1))
    for event in events:
        cells = [
            answer([e for e in entries if (e.event, e.accountant) == (event, name)])
            for name in accountants
        ]
        lines.append(f"| {event} | {' | '.join(cells)} |")
    return lines


def test_the_page_has_the_table_that_the_accountants_give():
    assert "\n".join(rendered()) in PAGE.read_text(encoding="utf-8")


def test_every_event_has_an_accountant_under_replace_one():
    able = {e.event for e in support_table() if (e.relation, e.answer) == ("replace_one", "yes")}
    assert able == {entry.event for entry in support_table()}
