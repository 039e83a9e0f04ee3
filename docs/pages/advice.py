"""Build the tables of `docs/which-method.md` from the cells on which `sotto advise` rests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from docs.pages.markdown import table
from platform.config import Sources
from platform.results.advice import Asked, Row, advise, best, best_arm, cells_of, measured

LINK = "[{}](../platform/results/measured.csv)\n"
EPSILONS = (8.0, 4.0, 2.0, 1.0)
MECHANISM = "distributed_noise"


def filled(text: str, rows: Sequence[Row] | None = None) -> str:
    """Return a page whose two links to the measured cells, each on its own line, are tables."""
    known = measured() if rows is None else rows
    text = text.replace(LINK.format("Measured cells"), table(_cells(known)))
    return text.replace(LINK.format("Fewest clients"), table(_fewest(known)))


def _cells(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Yield the best way in each cell, if any gains for sure."""
    yield (
        *("data", "clients", "images each", "classes each", "groups", "epsilon", "use"),
        *("accuracy", "alone, by its best arm", "gain", "own", "seeds", "source"),
    )
    for cell in cells_of(rows):
        found = best(cell)
        if found is None or found.low is None:
            continue
        yield (
            *(found.data, f"{found.clients:,}", str(found.images), str(found.classes_each)),
            *("yes" if found.groups else "no", f"{found.epsilon}".removesuffix(".0")),
            f"`{found.way}`" if found.low > 0.0 else "stay alone",
            *(f"{found.all:.1f}", f"{found.alone:.1f} ({best_arm(cell)})"),
            *(found.points(), found.points(own=True), str(found.seeds), found.source),
        )


def _fewest(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Yield, for each kind of federation, how many clients a measured gain takes."""
    yield "classes each", "groups", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    facts = Sources().mechanisms.facts_of(MECHANISM)
    for is_all, groups in sorted({(row.classes_each == "all", row.groups) for row in rows}):
        one = Asked(
            **{"clients": 1, "images": rows[0].images, "classes_each": "all" if is_all else 2},
            **{"groups": groups, "epsilon": "inf", "mechanism": MECHANISM},
            relation="replace_one",
        )
        found = [
            advise(replace(one, epsilon=epsilon), facts, rows).fewest_clients
            for epsilon in EPSILONS
        ]
        shown = ("never" if count is None else f"{count:,}" for count in found)
        yield "all" if is_all else "few", "yes" if groups else "no", *shown
