"""`report` and `compare`: rounds as they come, a run as a whole, and runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from rich.progress import TaskID

from platform.agreement import Agreed, require_agreement
from platform.agreement.statements import unfinished_document
from platform.cli.output import (
    WithBar,
    console,
    epsilon,
    fraction,
    print_json,
    printable,
    size,
    table,
)
from platform.config.rules import HELD
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.experiment.caveats import canary_warnings, lower_text, optimizer_words
from platform.reports.hazards import claim_warnings, unfinished_words
from platform.results.reading import agreed_run, numbers_of, resolved
from platform.rounds.documents import ADVERSARIES, in_rounds
from platform.rounds.observing import Observer

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
    return _validation_remark(document) + _phase(document)


def _cohort(document: Mapping[str, Any]) -> str:
    if document["cohort"] is None:
        return "secret"
    return f"{document['cohort']} ({document['dropped']})"


def _validation_remark(document: Mapping[str, Any]) -> str:
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


class ScreenObserver(WithBar, Observer):
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


HEADLINES: Final = {
    "all_classes": "accuracy on all test examples",
    "base_to_novel": "the harmonic mean",
    "leave_one_domain_out": "accuracy on the held-out domain",
}
"""The one number of each protocol that has more than the client mean."""


def print_report(run_id: str, storage: str, *, as_json: bool) -> None:
    """Print a run, if what is stated of it follows from its records.

    Raises:
        UnknownRun: If there is no such run.
        RunStopped: If its records do not agree; nothing of it is printed then.
        AuditChainBroken: If its audit log was changed.
    """
    agreed = agreed_run(run_id, storage)
    summary = agreed.summary
    document: Mapping[str, Any]
    if summary is None:
        document = {**unfinished_document(agreed), "warnings": claim_warnings(agreed)}
    else:
        document = summary
    if as_json:
        print_json(document)
        return
    out = console()
    named = f"run {printable(document['run_id'])}"
    if summary is None:
        named += f": {unfinished_words(document, len(in_rounds(document['rounds'])))}"
    out.print(named)
    out.print(heading(document["delta"]))
    for one in document["rounds"]:
        out.print(printable(round_line(one)))
    if summary is None:
        _print_unfinished(document, is_pruned=agreed.records.is_pruned)
    else:
        print_summary(summary)


def _print_unfinished(document: Mapping[str, Any], *, is_pruned: bool) -> None:
    out = console()
    out.print()
    out.print(table(None, ("result", "value"), unfinished_rows(document)))
    for warning in document["warnings"]:
        out.print(f"note: {printable(warning)}")
    if is_pruned:
        out.print("note: the run has not finished, and its models were erased by `runs --prune`")
    else:
        out.print(f"note: the run has not finished; go on with `run --resume {document['run_id']}`")


def unfinished_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what can be said of a run so far, as `summary_rows` does of one that is over."""
    spent = document["epsilon"]
    return [
        ("method, data", f"{document['method']} on {document['dataset']}"),
        ("status", f"{document['status']}, not finished"),
        ("rounds", f"{len(in_rounds(document['rounds']))} of {document['planned_rounds']}"),
        *[("in progress", text) for text in _in_progress(document["open_attempt"])],
        *[(f"epsilon for {name}, so far", _so_far(document, spent[name])) for name in spent],
    ]


def _in_progress(attempt: Mapping[str, int] | None) -> list[str]:
    if attempt is None:
        return []
    return [f"round {attempt['round']}, attempt {attempt['attempt']}: it is charged already"]


