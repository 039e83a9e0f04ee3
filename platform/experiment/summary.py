"""The documents of a run: one a round, and the summary (`summary.json`, `metrics.*`).

Both are plain JSON. Epsilon is the maximum over clients and cumulative over rounds, infinity as
"inf"; cohort and dropped are counts; bytes are means per invited client.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.interface.subspace import subspace_of
from platform.agreement.attempts import stopping_document, stopping_warnings
from platform.disk.files import write_text
from platform.experiment.caveats import best_on_validation, evaluation_document, optimizer_document
from platform.experiment.comparisons import Newcomers, Silence
from platform.experiment.evaluation import Examined, Measured, accuracy_document
from platform.parties.scoring import LOCAL
from platform.rounds.documents import (
    ADVERSARIES,
    COLLECTION,
    DEFAULTS,
    MEASURES,
    ROUND_KEYS,
    ROUNDS,
    SCHEMA_VERSION,
    epsilon_document,
    in_rounds,
    json_number,
    shown_round,
    summary_text,
)
from platform.rounds.run import Run
from platform.rounds.spending import Spending


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a run came to beside its rounds.

    Attributes:
        final: Of the final models, after personalising.
        local: Of the local twins, None where none were trained.
        silence: Of the silent runs, None where there were none.
        newcomers: Of clients that never took part, None without any.
        before: The accuracy before personalising, as a document.
        personalising: Seconds that it took, None where nobody timed the whole of it.
        canaries: What those of an audit showed, as a document; None without.
    """

    final: Examined
    local: Measured | None
    silence: Silence | None
    newcomers: Newcomers | None
    before: Mapping[str, Any]
    personalising: float | None
    canaries: Mapping[str, Any] | None = None


