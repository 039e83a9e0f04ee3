"""A run from its first missing round to its report, simulated or with clients elsewhere.

`execute` runs a simulation: after the last round clients personalise, and the models are measured
and compared with local training. `conduct` runs a federation, whose coordinator never sees clients'
images: it measures nothing, and accuracy is only what clients release with their uploads, noised.

A run has a document for each round, and the summary (`summary.json`, `metrics.*`), all plain JSON.
Epsilon is the maximum over clients and cumulative over rounds, infinity as "inf"; cohort and
dropped are counts; bytes are means per invited client.

The *canaries* of an audit bound epsilon from below by the move of the model from its start to its
end, which the observer sees. If the server adds mean changes, that move adds up the sums of all
rounds, divided by the clients that count. A canary sends the same update in each round, so single
rounds would show nothing more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from methods.interface.subspace import subspace_of
from platform.agreement import require_agreement
from platform.agreement.attempts import stopping_document, stopping_warnings
from platform.agreement.statements import finished_digests, right_guesses
from platform.disk.files import only_process_of, write_text
from platform.disk.log_files import bytes_digest, rows_digest
from platform.disk.opening import mark_interrupted
from platform.errors import ClientsSilent, RecordsDisagree, Unwritable
from platform.experiment.caveats import (
    Caveat,
    best_on_validation,
    evaluation_document,
    optimizer_document,
    run_warnings,
)
from platform.experiment.comparisons import measure_newcomers, measure_silence, measure_twins
from platform.experiment.evaluation import (
    Examined,
    Measured,
    accuracy_document,
    examine_before,
    examine_last,
)
from platform.experiment.resuming import require_spent_elsewhere, take_over, take_up
from platform.experiment.simulation import Simulation
from platform.parties.scoring import LOCAL
from platform.protection.charging import as_releases
from platform.rounds.asking import personalise, pool_gone
from platform.rounds.attempts import Spending
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import (
    ADVERSARIES,
    COLLECTION,
    DEFAULTS,
    MEASURES,
    NO_ACCURACY,
    ROUND_KEYS,
    ROUNDS,
    SCHEMA_VERSION,
    csv_text,
    epsilon_document,
    in_rounds,
    json_number,
    shown_round,
    summary_text,
)
from platform.rounds.loop import Federation
from platform.rounds.observing import Observer
from platform.rounds.run import Progress, Run
from platform.wire.layout import flatten
from privacy.auditing import canary_bound, mu_of
from storage import Database, StorageError, StorageFull


def execute(simulation: Simulation, observer: Observer) -> dict[str, Any]:
    """Run the missing rounds of a simulation, and report it; return the summary.

    Raises:
        RunBusy: If another process runs it; then nothing is done.
        RunStopped: If a round was aborted, or a client cannot be heard; the run can be resumed.
    """
    folders = [simulation.folder]
    if simulation.run.source_id is not None:
        # A second phase also writes the stores of the first run's clients.
        folders.insert(0, simulation.folder.with_name(simulation.run.source_id))
    run, plan, database = simulation.run, simulation.learning.evaluation, simulation.database
    # The locks come before all reads that decide the next step of the run.
    with alone_with(run.run_id, database, folders):
        if is_finished(run):
            return dict(summary_of(run, database, run.run_id))
        if run.source_id is None:
            require_spent_elsewhere(run, database)
            progress = Federation(run, observer).run_rounds()
        else:
            rounds = run.terms.config.rounds
            observer.run_started(run.run_id, rounds, rounds)
            progress = take_up(run, run.source_id)
        documents = documents_of(run)
        verdict = judge_canaries(simulation, progress, documents)
        # Accuracy before clients personalise: the last round's, or measured now. After an
        # interrupted finish it is lost.
        before: Mapping[str, Any] = documents[-1]["accuracy"] if documents else NO_ACCURACY
        if before["mean"] is None and run.terms.fetches_at_end and not run.source_id:
            found = examine_before(plan, run, progress)
            before = before if found is None else found.document()
        findings = Findings(
            personalising=personalise(run, progress),
            final=examine_last(plan, run, progress.state),
            newcomers=measure_newcomers(simulation, progress.state),
            local=None if run.source_id else measure_twins(simulation, observer, documents),
            silence=measure_silence(simulation, observer, documents),
            before=before,
            canaries=verdict,
        )
        return _reported(simulation, progress, documents, findings)


UNSEEN = Examined(Measured("client_mean", {}), None)
"""A coordinator measures nothing, as it sees no client's images."""


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """A run with its coordinator's folder and database.

    Before a round, `admit` admits clients that have come since.
    """

    run: Run
    folder: Path
    database: Database
    admit: Callable[[], None] = lambda: None