def _so_far(document: Mapping[str, Any], value: float | str | None) -> str:
    return "nothing was charged" if value is None else _claim(document, value)


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print accuracy and epsilon side by side, then what to know about them."""
    out = console()
    out.print()
    for text in canary_warnings(summary.get("canaries")):
        # Before any number that it is about.
        out.print(f"WARNING: {text}")
    out.print(table(None, ("result", "value"), summary_rows(summary)))
    for text in summary["warnings"]:
        out.print(f"note: {printable(text)}")


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a finished run came to: what each result is, and its value in words."""
    final, gain = summary["final"], summary["gain_over_local"]
    spent = final["epsilon"]
    head = summary["audit_head"]
    return [
        ("method, data", f"{summary['method']} on {summary['dataset']}"),
        *([("second phase of", first)] if (first := summary.get("phase_two_of")) else []),
        *[(name, text) for name, text in summary.get("evaluation", {}).items()],
        *_optimizer(summary.get("training")),
        _accuracy(summary),
        *_phases(summary.get("phases")),
        *_protocol("", final.get("protocol")),
        *_validation(summary),
        *_best(summary.get("best_on_validation")),
        *_new_clients(final.get("new_clients")),
        *_protocol("local twins, ", summary.get("local", {}).get("protocol")),
        ("gain over local", "-" if gain is None else f"{100 * gain:+.1f} points{_of(final)}"),
        ("worth of sharing", _worth(summary)),
        *[(f"epsilon for {name}", _claim(summary, spent[name])) for name in spent],
        *_canaries(summary.get("canaries")),
        ("accounting", _accounting(summary)),
        *([("beside it", _accountants(summary))] if summary["unit"] else []),
        ("audit head", f"{head['count']}:{head['hash']}"),
    ]