def summary_document(
    run: Run,
    rounds: Sequence[Mapping[str, Any]],
    findings: Findings,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the whole run, as `summary.json` states it.

    All of the last round but what was measured anew is in its `final`; the gain over local twins is
    in the protocol's headline number.

    Args:
        run: The run.
        rounds: Its committed rounds, as stored.
        findings: What it came to beside them.
        warnings: What must be said so that its numbers are not misread.
    """
    final, local, newcomers = findings.final.test, findings.local, findings.newcomers
    silence = findings.silence
    with run.records.read() as uow:
        ledger = uow.ledger.rows(run.source)
    stopping = stopping_document(ledger, run.terms.config, run.terms.training_rounds)
    epsilon, accountants = Spending(run=run).price(), Spending(run=run).accountants()
    config, mechanism = run.terms.config, run.terms.config.mechanism
    protected = mechanism.facts.claims
    shown = [shown_round(document) for document in rounds]
    # The collection sums nothing and trains no shared tensor.
    trained = in_rounds(shown)
    last = trained[-1] if trained else {**dict.fromkeys(ROUND_KEYS), **DEFAULTS}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "phase_two_of": run.source_id,
        "config": config.name,
        "method": config.method.name,
        "dataset": config.task.dataset,
        "unit": mechanism.facts.unit,
        "mechanism": mechanism.name,
        "relation": config.relation if protected else None,
        "sampling": sampling_assumption(run) if protected else None,
        "subspace": _subspace(run),
        "noise_distribution": config.noise_distribution if protected else None,
        "noise_source": config.privacy.noise_source if protected else None,
        "delta": run.terms.budget.delta,
        "accountant": epsilon.accountant,
        "accountants": {
            name: value if isinstance(value, str) else json_number(value)
            for name, value in accountants.items()
        },
        "rounds": shown,
        "stopping": stopping,
        "final": {
            **last,
            "accuracy": accuracy_document(final.sets.get(LOCAL)),
            "validation": accuracy_document(findings.final.validation),
            "epsilon": epsilon_document(epsilon),
            "protocol": final.document(),
            "new_clients": None if newcomers is None else newcomers.document(),
            "expert_weights": findings.final.weights,
        },
        "local": {
            "accuracy": accuracy_document(None if local is None else local.local),
            "protocol": None if local is None else local.document(),
        },
        "gain_over_local": None if local is None else final.headline - local.headline,
        "worth_of_sharing": None if silence is None else final.headline - silence.headline,
        "silent": None if silence is None else silence.document(),
        "phases": _phases(run, rounds, findings),
        "best_on_validation": best_on_validation(config, rounds),
        "evaluation": evaluation_document(config),
        "training": optimizer_document(config),
        **({} if findings.canaries is None else {"canaries": dict(findings.canaries)}),
        "warnings": [*warnings, *stopping_warnings(stopping)],
    }


def _subspace(run: Run) -> dict[str, Any] | None:
    """Say in which directions uploads live, None where they are whole."""
    method = subspace_of(run.terms.method)
    if method is None:
        return None
    return {
        "kind": method.kind,
        "rank": method.rank,
        "coordinates": method.whole,
        "public_images": None if method.public is None else method.public.num_examples,
    }


def _phases(
    run: Run,
    documents: Sequence[Mapping[str, Any]],
    findings: Findings,
) -> dict[str, Any] | None:
    """Say what the second phase changed and took, where the pool is made once, after the rounds.

    No second is of measuring. The share is that of the collection and of what followed it in the
    training rounds' seconds; None where nobody timed the whole of it.
    """
    if not run.terms.fetches_at_end:
        return None
    trained = in_rounds(documents)
    training = sum(map(_working_seconds, trained))
    collecting = sum(_working_seconds(d) for d in documents if d not in trained)
    share = None
    personalising = findings.personalising
    if training and personalising is not None:
        share = (collecting + personalising) / training
    return {
        "before": findings.before,
        "after": accuracy_document(findings.final.test.sets.get(LOCAL)),
        "seconds": {
            ROUNDS: round(training, 3),
            COLLECTION: round(collecting, 3),
            "second": None if personalising is None else round(personalising, 3),
        },
        "cost_share": share,
    }


def _working_seconds(document: Mapping[str, Any]) -> float:
    return float(document["seconds"] - document["measuring_seconds"])


def sampling_assumption(run: Run) -> str:
    """Return what sampling the stated epsilons count on, in words."""
    training, config = run.terms.protection.training, run.terms.config
    if training is not None and training.sampling_probability < 1.0:
        return f"Poisson batches, probability {training.sampling_probability:g}, kept secret"
    if run.terms.cohort_kind is None:
        return "none"
    drawn = f"{config.cohort_size} of {config.task.clients} clients"
    if run.terms.cohort_kind == "poisson":
        drawn = f"Poisson cohorts, probability {config.cohort_rate:g}"
    return f"for observer: {drawn}, kept secret; losses do not depend on who else was drawn"


def write_run_files(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json` and the files of metrics, each whole or not at all."""
    write_text(folder / "summary.json", summary_text(summary))
    for name, text in metrics_files(summary["rounds"]).items():
        write_text(folder / name, text)


def metrics_files(rounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the rounds as tools of other people read them: by file name, what is in it."""
    return {"metrics.csv": metrics_csv(rounds), "metrics.jsonl": metrics_jsonl(rounds)}


def metrics_jsonl(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return one JSON object a line and round, as the summary has it."""
    return "".join(f"{json.dumps(document, allow_nan=False)}\n" for document in rounds)


def metrics_csv(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return one line a round."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = ("mean", "weighted", "std", "worst")
    plain = [name for name in MEASURES if name != "signal_to_noise"]
    columns = (*plain, "signal_to_noise_low", "signal_to_noise_high")
    writer.writerow(
        (
            *("round", "phase", "cohort", "dropped"),
            *(f"accuracy_{score}" for score in scores),
            *("validation", "released_validation"),
            *(f"epsilon_{name}" for name in ADVERSARIES),
            *columns,
        )
    )
    for document in rounds:
        interval = document["signal_to_noise"] or {}
        writer.writerow(
            (
                *(document[name] for name in ("round", "phase", "cohort", "dropped")),
                *(document["accuracy"][score] for score in scores),
                document["validation"]["mean"],
                (document["released_validation"] or {}).get("mean"),
                *(document["epsilon"][name] for name in ADVERSARIES),
                *(document[name] for name in plain),
                *(interval.get(end) for end in ("low", "high")),
            )
        )
    return text.getvalue()
