"""`report` and `compare`: rounds as they come, a run as a whole, runs side by side.

`report --format` makes the privacy budget report, for people, machines, browsers and printers.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from rich.progress import TaskID

from platform.agreement import Agreed, require_agreement
from platform.agreement.statements import unfinished_document
from platform.cli.output import (
    Said,
    WithBar,
    answer,
    console,
    epsilon,
    fraction,
    shows_all,
    size,
    table,
)
from platform.config.loading import flat
from platform.config.rules import HELD
from platform.disk.files import write_bytes
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.experiment.caveats import canary_warnings, caveats_of, lower_text, optimizer_words
from platform.results.inference import Interval, gains, paired, per_client
from platform.results.reading import agreed_run, numbers_of, resolved_once
from platform.results.report.document import report_of
from platform.results.report.empirical import OtherClaim, read_audit
from platform.results.report.guarantee import guess_words
from platform.results.report.hazards import claim_warnings, unfinished_words
from platform.results.report.rendering import ENCODERS, load_weasyprint
from platform.rounds.documents import ADVERSARIES, in_rounds
from platform.rounds.observing import Observer

Document = Mapping[str, Any]

NEWEST: Final = 3
"""Without `--all` a run shows so many rounds."""
DETAIL: Final = re.compile(
    "method|protocol|selection|local training|validation|own examples|local twins|time of|other"
)
"""Rows of a result that only `--all` shows."""
NAMES = ("round", "cohort", "accuracy", "worst", "epsilon s/p/o", "s/n", "up", "down", "s")


def round_cells(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one round's cell for each column of `NAMES`."""
    accuracy, spent, seconds = document["accuracy"], document["epsilon"], document["seconds"]
    cohort, ends = document["cohort"], document["signal_to_noise"]
    # One number if it is the same for all adversaries.
    costs = [epsilon(spent[name]) for name in ADVERSARIES]
    if ends is None:
        interval = "-"
    elif not ends["low"]:
        interval = "below"
    else:
        # By name: a document that was stored comes back with its keys sorted.
        interval = "-".join(
            f"{end:.{2 if end < 10.0 else 1 if end < 100.0 else 0}f}"
            for end in (ends["low"], ends["high"])
        )
    return (
        str(document["round"]),
        "secret" if cohort is None else f"{cohort} ({document['dropped']})",
        fraction(accuracy["mean"]),
        fraction(accuracy["worst"]),
        costs[0] if len(set(costs)) == 1 else "/".join(costs),
        interval,
        size(document["bytes_up"]),
        size(document["bytes_down"]),
        "-" if seconds is None else f"{seconds:.{0 if seconds >= 1000 else 1}f}",
    )


def round_remarks(document: Mapping[str, Any]) -> str:
    """Return the remarks about a round that have no column; most rounds have none."""
    # Runs of older versions state no validation and no phase.
    measured, released = document.get("validation"), document.get("released_validation")
    text = ""
    if measured is not None and measured["mean"] is not None:
        text += f" val {fraction(measured['mean'])}"
    if released is not None and released["mean"] is not None:
        text += f" noised val of {released['round']}: {fraction(released['mean'])}"
    return text + (" collection" if document.get("phase") == "collection" else "")