def _optimizer(training: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the optimiser in words; summaries of earlier versions do not have it."""
    return [] if training is None else [("local training", optimizer_words(training))]


def _accuracy(summary: Mapping[str, Any]) -> tuple[str, str]:
    accuracy = summary["final"]["accuracy"]
    if accuracy["mean"] is None and summary["dataset"] == HELD:
        return "accuracy", "is known to the clients; see evaluation.release for noised accuracy"
    return "accuracy (exact, simulation)", _spread(accuracy)


def _worth(summary: Mapping[str, Any]) -> str:
    worth, silent = summary["worth_of_sharing"], summary["silent"]
    if worth is None or silent is None:
        return "-"
    noised = "" if silent["noised"] is None else f", {fraction(silent['noised'])} with the noise"
    return (
        f"{100 * worth:+.1f} points{_of(summary['final'])} over the same run with uploads of zeros "
        f"({fraction(silent['bare'])}{noised})"
    )


def _spread(accuracy: Mapping[str, Any]) -> str:
    shown = {name: fraction(accuracy[name]) for name in ("mean", "weighted", "std", "worst")}
    return (
        f"{shown['mean']} mean over clients, {shown['weighted']} weighted by test examples, std "
        f"{shown['std']}, worst {shown['worst']}"
    )


def _phases(phases: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Show before and after the second phase, one below the other, and what it cost."""
    if phases is None:
        return []
    share = phases["cost_share"]
    return [
        ("before the second phase", _spread(phases["before"])),
        ("after the second phase", _spread(phases["after"])),
        (
            "time of the second phase",
            "-" if share is None else f"{100 * share:.1f}% of the rounds' own, without measuring",
        ),
    ]


def _validation(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    measured = summary["final"].get("validation")
    if measured is None or measured["mean"] is None:
        return []
    return [("validation (exact, simulation)", _spread(measured))]


def _best(best: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if best is None:
        return []
    chosen = f"round {best['round']}, chosen at {fraction(best['validation'])} validation"
    return [
        ("best on validation", f"{chosen}: {_spread(best['accuracy'])}"),
        *_protocol("best on validation, ", best["protocol"]),
    ]


def _new_clients(measured: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if measured is None:
        return []
    whose = f"{measured['clients']} new clients"
    return [
        (f"{whose}, as they come", _spread(measured["before"])),
        (f"{whose}, personalised", _spread(measured["after"])),
    ]


def _protocol(whose: str, measured: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the protocol's numbers in words, where it has more than the clients' own accuracy."""
    name = None if measured is None else measured["name"]
    if measured is None or name not in HEADLINES:
        return []
    if name == "all_classes":
        return [(f"{whose}own examples", _spread(own))] if (own := measured.get("own")) else []
    own = f"own examples {fraction(measured['local'])}"
    if name == "base_to_novel":
        text = (
            f"{own}, all base classes {fraction(measured['base'])}, novel classes "
            f"{fraction(measured['novel'])}, harmonic mean {fraction(measured['harmonic_mean'])}"
        )
        return [(f"{whose}base to novel", text)]
    target = measured["target"]
    text = (
        f"{fraction(target['mean'])} mean over clients, std {fraction(target['std'])}, worst "
        f"{fraction(target['worst'])}; {own}"
    )
    return [(f"{whose}held-out domain", text)]


def _of(final: Mapping[str, Any]) -> str:
    """Return what the gain is a difference of, where that is not the clients' own accuracy."""
    headline = HEADLINES.get(final.get("protocol", {}).get("name"))
    return "" if headline is None else f" of {headline}"


def _claim(summary: Mapping[str, Any], value: float | str) -> str:
    return f"{epsilon(value)} at delta {summary['delta']:g}"


def _accountants(summary: Mapping[str, Any]) -> str:
    """Return the worst client by every accountant, or why one says nothing."""
    return "; ".join(
        f"{name} {value if str(value).startswith('n/a') else epsilon(value)}"
        for name, value in summary["accountants"].items()
    )


def _canaries(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return what canaries showed of the claim, beside the most that they could."""
    if found is None:
        return []
    guessed, share = found["guessed_lower_bound"], f"{100 * found['share']:.0f}%"
    coins = "" if guessed is None else f"; by guessed coins alone at least {lower_text(guessed)}"
    where = f"{found['directions']} of {found['dimension']} directions"
    text = (
        f"epsilon at least {lower_text(found['lower_bound'])} at 95%, {share} of the claimed "
        f"{epsilon(found['claimed'])}; ceiling of {found['canaries']} canaries in {where}: "
        f"{lower_text(found['ceiling'])}{coins}"
    )
    return [("canaries show", text)]


def _accounting(summary: Mapping[str, Any]) -> str:
    if summary["unit"] is None:
        return f"mechanism {summary['mechanism']}: no guarantee"
    return (
        f"{summary['mechanism']}, unit {summary['unit']}, {summary['relation']}, accountant "
        f"{summary['accountant']}, sampling assumed: {summary['sampling']}, "
        f"{summary['noise_distribution']} noise from {summary['noise_source']}"
        f"{_in_subspace(summary['subspace'])}"
    )


def _in_subspace(subspace: Mapping[str, Any] | None) -> str:
    if subspace is None:
        return ""
    kind, rank, whole = (subspace[name] for name in ("kind", "rank", "coordinates"))
    images = subspace.get("public_images")
    found_from = "" if images is None else f", {images} of them"
    return f", in {rank} of {whole} directions ({kind}{found_from})"


COLUMNS: Final = ("run", "status", "accuracy", "std", "worst", "gain", *ADVERSARIES)
MEASURES: Final = ("mean", "weighted", "std", "worst")
TERMS: Final = ("unit", "relation", "delta")
"""What an epsilon means; others are no numbers of the same thing."""
ELSEWHERE: Final = ("storage",)
"""Sections that say where a run lies, not what it is."""

Document = Mapping[str, Any]


def compare_command(names: Sequence[str], storage: str, *, as_json: bool) -> None:
    """Show runs side by side.

    Args:
        names: Two runs or more; `latest` is the newest.
        storage: The database's URL.
        as_json: Print JSON.

    Raises:
        ConfigError: If there are fewer than two, or one is named twice.
        UnknownRun: If there is no such run.
        RunStopped: If records do not agree; nothing is shown then.
        AuditChainBroken: If an audit log was changed; likewise.
    """
    if len(names) < 2:
        raise ConfigError(f"RUN: {len(names)} is too few to compare; valid is two runs or more")
    with closing(open_existing(storage)) as database:
        found = [resolved(database, name, storage) for name in names]
        twice = sorted({one for one in found if found.count(one) > 1})
        if twice:
            raise ConfigError(f"RUN: {twice[0]!r} is named twice; valid is each run once")
        runs = [require_agreement(database, run_id) for run_id in found]
    document = comparison(runs)
    if as_json:
        print_json(document)
    else:
        _print_comparison(document)


def comparison(runs: Sequence[Agreed]) -> dict[str, Any]:
    """Return runs whose records agree side by side.

    The differing settings are by their dotted key, each by run; of a key that a run does not have
    nothing is said there.
    """
    shown = [_compared(one) for one in runs]
    # What nothing bounds is of no unit, and no more comparable by being of the same.
    claiming = [one for one in shown if one["unit"] is not None]
    settings = {one.records.run_id: dict(flat(one.config.model_dump(mode="json"))) for one in runs}
    return {
        "runs": shown,
        "differences": _differences(settings),
        "epsilons_differ_in": [
            name for name in TERMS if len({json.dumps(one[name]) for one in claiming}) > 1
        ],
    }


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a configuration by their dotted keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _differences(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for key in dict.fromkeys(key for one in settings.values() for key in one):
        of = {run: one[key] for run, one in settings.items() if key in one}
        is_alike = len(of) == len(settings) and len({json.dumps(v) for v in of.values()}) == 1
        if not is_alike and key.partition(".")[0] not in ELSEWHERE:
            found[key] = of
    return found


def _compared(agreed: Agreed) -> dict[str, Any]:
    config, numbers = agreed.config, numbers_of(agreed)
    facts = config.mechanism.facts
    return {
        "run": agreed.records.run_id,
        "status": agreed.records.run.status,
        "method": config.method.name,
        "dataset": config.task.dataset,
        "rounds": len(in_rounds([row.document for row in agreed.spending.rounds])),
        "accuracy": {name: numbers.accuracy[name] for name in MEASURES},
        "gain_over_local": numbers.document["gain_over_local"] if numbers.finished else None,
        "epsilon": numbers.epsilons,
        "mechanism": config.privacy.mechanism,
        "unit": facts.unit,
        "relation": config.relation if facts.claims else None,
        "delta": config.privacy.target_delta,
    }


def _print_comparison(document: Document) -> None:
    out = console()
    out.print(
        table(
            "accuracy, and epsilon by adversary", COLUMNS, [*map(_compared_row, document["runs"])]
        )
    )
    differ = document["epsilons_differ_in"]
    if differ:
        out.print(f"note: these epsilons cannot be compared: runs differ in {', '.join(differ)}")
    for one in document["runs"]:
        if one["unit"] is None:
            text = "nothing protects its clients"
            out.print(f"note: {one['run']}: mechanism {one['mechanism']}: {text}")
    if any(one["status"] != "finished" for one in document["runs"]):
        out.print("note: of a run that has not finished it is what there is so far")
    out.print()
    names = [one["run"] for one in document["runs"]]
    settings = [
        (key, *(_setting(of, name) for name in names))
        for key, of in document["differences"].items()
    ]
    if settings:
        out.print(table("settings that differ", ("setting", *names), settings))
    else:
        out.print("no setting differs")


def _compared_row(one: Document) -> tuple[str, ...]:
    accuracy, gain = one["accuracy"], one["gain_over_local"]
    return (
        one["run"],
        one["status"],
        *(fraction(accuracy[name]) for name in ("mean", "std", "worst")),
        "-" if gain is None else f"{100 * gain:+.1f}",
        *(epsilon(one["epsilon"][name]) for name in ADVERSARIES),
    )


def _setting(of: Mapping[str, Any], run: str) -> str:
    if run not in of:
        return "-"
    value = of[run]
    return value if isinstance(value, str) else json.dumps(value)
