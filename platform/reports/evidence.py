"""What each number of a document rests on: ledger rows and audit entries, by their names.

A ledger row is named by run, round, attempt, client and channel. Where a log was read, each row and
each entry is also a leaf of it, whose proof a command prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from platform.reports.blocks import (
    Basis,
    Block,
    Bullets,
    Facts,
    Figure,
    Link,
    Paragraph,
    Piece,
    Place,
    Section,
    Table,
    Words,
    paragraph,
    ranges,
    words,
)
from platform.reports.subject import Subject
from privacy import ReleaseKey


def bases_of(sections: Iterable[Section]) -> tuple[Basis, ...]:
    """Return the bases of all figures, each once, in the order in which a reader meets them."""
    found: dict[Basis, None] = {}
    for section in sections:
        for block in section.blocks:
            for line in _lines(block):
                found.update((p.basis, None) for p in line if isinstance(p, Figure))
    return tuple(found)


def _lines(block: Block) -> Iterator[Words]:
    match block:
        case Paragraph():
            yield block.words
        case Bullets():
            yield from block.items
        case Facts():
            yield from (line for _, line in block.rows)
        case Table():
            yield from (cell for row in block.rows for cell in row)
        case _:
            return


def proof_anchor(number: int) -> str:
    """Return the anchor of the n-th basis; the first is 1."""
    return f"proof-{number}"


def rows_anchor(run_id: str, place: Place) -> str:
    """Return the anchor of the ledger rows of a place."""
    name = "-".join(map(str, (run_id, *place)))
    return "rows-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def evidence_section(subjects: Sequence[Subject], bases: Sequence[Basis]) -> Section:
    """Return the section that lists the basis of every number, and the ledger rows.

    Args:
        subjects: The runs of the document; the first is what it is about.
        bases: As `bases_of` returns them.
    """
    listed = [place for subject in subjects for place in _ledger(subject)]
    known = {anchor for anchor, _ in listed}
    ledger: Block = paragraph("The ledger has no row.")
    if listed:
        ledger = Table(
            "The ledger's rows",
            ("Place", "Reserved in audit entry", "Clients, by pseudonym", "Their leaves"),
            tuple(row for _, row in listed),
            tuple(anchor for anchor, _ in listed),
        )
    leaves = [_leaves_of(basis, subjects) for basis in bases]
    return Section(
        "evidence",
        "What each number rests on",
        (
            paragraph(
                "The number in brackets behind a number leads here. A ledger row is named by run, "
                "round, attempt, channel and client (by pseudonym); an audit entry by its number "
                "in the run's log; a leaf by its number in the log over all runs, from 0. The "
                "command shows or checks them, and `audit prove LEAF` proves a leaf; both need the "
                "records."
            ),
            Table(
                "Numbers, and the records that they rest on",
                ("Number", "Rests on", "Ledger rows", "Audit entries", "Leaves", "Command"),
                tuple(
                    _proof(number, basis, known=known, leaves=found)
                    for number, (basis, found) in enumerate(zip(bases, leaves, strict=True), 1)
                ),
                tuple(proof_anchor(number) for number in range(1, len(bases) + 1)),
            ),
            ledger,
        ),
    )


def _proof(
    number: int, basis: Basis, *, known: set[str], leaves: Sequence[int]
) -> tuple[Words, ...]:
    entries = ", ".join(map(str, basis.entries)) or "none"
    command = basis.check
    if len(leaves) == 1:
        # One command proves one record. The head of a chain is checked by the basis's own command.
        proof = f"python -m platform.coordinator audit prove {leaves[0]}"
        command = f"{command}; {proof}" if command else proof
    return (
        words(str(number)),
        words(basis.what),
        _rows(basis, known),
        words(entries),
        words(ranges(list(leaves)) or "none"),
        words(command or "none"),
    )


def _leaves_of(basis: Basis, subjects: Sequence[Subject]) -> list[int]:
    """Return the leaves of all records that a number rests on; none where no log was read."""
    log, places = subjects[0].log, set(basis.places)
    if log is None:
        return []
    found = [log.events.get((basis.run_id, entry)) for entry in basis.entries]
    rows = (
        row
        for subject in subjects
        if subject.agreed.spending.run_id == basis.run_id and places
        for row in subject.rows
    )
    chosen = None if basis.pseudonyms is None else set(basis.pseudonyms)
    for row in rows:
        place = row.round_number, row.attempt, row.channel
        # Whose rows are withheld, of these no leaf is told either.
        if place in places and (chosen is None or row.pseudonym in chosen):
            found.append(log.charges.get(_key(basis.run_id, place, row.pseudonym)))
    return sorted({leaf for leaf in found if leaf is not None})


def _rows(basis: Basis, known: set[str]) -> Words:
    if not basis.places:
        return words("none")
    pieces: list[Piece] = [f"run {basis.run_id}: "]
    kinds = sorted({(attempt, channel) for _, attempt, channel in basis.places})
    for index, (attempt, channel) in enumerate(kinds):
        numbers = [r for r, a, c in basis.places if (a, c) == (attempt, channel)]
        text = f"rounds {ranges(numbers)}, attempt {attempt}, channel {channel}"
        anchor = rows_anchor(basis.run_id, (min(numbers), attempt, channel))
        pieces += ["; " if index else "", Link(text, anchor) if anchor in known else text]
    whose = "all clients with rows there"
    if basis.pseudonyms is not None:
        count = "client" if len(basis.pseudonyms) == 1 else f"{len(basis.pseudonyms)} clients:"
        whose = f"{count} {', '.join(basis.pseudonyms)}"
    return (*pieces, f"; {whose}")


def _ledger(subject: Subject) -> Iterator[tuple[str, tuple[Words, ...]]]:
    """Yield the ledger's rows place by place; clients that are the same as before are not named."""
    clients: dict[Place, list[str]] = {}
    for row in subject.rows:
        place = row.round_number, row.attempt, row.channel
        clients.setdefault(place, []).append(row.pseudonym)
    run, seen = subject.agreed.spending.run_id, dict[tuple[str, ...], Place]()
    charges = {} if subject.log is None else subject.log.charges
    for place, names in sorted(clients.items()):
        entry = subject.reserving(place)
        known = {name: charges.get(_key(run, place, name)) for name in names}
        ordered = sorted(names, key=lambda name: known[name] or 0)
        same = seen.setdefault(tuple(ordered), place)
        named: Words = words(f"{len(names)}: {', '.join(ordered)}")
        if same != place:
            named = words(f"{len(names)}: ", Link("the same as before", rows_anchor(run, same)))
        number, attempt, channel = place
        yield (
            rows_anchor(run, place),
            (
                words(f"run {run}, round {number}, attempt {attempt}, channel {channel}"),
                words("none" if entry is None else str(entry)),
                named,
                words(_in_order([known[name] for name in ordered])),
            ),
        )


def _in_order(leaves: Sequence[int | None]) -> str:
    """Return the leaves of clients in the order in which these are named."""
    if None in leaves:
        return "none"
    known = [leaf for leaf in leaves if leaf is not None]
    if known == list(range(known[0], known[0] + len(known))) and len(known) > 1:
        return f"{known[0]} to {known[-1]}, in their order"
    return ", ".join(map(str, known))


def _key(run: str, place: Place, pseudonym: str) -> ReleaseKey:
    number, attempt, channel = place
    return ReleaseKey(
        run_id=run,
        round_number=number,
        attempt=attempt,
        pseudonym=pseudonym,
        channel=channel,  # type: ignore[arg-type]
    )
