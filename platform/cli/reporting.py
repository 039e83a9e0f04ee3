"""`report`: what a run gave and what it gave away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from platform.agreement.statements import unfinished_document
from platform.cli.access import agreed_run
from platform.cli.output import console, epsilon, fraction, print_json, printable, table
from platform.cli.watching import heading, round_line
from platform.config.rules import HELD
from platform.experiment.caveats import canary_warnings, lower_text, optimizer_words
from platform.reports.hazards import claim_warnings, unfinished_words
from platform.rounds.documents import in_rounds

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