class ScreenObserver(WithBar, Observer):
    """Shows where a run is, on stderr, and remarks about it, on stdout."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet` leaves stdout to JSON."""
        super().__init__(quiet=quiet)
        self._task: TaskID | None = None
        self._rounds = self._before = self._number = self._asked = self._answers = 0
        self._since, self._step, self._known = time.monotonic(), "", ""
        self.run_id: str | None = None

    def recognised(self, sentences: Sequence[str]) -> None:
        """Print each."""
        for sentence in sentences:
            self.tell(f"recognised: {sentence}")

    def warned(self, sentences: Sequence[str]) -> None:
        """Print each."""
        for sentence in sentences:
            self.tell(f"warning: {sentence}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        if what != self._step or not done:
            self._step, self._since = what, time.monotonic()
        self._show(f"{what}{self._left(done, total)}", total, done)

    def run_created(self, run_id: str) -> None:
        """Remember the run: if a signal interrupts it, the last words name it."""
        self.run_id = run_id

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Remember how far the run is, from which the time left follows."""
        self._rounds, self._before, self._since = rounds, resumed_after, time.monotonic()

    def round_started(self, round_number: int, cohort: int) -> None:
        """Start the round's bar; a client answers up to four stages."""
        self._number, self._asked, self._answers = round_number, cohort * 4, 0
        self._show(self._round(round_number, 0.0), self._asked, 0)

    def client_answered(self) -> None:
        """Move the round's bar."""
        self._answers += 1
        if self._task is not None:
            text = self._round(self._number, self._answers / self._asked)
            self._progress.update(self._task, advance=1, description=text)

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Remember the accuracy."""
        mean = document["accuracy"]["mean"]
        self._known = "" if mean is None else f", accuracy {fraction(mean)}"
        self._clear()
        self.beat(self._round(document["round"], 1.0))

    def _round(self, number: int, share: float) -> str:
        """Return a round, the last accuracy, and the time left once a share of it is done."""
        left = self._left(number - 1 + share - self._before, self._rounds - self._before)
        return f"round {number} of {self._rounds}{self._known}{left}"

    def _left(self, done: float, total: float) -> str:
        """Return the time left, as far as what is done since the step began tells it."""
        spent = time.monotonic() - self._since
        return f", {spent * max(total - done, 0) / done:.0f} s left" if done > 0 else ""

    def describe(self, what: str) -> None:
        """Say what is happening."""
        if self._task is not None:
            self._progress.update(self._task, description=what)
        self.beat(what)

    def _show(self, what: str, total: int, done: int) -> None:
        self._clear()
        if done < total:
            self._task = self._progress.add_task(what, total=total, completed=done)
            self.beat(f"{what}: {done} of {total}")

    def _clear(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


HEADLINES: Final = {
    "all_classes": "accuracy on all test examples",
    "base_to_novel": "the harmonic mean",
    "leave_one_domain_out": "accuracy on the held-out domain",
}
"""The one number of each protocol that has more than the client mean."""


def _unfinished(document: Document, is_pruned: bool) -> Iterator[Said]:
    over = len(in_rounds(document["rounds"]))
    yield f"run {document['run_id']}: {unfinished_words(document, over)}"
    yield from _rounds(document)
    yield table(None, ("result", "value"), unfinished_rows(document))
    yield from (f"note: {warning}" for warning in document["warnings"])
    if is_pruned:
        yield "note: the run has not finished, and its models were erased by `runs --prune`"
    else:
        yield f"note: the run has not finished; go on with `run --resume {document['run_id']}`"


def _rounds(document: Document) -> Iterator[Said]:
    """Yield the rounds, without `--all` the newest only."""
    rounds = document["rounds"] if shows_all() else document["rounds"][-NEWEST:]
    legend = (
        f"epsilon of server/peers/observer at delta {document['delta']:g}, for a round fixed "
        'beforehand; cohort (lost); s/n: signal to noise, 95%, or "below" detection; bytes a client'
    )
    rows = [(*round_cells(one), round_remarks(one).strip()) for one in rounds]
    # Most rounds have no remarks.
    width = len(NAMES) + any(row[-1] for row in rows)
    yield table(legend, (*NAMES, "remarks")[:width], [row[:width] for row in rows])
    if len(rounds) < len(document["rounds"]):
        yield "  (earlier rounds: --all)"
    yield ""


def unfinished_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the results so far of a run that has not finished, as rows of name and value."""
    attempt = document["open_attempt"]
    rows = [("method, data", f"{document['method']} on {document['dataset']}")]
    if attempt is not None:
        text = f"round {attempt['round']}, attempt {attempt['attempt']}: it is charged already"
        rows.append(("in progress", text))
    return [*rows, *_guarantee(document["epsilon"], document, "epsilon so far")]


def run_words(summary: Document) -> Iterator[Said]:
    """Yield what a finished run came to, then the notes about its numbers."""
    what = f"{summary['method']} on {summary['dataset']}"
    yield f"run {summary['run_id']}: {what}, {len(in_rounds(summary['rounds']))} rounds"
    # A warning comes before its numbers.
    yield from (f"WARNING: {text}" for text in canary_warnings(summary.get("canaries")))
    yield from _rounds(summary)
    rows = [row for row in summary_rows(summary) if shows_all() or not DETAIL.match(row[0])]
    yield table(None, ("result", "value"), rows)
    yield from (f"note: {one.text}" for one in caveats_of(summary))


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the results of a finished run, as rows of name and value in words."""
    # Summaries of earlier versions lack some keys; their rows are left out.
    final, gain = summary["final"], summary["gain_over_local"]
    rows = [("method, data", f"{summary['method']} on {summary['dataset']}")]
    if first := summary.get("phase_two_of"):
        rows.append(("second phase of", first))
    rows += summary.get("evaluation", {}).items()
    if (training := summary.get("training")) is not None:
        rows.append(("local training", optimizer_words(training)))
    if final["accuracy"]["mean"] is None and summary["dataset"] == HELD:
        known = "is known to the clients; see evaluation.release for noised accuracy"
        rows.append(("accuracy", known))
    else:
        rows.append(("accuracy", f"{_spread(final['accuracy'])} (exact)"))
    if (phases := summary.get("phases")) is not None:
        share = phases["cost_share"]
        cost = "-" if share is None else f"{100 * share:.1f}% of the rounds' own, without measuring"
        rows += [
            ("before the second phase", _spread(phases["before"])),
            ("after the second phase", _spread(phases["after"])),
            ("time of the second phase", cost),
        ]
    rows += _protocol("", final.get("protocol"))
    if (measured := final.get("validation")) is not None and measured["mean"] is not None:
        rows.append(("validation (exact)", _spread(measured)))
    if (best := summary.get("best_on_validation")) is not None:
        chosen = f"round {best['round']}, chosen at {fraction(best['validation'])} validation"
        rows.append(("best on validation", f"{chosen}: {_spread(best['accuracy'])}"))
        rows += _protocol("best on validation, ", best["protocol"])
    if (new := final.get("new_clients")) is not None:
        rows += [
            (f"{new['clients']} new clients, as they come", _spread(new["before"])),
            (f"{new['clients']} new clients, personalised", _spread(new["after"])),
        ]
    rows += _protocol("local twins, ", summary.get("local", {}).get("protocol"))
    # Differences of the protocol's headline, by default of the clients' accuracy.
    headline = HEADLINES.get(final.get("protocol", {}).get("name"))
    of = "" if headline is None else f" of {headline}"
    chance = {
        name: f"; {one.chance('clients')}" if one else "" for name, one in gains(summary).items()
    }
    if gain is not None:
        text = f"{100 * gain:+.1f} points{of} over the same training without the others"
        rows.append(("over its twin", f"{text}{chance['gain_over_local']}"))
    worth, silent = summary["worth_of_sharing"], summary["silent"]
    if worth is not None and silent is not None:
        noise = "" if silent["noised"] is None else f", {fraction(silent['noised'])} with the noise"
        text = (
            f"{100 * worth:+.1f} points{of} over the same run with uploads of zeros "
            f"({fraction(silent['bare'])}{noise}){chance['worth_of_sharing']}"
        )
        rows.append(("worth of sharing", text))
    rows += _guarantee(final["epsilon"], summary, "epsilon")
    if (canaries := summary.get("canaries")) is not None:
        rows.append(("canaries show", _canaries(canaries)))
    rows.append(("accounting", _accounting(summary)))
    # The worst client by the other accountants that can price the run.
    others = {n: v for n, v in summary["accountants"].items() if not str(v).startswith("n/a")}
    text = ", ".join(f"{n} {epsilon(v)}" for n, v in others.items() if n != summary["accountant"])
    return [*rows, ("other accountants", text)] if summary["unit"] and text else rows


def _guarantee(
    spent: Mapping[str, Any], document: Document, name: str
) -> Iterator[tuple[str, str]]:
    """Yield epsilon by adversary, in one row if all are equal, and its meaning in guesses."""
    texts = {who: epsilon(value) for who, value in spent.items()}
    known = ", ".join(f"{text} ({who})" for who, text in texts.items())
    if len(set(texts.values())) == 1:
        known = f"{texts['server']} against server, peers and observer"
    if None in spent.values():
        known = "nothing was charged"
    yield (name, f"{known}, at delta {document['delta']:g}")
    # Summaries of earlier versions do not have it.
    if document.get("right_guesses") is not None:
        yield ("in guesses", guess_words(document))


def _spread(accuracy: Mapping[str, Any]) -> str:
    shown = {name: fraction(accuracy[name]) for name in ("mean", "std", "worst")}
    return f"{shown['mean']} mean over clients, std {shown['std']}, worst {shown['worst']}"


def _protocol(whose: str, measured: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return a protocol's numbers in words, if it has more than the clients' own accuracy."""
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


def _canaries(found: Mapping[str, Any]) -> str:
    guessed, share = found["guessed_lower_bound"], f"{100 * found['share']:.0f}%"
    coins = "" if guessed is None else f"; by guessed coins alone at least {lower_text(guessed)}"
    where = f"{found['directions']} of {found['dimension']} directions"
    return (
        f"epsilon at least {lower_text(found['lower_bound'])} at 95%, {share} of the claimed "
        f"{epsilon(found['claimed'])}; ceiling of {found['canaries']} canaries in {where}: "
        f"{lower_text(found['ceiling'])}{coins}"
    )


def _accounting(summary: Mapping[str, Any]) -> str:
    if summary["unit"] is None:
        return f"mechanism {summary['mechanism']}: no guarantee"
    where = ""
    if (subspace := summary["subspace"]) is not None:
        images = subspace.get("public_images")
        source = subspace["kind"] + ("" if images is None else f", {images} of them")
        where = f", in {subspace['rank']} of {subspace['coordinates']} directions ({source})"
    return (
        f"{summary['mechanism']}, unit {summary['unit']}, {summary['relation']}, accountant "
        f"{summary['accountant']}, sampling assumed: {summary['sampling']}, "
        f"{summary['noise_distribution']} noise from {summary['noise_source']}{where}"
    )


MEASURES: Final = ("mean", "weighted", "std", "worst")
TERMS: Final = ("unit", "relation", "delta")
"""The meaning of an epsilon: epsilons that differ in one of these cannot be compared."""
ELSEWHERE: Final = ("storage",)
"""Sections that say where a run lies, not what the run is."""


def compare_command(names: Sequence[str], storage: str, *, as_json: bool) -> None:
    """Show two runs or more side by side."""
    if len(names) < 2:
        raise ConfigError(f"RUN: {len(names)} is too few to compare; valid is two runs or more")
    with closing(open_existing(storage)) as database:
        found = resolved_once(database, names, storage, "RUN")
        runs = [require_agreement(database, run_id) for run_id in found]
    document = comparison(runs)
    answer(document, _compared_words(document), as_json=as_json)


def comparison(runs: Sequence[Agreed]) -> dict[str, Any]:
    """Return runs whose records agree side by side."""
    shown = []
    for run in runs:
        config, numbers = run.config, numbers_of(run)
        facts, gain = config.mechanism.facts, None
        if numbers.finished:
            gain = gains(numbers.document)["gain_over_local"]
        shown.append(
            {
                "run": run.records.run_id,
                "status": run.records.run.status,
                "method": config.method.name,
                "dataset": config.task.dataset,
                "rounds": len(in_rounds([row.document for row in run.spending.rounds])),
                "accuracy": {name: numbers.accuracy[name] for name in MEASURES},
                "gain_over_local": numbers.document.get("gain_over_local"),
                "gain": None if gain is None else gain.document(),
                "epsilon": numbers.epsilons,
                "mechanism": config.privacy.mechanism,
                "unit": facts.unit,
                "relation": config.relation if facts.claims else None,
                "delta": config.privacy.target_delta,
            }
        )
    # An infinite epsilon has no unit, and an equal unit would not make it comparable.
    claiming = [one for one in shown if one["unit"] is not None]
    settings = {one.records.run_id: dict(flat(one.config.model_dump(mode="json"))) for one in runs}
    # Dotted key, run, value; a run may lack a key.
    differences = {}
    for key in dict.fromkeys(key for one in settings.values() for key in one):
        of = {run: one[key] for run, one in settings.items() if key in one}
        is_alike = len(of) == len(settings) and len({json.dumps(v) for v in of.values()}) == 1
        if not is_alike and key.partition(".")[0] not in ELSEWHERE:
            differences[key] = of
    difference = None
    # Clients can be paired if they hold the same data.
    is_paired = not any(key.partition(".")[0] in ("task", "seed", "seeds") for key in differences)
    if len(runs) == 2 and is_paired:
        first, second = (per_client(numbers_of(run).final) for run in runs)
        difference = paired(first, second)
    return {
        "runs": shown,
        "difference": None if difference is None else difference.document(),
        "differences": differences,
        "epsilons_differ_in": [
            name for name in TERMS if len({json.dumps(one[name]) for one in claiming}) > 1
        ],
    }


def _compared_words(document: Document) -> Iterator[Said]:
    runs = document["runs"]
    # Two names would fill a line.
    numbers = {one["run"]: f"run {number}" for number, one in enumerate(runs, start=1)}
    yield from (f"{numbers[one['run']]}: {one['run']}, {one['status']}" for one in runs)
    rows = [
        (label, *(fraction(one["accuracy"][name]) for one in runs))
        for label, name in (("accuracy", "mean"), ("std", "std"), ("worst client", "worst"))
    ]
    gained = [one["gain_over_local"] for one in runs]
    rows.append(("over its twin", *("-" if g is None else f"{100 * g:+.1f}" for g in gained)))
    if any(one["gain"] for one in runs):
        known = [one["gain"] and Interval(**one["gain"]) for one in runs]
        rows.append(("its 95% interval", *(one.bounds() if one else "-" for one in known)))
        tested = (("no", "yes")[one.is_beyond_chance] if one else "-" for one in known)
        rows.append(("beyond chance", *tested))
    spent = {f"epsilon for {n}": [epsilon(one["epsilon"][n]) for one in runs] for n in ADVERSARIES}
    if len({tuple(row) for row in spent.values()}) == 1:
        spent = {"epsilon": spent["epsilon for server"]}
    rows += [(label, *row) for label, row in spent.items()]
    for key, of in document["differences"].items():
        texts = {run: v if isinstance(v, str) else json.dumps(v) for run, v in of.items()}
        rows.append((key, *(texts.get(run, "-") for run in numbers)))
    yield table(None, ("result, and settings that differ", *numbers.values()), rows)
    if document["difference"]:
        yield f"run 1 less run 2: {Interval(**document['difference']).words('clients')}"
    elif len(runs) == 2:
        yield "note: other data or another seed: `sotto study` tests a difference over seeds"
    if differ := document["epsilons_differ_in"]:
        yield f"note: these epsilons cannot be compared: runs differ in {', '.join(differ)}"
    for one in runs:
        if one["unit"] is None:
            mechanism = f"{one['run']}: mechanism {one['mechanism']}"
            yield f"note: {mechanism}: nothing protects its clients"
    if any(one["status"] != "finished" for one in runs):
        yield "note: a run that has not finished shows its numbers so far"


def report_command(
    run_id: str,
    compare: Sequence[str] | None,
    storage: str,
    *,
    format_: str | None,
    output: Path | None,
    audit: Path | None,
    as_json: bool,
) -> None:
    """Print a run in short, or make its privacy budget report if an option asks for one."""
    if format_ is None and not compare and output is None and audit is None:
        agreed = agreed_run(run_id, storage)
        document: Document = agreed.summary or {
            **unfinished_document(agreed),
            "warnings": claim_warnings(agreed),
        }
        is_over = agreed.summary is not None
        said = run_words(document) if is_over else _unfinished(document, agreed.records.is_pruned)
        answer(document, said, as_json=as_json)
        return
    format_ = format_ or ("html" if output is None else output.suffix.removeprefix("."))
    if as_json:
        raise ConfigError(
            "--json: prints a run in short; leave it out here, or take --format json for the "
            "privacy budget report"
        )
    if format_ not in ENCODERS:
        raise ConfigError(f"--format: {format_!r} is unknown; valid: {', '.join(ENCODERS)}")
    if format_ == "pdf":
        if output is None:
            raise ConfigError("--output: is missing; a pdf goes into a file, such as report.pdf")
        try:
            load_weasyprint()
        except ImportError as error:
            raise ConfigError(
                "--format: pdf needs WeasyPrint, which is not installed; valid: json, html, or "
                "pdf after `.venv/bin/pip install -e '.[pdf]'` in the checkout"
            ) from error
        except OSError as error:
            raise ConfigError(
                "--format: pdf needs the library Pango, which is not installed; valid: json, "
                "html, or pdf after `apt-get install libpango-1.0-0 libpangoft2-1.0-0`"
            ) from error
    if output is not None and output.exists():
        raise ConfigError(f"--output: {str(output)!r} exists already; valid is one that does not")
    with closing(open_existing(storage)) as database:
        found = resolved_once(database, (run_id, *(compare or ())), storage, "--compare")
        seen = () if audit is None else read_audit(audit)
        try:
            report = report_of(database, found, seen=seen)
        except OtherClaim as error:
            raise ConfigError(f"--audit: {str(audit)!r} is of another claim: {error}") from error
    data = ENCODERS[format_](report)
    if output is None:
        sys.stdout.write(data.decode())
        return
    write_bytes(output, data)
    console().print(f"report: {output}", soft_wrap=True)