def conduct(conducted: Conducted, observer: Observer) -> dict[str, Any]:
    """Run the missing rounds of a federation, and report it; see `execute`."""
    run, database = conducted.run, conducted.database
    with alone_with(run.run_id, database, [conducted.folder]):
        if is_finished(run):
            return dict(summary_of(run, database, run.run_id))
        require_spent_elsewhere(run, database)
        progress = Federation(run, observer, conducted.admit).run_rounds()
        seconds = personalise(run, progress)
        documents = documents_of(run)
        progress = replace(progress, uncollected=pool_gone(run, progress))
        findings = Findings(final=UNSEEN, before=NO_ACCURACY, personalising=seconds)
        return _reported(conducted, progress, documents, findings)


def _reported(
    of: Simulation | Conducted,
    progress: Progress,
    documents: Sequence[Mapping[str, Any]],
    findings: Findings,
) -> dict[str, Any]:
    """Check the records of a run whose rounds are over, and write its report."""
    run, database = of.run, of.database
    remarks: Sequence[str] = ()
    revealed: tuple[bytes, Mapping[str, Any]] | None = None
    database.verify_integrity()
    require_agreement(database, run.run_id, run.terms.config.mechanisms)
    counted: dict[str, int] = {}
    if isinstance(of, Simulation):
        remarks, counted = of.learning.evaluation.remarks, {"classes": len(of.learning.classes)}
        if of.canaries is not None and findings.canaries is not None:
            revealed = (of.canaries.key, findings.canaries)
    warnings = run_warnings(
        run,
        documents,
        ended_early=progress.ended_early,
        uncollected=progress.uncollected,
        remarks=remarks,
        canaries=findings.canaries,
    )
    summary = summary_document(run, documents, findings, warnings) | counted
    if run.source_id is not None:
        take_over(summary, summary_of(run, database, run.source_id))
    close_run(run, of.folder, summary, progress.ended_early, canaries=revealed)
    return summary


@contextmanager
def alone_with(run_id: str, database: Database, folders: Sequence[Path]) -> Iterator[None]:
    """Lock a run's folders for this process, and mark the run if it is interrupted.

    They include the folder of each run whose clients' stores are written too. If another process
    runs in one of them, nothing is done.
    """
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(only_process_of(folder))
        try:
            yield
        except (KeyboardInterrupt, StorageFull, Unwritable, ClientsSilent):
            with suppress(StorageError):
                mark_interrupted(database, run_id)
            raise


def is_finished(run: Run) -> bool:
    """Return whether the run's row says that it has finished."""
    with run.records.read() as uow:
        return uow.runs.get(run.run_id).status == "finished"


def summary_of(run: Run, database: Database, run_id: str) -> Mapping[str, Any]:
    """Return a finished run's summary, which agrees with its records."""
    mechanisms = run.terms.config.mechanisms
    summary = require_agreement(database, run_id, mechanisms).summary
    if summary is None:
        raise RecordsDisagree(run_id, "it has finished, and has no summary")
    return summary


def documents_of(run: Run) -> list[Mapping[str, Any]]:
    """Return the documents of a run's committed rounds."""
    with run.records.read() as uow:
        return [row.document for row in uow.rounds.all(run.source)]


