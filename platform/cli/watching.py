"""A run on the screen: progress while it works, then one line a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.progress import TaskID

from platform.cli.output import WithBar, console, epsilon, fraction, size

WIDTHS = (5, 9, 8, 5, 6, 14, 9, 5, 5, 5)
NAMES = ("round", "cohort", "accuracy", "std", "worst", "epsilon s/p/o", "s/n", "up", "down", "s")


def heading(delta: float) -> str:
    """Return the lines above the rounds, which fit into 80 columns."""
    legend = (
        f"epsilon of server/peers/observer at delta {delta:g}, for a round fixed beforehand;\n"
        'cohort (lost); s/n: signal to noise, 95%, or "below" detection; bytes a client'
    )
    return f"{legend}\n{_aligned(NAMES)}"


def round_line(document: Mapping[str, Any]) -> str:
    """Return one round on a line of 80 columns, and what few rounds have on one below it.

    Bytes are means per invited client.
    """
    *cells, up, down, seconds = round_cells(document)
    line = _aligned((*cells, _short(up), _short(down), seconds))
    remarks = round_remarks(document)
    return f"{line}\n{' ' * WIDTHS[0]}{remarks}" if remarks else line


def _aligned(cells: Sequence[str]) -> str:
    """Return cells below each other; one that is too wide takes from the gaps that follow."""
    line, end = "", -1
    for cell, width in zip(cells, WIDTHS, strict=True):
        end += width + 1
        line += f"{' ' * (line != '')}{cell.rjust(max(end - len(line) - (line != ''), 0))}"
    return line


def _short(bytes_in_words: str) -> str:
    """Return bytes as narrow as they can be; the heading says that they are."""
    return bytes_in_words.replace(" B", "").replace(" ", "").removesuffix("B")


def round_cells(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what stands in each column of `NAMES` for one round."""
    accuracy, spent, seconds = document["accuracy"], document["epsilon"], document["seconds"]
    return (
        str(document["round"]),
        _cohort(document),
        fraction(accuracy["mean"]),
        fraction(accuracy["std"]),
        fraction(accuracy["worst"]),
        "/".join(epsilon(spent[name]) for name in ("server", "peers", "observer")),
        _interval(document["signal_to_noise"]),
        size(document["bytes_up"]),
        size(document["bytes_down"]),
        "-" if seconds is None else f"{seconds:.{0 if seconds >= 1000 else 1}f}",
    )


def round_remarks(document: Mapping[str, Any]) -> str:
    """Return what stands behind the columns, as most rounds have none of it."""
    return _validation(document) + _phase(document)


def _cohort(document: Mapping[str, Any]) -> str:
    if document["cohort"] is None:
        return "secret"
    return f"{document['cohort']} ({document['dropped']})"


def _validation(document: Mapping[str, Any]) -> str:
    """Return behind the columns where there is any, as most runs have none."""
    measured, released = document.get("validation"), document.get("released_validation")
    exact = "" if measured is None else _labelled("val", measured["mean"])
    if released is None:
        return exact
    return exact + _labelled(f"noised val of {released['round']}:", released["mean"])


def _phase(document: Mapping[str, Any]) -> str:
    """Return behind the columns too; older runs do not state it."""
    return " collection" if document.get("phase") == "collection" else ""


def _labelled(label: str, value: float | None) -> str:
    return "" if value is None else f" {label} {fraction(value)}"


def _interval(ends: Mapping[str, float] | None) -> str:
    if ends is None:
        return "-"
    if not ends["low"]:
        return "below"
    # By name: a document that was stored comes back with its keys sorted.
    ordered = (ends["low"], ends["high"])
    return "-".join(f"{end:.{2 if end < 10.0 else 1 if end < 100.0 else 0}f}" for end in ordered)


class ScreenObserver(WithBar):
    """Shows a run: a transient progress bar on stderr, lines on stdout."""

    def __init__(self, delta: float, *, quiet: bool) -> None:
        """Take the delta of the epsilons; `quiet` leaves stdout to JSON."""
        super().__init__()
        self._delta = delta
        self._quiet = quiet
        self._out = console()
        self._task: TaskID | None = None
        self.run_id: str | None = None

    def recognised(self, sentences: Sequence[str]) -> None:
        """Print each."""
        for sentence in sentences:
            self._print(f"recognised: {sentence}")

    def warned(self, sentences: Sequence[str]) -> None:
        """Print each."""
        for sentence in sentences:
            self._print(f"warning: {sentence}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self._show(what, total, done)

    def run_created(self, run_id: str) -> None:
        """Remember the run, for whoever interrupts it."""
        self.run_id = run_id

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Name the run."""
        again = f", resumed after round {resumed_after}" if resumed_after else ""
        self._print(f"run {run_id}: {rounds} rounds{again}")
        self._print(heading(self._delta))

    def round_started(self, round_number: int, cohort: int) -> None:
        """Start the round's bar; a client answers up to four stages."""
        self._show(f"round {round_number}", cohort * 4, 0)

    def client_answered(self) -> None:
        """Move the round's bar."""
        if self._task is not None:
            self._progress.advance(self._task)

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Print the round."""
        self._clear()
        self._print(round_line(document))

    def describe(self, what: str) -> None:
        """Say on the bar what is happening; nothing where there is none."""
        if self._task is not None:
            self._progress.update(self._task, description=what)

    def _show(self, what: str, total: int, done: int) -> None:
        self._clear()
        if done < total:
            self._task = self._progress.add_task(what, total=total, completed=done)

    def _clear(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def _print(self, text: str) -> None:
        if not self._quiet:
            # Through the bar where both share a screen, so that neither overwrites the other.
            shared = self._out.is_terminal and self._error.is_terminal
            (self._error if shared else self._out).print(text)