def close_run(
    run: Run,
    folder: Path,
    summary: dict[str, Any],
    ended_early: str | None,
    *,
    canaries: tuple[bytes, Mapping[str, Any]] | None = None,
) -> None:
    """Write the report, and write its digest and those of its sources into the audit log.

    The files are written before the transaction ends, so a finished run always has its report. A
    run that is killed between the two has not finished; resuming it writes both anew. The head of
    the audit log is added to the summary. An audit's canaries come with their key and their
    document.
    """
    with run.records.write() as uow:
        state = uow.states.latest(run.run_id)
        digests = {
            **finished_digests(folder, summary, metrics_files(summary["rounds"])),
            "ledger_sha256": rows_digest(uow.ledger.rows(run.run_id), with_status=True),
            "state_sha256": None if state is None else bytes_digest(state.blob),
        }
        trail = AuditTrail(uow.audit, run.run_id)
        if canaries is not None:
            trail.canaries_revealed(*canaries)
        trail.run_finished(ended_early, digests)
        head = uow.audit.head(run.run_id)
        summary["audit_head"] = {"count": head.count, "hash": head.hash}
        write_run_files(folder, summary)
        uow.runs.set_status(run.run_id, "finished")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The results of a run beside its rounds; None for each result that was not measured.

    Attributes:
        final: The results of the final models, after personalising.
        before: The accuracy before personalising, as a document.
        personalising: Seconds that clients took to personalise; None after an interruption.
        silence: The results of the silent runs, `bare` and `noised`.
        newcomers: The results of clients that never took part, as a document.
        canaries: The results of an audit's canaries, as a document.
    """

    final: Examined
    before: Mapping[str, Any]
    personalising: float | None
    local: Measured | None = None
    silence: Mapping[str, Measured | None] | None = None
    newcomers: Mapping[str, Any] | None = None
    canaries: Mapping[str, Any] | None = None


def summary_document(
    run: Run, rounds: Sequence[Mapping[str, Any]], findings: Findings, warnings: Sequence[Caveat]
) -> dict[str, Any]:
    """Return the whole run, as `summary.json` states it.

    `final` holds the last round with the numbers that were measured anew; the gain over local twins
    is in the protocol's headline number.
    """
    final, local, silence = findings.final.test, findings.local, findings.silence or {}
    silent = {name: None if one is None else one.headline for name, one in silence.items()}
    # The better of the silent runs is what sharing is compared with.
    best = max(filter(None, silence.values()), key=lambda one: one.headline, default=None)
    with run.records.read() as uow:
        ledger = uow.ledger.rows(run.source)
    stopping = stopping_document(ledger, run.terms.config, run.terms.training_rounds)
    stopped = [Caveat("stopping", text) for text in stopping_warnings(stopping)]
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
        "right_guesses": right_guesses(ledger, config),
        "stopping": stopping,
        "final": {
            **last,
            "accuracy": accuracy_document(final.sets.get(LOCAL)),
            "validation": accuracy_document(findings.final.validation),
            "epsilon": epsilon_document(epsilon),
            "protocol": final.document(),
            "new_clients": findings.newcomers,
            "expert_weights": findings.final.weights,
        },
        "local": {
            "accuracy": accuracy_document(None if local is None else local.local),
            "protocol": None if local is None else local.document(),
        },
        "gain_over_local": None if local is None else final.headline - local.headline,
        "worth_of_sharing": None if best is None else final.headline - best.headline,
        "silent": None if best is None else {**silent, "per_client": best.per_client},
        "phases": _phases(run, rounds, findings),
        "best_on_validation": best_on_validation(config, rounds),
        "evaluation": evaluation_document(config),
        "training": optimizer_document(config),
        **({} if findings.canaries is None else {"canaries": dict(findings.canaries)}),
        "warnings": [asdict(one) for one in (*warnings, *stopped)],
    }


def _subspace(run: Run) -> dict[str, Any] | None:
    """Return the subspace of uploads; None where uploads are whole."""
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
    run: Run, documents: Sequence[Mapping[str, Any]], findings: Findings
) -> dict[str, Any] | None:
    """Return accuracies and costs of the second phase, where the pool is made after the rounds.

    Seconds leave measuring out. The share is the time of the collection and of personalising over
    the time of the training rounds; None where an interruption left personalising without a time.
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
    """Return the sampling on which the stated epsilons rely, in words."""
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
    """Return files of rounds for other tools, by name: a line a round, as CSV and as JSON."""
    scores = ("mean", "weighted", "std", "worst")
    plain = [name for name in MEASURES if name != "signal_to_noise"]
    columns = (
        *("round", "phase", "cohort", "dropped"),
        *(f"accuracy_{score}" for score in scores),
        *("validation", "released_validation"),
        *(f"epsilon_{name}" for name in ADVERSARIES),
        *(*plain, "signal_to_noise_low", "signal_to_noise_high"),
    )
    rows = []
    for document in rounds:
        interval = document["signal_to_noise"] or {}
        rows.append(
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
    lines = (f"{json.dumps(document, allow_nan=False)}\n" for document in rounds)
    return {"metrics.csv": csv_text(columns, rows), "metrics.jsonl": "".join(lines)}


CONFIDENCE = 0.95


def judge_canaries(
    simulation: Simulation, progress: Progress, documents: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Open the canaries' coins and bound epsilon by the move of the model.

    Returns the bound and its circumstances, as the summary states them; None without canaries, or
    where no round had a result.
    """
    canaries, run = simulation.canaries, simulation.run
    rounds = sum(bool(document["survivors"]) for document in in_rounds(documents))
    if canaries is None or not rounds:
        return None
    config, pseudonyms = run.terms.config, run.roll.pseudonyms
    spec, counted = run.terms.protection.layout.spec, config.cohort_size
    before = run.terms.initial_state()
    moved = flatten({n: np.subtract(progress.state[n], before[n], dtype=float) for n in spec}, spec)
    norm = config.privacy.clipping_norm or 0.0
    claimed, delta = Spending(run=run).price().observer, run.terms.budget.delta
    # One canary was charged like all others.
    with run.records.read() as uow:
        ledger = uow.ledger.rows(run.run_id)
    own = [row for row in ledger if row.pseudonym == pseudonyms[config.canary_names[0]]]
    charged = as_releases([row for row in own if row.status != "aborted"], config.mechanisms)
    deviation = max(row.standard_deviation for row in charged)
    # The root of the summed squares of sensitivity over standard deviation.
    factors = {"replace_one": 2.0, "add_or_remove_one": 1.0}
    ratios = (factors[row.relation] * row.clipping_norm / row.standard_deviation for row in charged)
    claimed_mu = min(math.sqrt(sum(ratio * ratio for ratio in ratios)), mu_of(claimed, delta))
    # A mean is over all clients that are not canaries.
    bound = canary_bound(
        canaries, moved * counted, claimed_mu=claimed_mu, delta=delta, sent=rounds * norm
    )
    noise = deviation * math.sqrt(rounds * canaries.dimension)
    return {
        "canaries": canaries.number,
        "directions": canaries.directions,
        "dimension": canaries.dimension,
        "relation": canaries.relation,
        "confidence": CONFIDENCE,
        "delta": delta,
        "lower_bound": bound.epsilon,
        "claimed": claimed,
        "share": bound.epsilon / claimed,
        "ceiling": bound.ceiling,
        "guessed_lower_bound": bound.guessed,
        "seen_mu": bound.estimate,
        "is_above_claim": bound.epsilon > claimed,
        "is_refuted": bound.is_refuted,
        "is_blind": bound.is_blind,
        "claimed_mu": claimed_mu,
        "seen_deviation": bound.deviation / (deviation * math.sqrt(rounds)),
        "share_of_noise": bound.length * norm * rounds / noise,
        "pseudonyms": sorted(pseudonyms[name] for name in config.canary_names),
    }
