"""The privacy budget report of a run, as a value: from agreed records to sections, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from platform.agreement.budgets import RunBudget
from platform.data.catalogue import dataset_infos
from platform.reports.blocks import (
    Basis,
    Block,
    Facts,
    Figure,
    Line,
    Plot,
    Section,
    Table,
    Words,
    bullets,
    paragraph,
    points_text,
    share_text,
    words,
)
from platform.reports.empirical import SeenChannel, empirical_section, refuted, require_same_claim
from platform.reports.evidence import bases_of, evidence_section
from platform.reports.guarantee import odds_section, right_guesses, trust_section, unit_section
from platform.reports.hazards import hazards_section, report_warnings
from platform.reports.spending import releases_section, spending_section
from platform.reports.subject import LogView, Subject
from platform.rounds.documents import ADVERSARIES
from privacy import MechanismFacts

SCHEMA_VERSION = 1

LAWS: Final = {
    "gaussian": "Gaussian, drawn in floating point",
    "discrete_gaussian": "discrete Gaussian, drawn as integers on a grid",
    "skellam": "Skellam, drawn as integers on a grid",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A privacy budget report.

    Attributes:
        run_id: The run.
        title: Of the document.
        lead: What it is about, at a glance.
        warnings: To be read first, most important first.
        odds: Right guesses of a hundred, at most, by adversary; None where nothing tells yet.
        sections: In order.
        bases: What figures rest on; the n-th is shown as number n.
    """

    run_id: str
    title: str
    lead: Facts
    warnings: tuple[str, ...]
    odds: tuple[tuple[str, Figure | None], ...]
    sections: tuple[Section, ...]
    bases: tuple[Basis, ...]


def budget_report(
    budget: RunBudget,
    compared: Sequence[RunBudget] = (),
    *,
    made: str,
    log: LogView | None = None,
    seen: Sequence[SeenChannel] = (),
) -> Report:
    """Return the report of a run.

    Args:
        budget: The run, whose records agree, and what it has spent.
        compared: Runs to stand beside it.
        made: When the document is made, as people read it.
        log: The log that the records are in; None where nobody read it.
        seen: What an audit of the run's configuration saw; empty where there was none.

    Raises:
        OtherClaim: If the audit is of another claim than the run's.
    """
    subject, others = Subject(budget, log), [Subject(one, log) for one in compared]
    require_same_claim(subject, seen)
    sections = (
        unit_section(subject),
        odds_section(subject),
        spending_section(subject),
        releases_section(subject),
        *(
            [Section("comparison", "Beside other runs", tuple(_comparison(subject, others)))]
            if others
            else []
        ),
        trust_section(subject),
        limits_section(subject),
        composition_section(subject),
        Section(
            "construction",
            "Mechanism, randomness, floating point, side channels",
            tuple(_construction(subject)),
        ),
        Section("use", "What the run was good for", tuple(_usefulness(subject))),
        Section(
            "data", "Where the data came from, security, retention", tuple(_provenance(subject))
        ),
        empirical_section(subject, seen),
        Section("log", "Audit log and versions", tuple(_log(subject))),
        hazards_section(subject),
    )
    bases = bases_of(sections)
    return Report(
        run_id=subject.run_id,
        title=f"Privacy budget report of run {subject.run_id}",
        lead=_lead(subject, made),
        warnings=(*refuted(seen), *report_warnings(subject)),
        odds=tuple((name, right_guesses(subject, name)) for name in ADVERSARIES),
        sections=(*sections, evidence_section((subject, *others), bases)),
        bases=bases,
    )


def _lead(subject: Subject, made: str) -> Facts:
    config = subject.agreed.config
    over = len(subject.trained)
    done: Any = "finished" if subject.summary is not None else "not finished"
    return Facts(
        (
            ("Run", words(subject.run_id)),
            ("Configuration", words(config.name)),
            ("Status", words(f"{done}, {over} of {config.rounds} rounds are over")),
            ("Method and data", words(f"{config.method.name} on {config.task.dataset}")),
            ("Mechanism", words(subject.facts.name)),
            ("Made", words(made)),
        )
    )


def _comparison(subject: Subject, others: Sequence[Subject]) -> Iterator[Block]:
    for other in others:
        differ = differences(subject, other)
        if differ:
            yield paragraph(
                f"The epsilons of this run and of {other.run_id} are not directly comparable: "
                f"{'; '.join(differ)}."
            )
        else:
            yield paragraph(
                f"This run and {other.run_id} have the same unit, relation and delta, so their "
                "epsilons may be compared adversary by adversary. They are spent side by side "
                "where the same people's data are in both."
            )
    yield Table(
        "This run first, then the others",
        (
            "Run",
            "Status",
            "Unit, relation, delta",
            *(f"Epsilon, {name}" for name in ADVERSARIES),
            "Right guesses of 100 against the server, at most",
            "Mean accuracy",
            "Worst client",
        ),
        tuple(_row(one) for one in (subject, *others)),
    )


def differences(one: Subject, other: Subject) -> list[str]:
    """Return the differences that make the epsilons of two runs incomparable."""
    pairs = {
        "unit": (one.facts.unit or "none", other.facts.unit or "none"),
        "relation": (_relation(one), _relation(other)),
        "delta": (f"{one.delta:g}", f"{other.delta:g}"),
    }
    return [
        f"{name} {mine} here, {theirs} there"
        for name, (mine, theirs) in pairs.items()
        if mine != theirs
    ]


def _relation(subject: Subject) -> str:
    return subject.agreed.config.relation if subject.facts.claims else "none"


def _row(subject: Subject) -> tuple[Words, ...]:
    return (
        words(subject.run_id),
        words(subject.agreed.records.run.status),
        words(f"{subject.facts.unit or 'none'}, {_relation(subject)}, {subject.delta:g}"),
        *(words(subject.epsilon(name)) for name in ADVERSARIES),
        words(right_guesses(subject, "server") or "not known yet"),
        _accuracy(subject, "mean"),
        _accuracy(subject, "worst"),
    )


def _accuracy(subject: Subject, which: str) -> Words:
    value = None if subject.summary is None else subject.summary["final"]["accuracy"][which]
    if value is None:
        return words("not measured")
    return words(Figure(share_text(value), value, subject.stated(f"final.accuracy.{which}")))


def _log(subject: Subject) -> Iterator[Block]:
    records = subject.agreed.records
    head, run = records.head, records.run
    text = f"{head.count}:{head.hash}"
    checking = f"python -m platform.coordinator audit verify --run {run.run_id} --head {text}"
    basis = Basis(
        what="the run's whole audit log, each entry hashed with the one before",
        run_id=run.run_id,
        entries=(head.count,),
        check=checking,
    )
    yield Facts(
        (
            ("Head of the run's log", words(Figure(text, text, basis))),
            *_over_all_runs(subject),
            ("Digest of the configuration", words(run.config_digest)),
            ("Status of the run", words(run.status)),
        )
    )
    yield paragraph(
        "Records were compared before this document was made: ledger, rounds, audit log, run "
        "folder and, in a simulation, the clients' own ledgers agree. Kept with somebody else, "
        "the head shows later that nothing before it was changed, removed or cut."
    )
    try:
        versions = json.loads(run.versions_json)
    except (ValueError, RecursionError):
        return
    if isinstance(versions, dict) and versions:
        rows = [
            (words(str(name)), words("unknown" if text is None else str(text)))
            for name, text in versions.items()
        ]
        yield Table("What ran", ("Part", "Version"), tuple(rows))


def _over_all_runs(subject: Subject) -> Iterator[tuple[str, Words]]:
    log = subject.log
    if log is None:
        yield "Log over all runs", words("nobody read it")
        return
    basis = Basis(
        what="all leaves of the log, recomputed from their rows, and every head that was kept",
        run_id=subject.run_id,
        check="python -m platform.coordinator audit verify",
    )
    size = Figure(str(log.size), log.size, basis)
    yield "Log over all runs", words(size, f" leaves, root {log.root}")
    if log.is_signed:
        yield "Heads signed by", words(f"{log.key}; {log.heads} are kept beside the database")
    else:
        yield "Heads signed by", words("nobody: no head is signed by a key that is known")


def _provenance(subject: Subject) -> Iterator[Block]:
    config = subject.agreed.config
    task = config.task
    infos = (info for info in dataset_infos() if info.name == task.dataset)
    origins = (f"{info.title}; {info.source}" for info in infos)
    origin = next(origins, "unknown to this version of the program")
    public, section = "none was declared", config.public_data
    if section is not None:
        name = section.dataset or task.dataset
        public = (
            f"{name}, declared public by whoever wrote the configuration, which nobody can check"
        )
    model = "none" if task.model is None else task.model.name
    pretrained = "" if task.model is None else task.model.pretrained or "the weights it ships with"
    yield Facts(
        (
            ("Data set", words(f"{task.dataset}: {origin}")),
            ("Clients", words(_clients(subject))),
            ("Public data", words(public)),
            ("Pretrained model", words(f"{model}{', ' if pretrained else ''}{pretrained}")),
            ("Run created", words(subject.agreed.records.run.created)),
        )
    )
    yield paragraph(
        "Open: by what right the data were collected, with whose consent, and whether fewer would "
        "have done, is in no record of a run. Whoever operates it has to say."
    )
    yield bullets(*_security(subject), *_retention(subject))


def _clients(subject: Subject) -> str:
    config = subject.agreed.config
    if subject.is_simulated:
        return (
            f"{config.task.clients}, simulated in one process from one data set, dealt out as "
            f"{config.task.partition.kind}; nobody's data were protected from the experimenter"
        )
    return (
        f"{config.task.clients}, each a process with data of its own, which do not leave it but "
        "as the releases above"
    )


def _security(subject: Subject) -> Iterator[str]:
    yield (
        "Security at rest: database, stores and run folders are readable by their owner's account "
        "only. They are not encrypted by this program: disks, backups and whoever administers the "
        "machine are the operator's to secure."
    )
    if subject.is_simulated:
        yield "Security on the way: there was no way; all clients were in one process."
    else:
        yield (
            "Security on the way: messages travel over the transport that was set up for this "
            "federation; which one, and its certificates, is in no record of the run."
        )
    yield (
        "Access: whoever may read the coordinator's database reads pseudonyms, charges and who "
        "took part. Who that is, is the operator's to say."
    )


def _retention(subject: Subject) -> Iterator[str]:
    yield (
        "Kept for good: ledger, audit log, rounds, and the newest two states of the model. "
        "Ledger rows are never deleted, as what was released cannot be taken back."
    )
    yield (
        "Deleted when a round is committed: what the coordinator had received at each stage. A "
        "client's data stay where they were; features that a frozen model made of them stay in "
        "its cache, in the clear, until `cache clear` or until room is needed."
    )
    generations = subject.agreed.config.pool.generations
    if subject.agreed.records.generations or any(r.channel == "pool" for r in subject.rows):
        yield (
            f"The pool: entries live for {generations} generation"
            f"{'' if generations == 1 else 's'}, and are deleted by whole generations."
        )
    yield (
        "A client that leaves for good takes its data with it and has its pool generations "
        "erased; what it released before stays in the model and in its ledger."
    )


def _usefulness(subject: Subject) -> Iterator[Block]:
    if subject.summary is None:
        yield paragraph("The run has not finished, so nothing final was measured.")
        return
    summary = subject.summary
    final, told = summary["final"], summary.get("evaluation", {})
    measured_on = "; ".join(str(text) for text in told.values())
    if subject.is_simulated:
        yield paragraph(
            "These numbers are exact, as an experimenter sees them who holds all the data of a "
            "simulation. They carry no noise and are in no ledger."
        )
    yield Facts(
        (
            ("Method and data", words(f"{summary['method']} on {summary['dataset']}")),
            ("Measured on", words(measured_on or "each client's own test examples")),
            ("Mean over clients", _share(subject, final["accuracy"], "mean")),
            ("Worst client", _share(subject, final["accuracy"], "worst")),
            ("Spread over clients (standard deviation)", _share(subject, final["accuracy"], "std")),
            ("Gain over each client alone", _points(subject, "gain_over_local")),
            ("Worth of sharing", _points(subject, "worth_of_sharing")),
        )
    )
    yield paragraph(
        "Gain over each client alone is what the federation brought beyond clients that train by "
        "themselves, with the same method and as many steps. Worth of sharing compares with the "
        "same run in which every upload is zero. The worst client is shown because noise weighs "
        "most on those who are few: a mean can hide them."
    )
    found = [d for d in subject.trained if d["accuracy"]["mean"] is not None]
    if len(found) < 2:
        return
    lines = tuple(
        Line(label, tuple((float(d["round"]), float(d["accuracy"][which])) for d in found))
        for label, which in (("mean over clients", "mean"), ("worst client", "worst"))
    )
    ends = "; ".join(f"{line.label}: {share_text(line.points[-1][1])}" for line in lines)
    yield Plot(
        title="Accuracy, round by round",
        says=f"Accuracy after the last round shown: {ends}.",
        across="Round",
        up="Accuracy",
        lines=lines,
        percent=True,
    )


def _share(subject: Subject, accuracy: Mapping[str, Any], which: str) -> Words:
    value = accuracy[which]
    if value is None:
        return words("not measured here: it is known to the clients only")
    return words(Figure(share_text(value), value, subject.stated(f"final.accuracy.{which}")))


def _points(subject: Subject, field: str) -> Words:
    value = None if subject.summary is None else subject.summary[field]
    if value is None:
        return words("not measured in this run")
    return words(Figure(points_text(value), value, subject.stated(field)))


def _construction(subject: Subject) -> Iterator[Block]:
    config = subject.agreed.config
    mechanism, law = config.mechanism, config.noise_distribution
    sampling = "see the kinds of release"
    if subject.summary is not None:
        sampling = str(subject.summary["sampling"] or "none")
    yield Facts(
        (
            ("Mechanism", words(f"{mechanism.name}: {_where(mechanism.facts)}")),
            (
                "Law of the noise",
                words(LAWS[config.noise_distribution] if config.noise_distribution else "none"),
            ),
            ("Randomness of the noise", words(_source(subject))),
            ("Keys and masks", words("always the operating system's entropy")),
            ("Floating point", words(_arithmetic(law))),
            ("Clipping", words(_clipping(subject))),
            ("Sampling counted on", words(sampling)),
        )
    )
    yield bullets(*_side_channels(subject))


def _where(facts: MechanismFacts) -> str:
    if not facts.claims:
        return "no noise anywhere"
    if facts.is_in_steps:
        return "noise in every local training step, on the client"
    if facts.is_shared_out:
        return "every client adds a share of the noise, and only a sum has enough of it"
    if facts.is_bare_to_server:
        return "the coordinator adds noise to the sum, having seen it without"
    return "every client adds all of the noise to its clipped upload"


def _source(subject: Subject) -> str:
    if not subject.facts.claims:
        return "none is needed"
    if subject.agreed.config.privacy.noise_source == "seeded":
        return (
            "a seed that stands in the configuration: whoever has it can compute the noise and "
            "take it off again, so it protects nobody"
        )
    return "the operating system's entropy"


def _arithmetic(distribution: str | None) -> str:
    if distribution is None:
        return "there is no noise that its lowest bits could betray"
    if distribution == "gaussian":
        return (
            "not covered: floating-point noise is not a real Gaussian, and the lowest bits of a "
            "noised number may tell of the number without noise"
        )
    return "covered: noise and what it is added to are integers, and samplers are exact"


def _clipping(subject: Subject) -> str:
    facts, section = subject.facts, subject.agreed.config.privacy
    if facts.is_in_steps:
        return f"each record's gradient to {section.per_sample_clipping_norm:g}"
    if not facts.claims:
        return "none"
    adaptive = section.adaptive_clipping is not None
    how = ", then following a noised quantile that is charged with the upload" if adaptive else ""
    return f"each client's whole upload to {section.clipping_norm:g}{how}"


def _side_channels(subject: Subject) -> Iterator[str]:
    if subject.facts.unit == "client":
        yield (
            "Failures: whatever fails inside a client between its data and its upload becomes the "
            "zero vector, noised and charged like any other, so that nobody sees who failed."
        )
    elif subject.facts.unit == "record":
        yield "Failures: a record that is not finite counts as zero inside the noised sum."
    else:
        yield "Failures: a client that fails says so, and who fails may tell of its data."
    yield (
        "Timing, memory, power and crashes of native code: not covered. Python cannot reliably "
        "erase secrets from memory."
    )
    yield ("Who sends how much and when is not hidden; neither is a client that is late or silent.")
    origin = subject.method_origin
    if origin is not None:
        yield (
            f"The method {subject.agreed.config.method.name!r} is code from outside this package "
            f"({origin}); that it keeps to its side of the interface is not this package's word."
        )


def limits_section(subject: Subject) -> Section:
    """Return the section about leaks that no epsilon bounds."""
    return Section(
        "limits",
        "What is not protected",
        (
            paragraph("No epsilon in this document bounds the following, but where it says so."),
            bullets(
                *_what_is_seen(subject),
                *_what_was_chosen(subject),
                *_pool(subject),
                *_the_rest(subject),
            ),
        ),
    )


def _what_is_seen(subject: Subject) -> Iterator[str]:
    facts = subject.facts
    if facts.claims:
        yield (
            "Sizes: how many examples a client has is not sent, as all weigh alike here; how many "
            "clients there are is public."
        )
    else:
        yield (
            "Sizes: clients weigh by their number of examples, which sums tell of; how many "
            "clients there are is public."
        )
    who = (
        "who was drawn is the coordinator's secret, and the observer's epsilon counts on it"
        if any(row.cohort_kind is not None for row in subject.rows)
        else "who takes part in which round is known to the server, and partly to others"
    )
    yield f"Participation: {who}. Patterns of it over rounds may single somebody out."
    yield (
        "Timing: how long a client takes, whether it is late or lost, memory and power are not "
        "hidden; nor is who sends how much when on the network."
    )


def _what_was_chosen(subject: Subject) -> Iterator[str]:
    yield (
        "Tuning: settings such as learning rate, clipping norm, rounds or the method itself may "
        "have been chosen by trying them out on the same data. Each such trial is a use of the "
        "data that no ledger here counts, unless it is a run of its own with its own charge."
    )
    evaluation = subject.agreed.config.evaluation
    if evaluation.selection == "last":
        yield "Selection: none was made; the model is the last round's."
    elif evaluation.release == "noised":
        yield (
            "Selection: a round is named as best by noised accuracies that are charged with the "
            "uploads; choosing among them costs nothing more."
        )
    else:
        yield (
            "Selection: a round is named as best by exact accuracies of the clients' validation "
            "data. That choice tells of these data and no noise covers it."
        )
    if subject.is_simulated:
        yield (
            "Accuracies in this document are exact, as only an experimenter with all the data "
            "sees them. Who publishes them releases them without noise."
        )


def _pool(subject: Subject) -> Iterator[str]:
    warnings = () if subject.summary is None else subject.summary["warnings"]
    has_pool = any(text.startswith("expert pool:") for text in warnings)
    if has_pool or any(row.channel == "pool" for row in subject.rows):
        yield (
            "The expert pool is linkable: to server and peers its entries can be told apart, and "
            "who knows something of a client may find its entry; only epsilon bounds what it "
            "tells."
        )
        if subject.agreed.config.privacy.noise_source == "os":
            yield (
                "Of the coordinator's disk, after the fact, it is claimed that no row ties a pool "
                "entry to its client better than chance; that is a claim about linking, not an "
                "epsilon."
            )
        else:
            yield "With seeded randomness nothing is claimed of the coordinator's disk either."


def _the_rest(subject: Subject) -> Iterator[str]:
    yield (
        "Inference from the population: a good model tells what is true of many, and so of one "
        "who is like them, whether or not that one took part."
    )
    yield (
        "A client's own machine: its data, personal state and failures lie there in the clear, "
        "for whoever may read its files."
    )
    if subject.terms is not None and not subject.facts.claims:
        yield (
            "Sums of several rounds or runs may be subtracted from each other, and a server may "
            "choose the models it sends so that sums tell more; masks do not prevent either."
        )
    if subject.agreed.config.privacy.subspace != "none":
        yield (
            "The directions that uploads live in, and their number, count as fixed in advance; "
            "that they were not tried out on these data is nobody's record."
        )


def composition_section(subject: Subject) -> Section:
    """Return the section about composition and about free post-processing."""
    config = subject.agreed.config
    retries = (
        "An attempt that failed stays charged where anything may have left a client; a new one "
        "draws new noise and is charged again. A message sent again byte by byte is free."
    )
    source = config.phase_two_of
    return Section(
        "composition",
        "Composition, and what may be done with the results",
        (
            paragraph(
                "All rounds, attempts and channels of the run are composed into the epsilons above "
                "by the named accountant. That holds although what is sent in one round depends "
                "on the results of those before. Units are compared one by one: the run's epsilon "
                "is the largest over clients, not a sum over them."
            ),
            bullets(
                retries,
                "Whatever is computed from released results alone (the final model, its exports, "
                "predictions, this document's epsilons) is post-processing and costs nothing.",
                "Whatever uses the clients' data once more (another run, another phase that "
                "releases, tuning) is not, and adds to what they have spent.",
                "Other releases of the same data, by other means and without noise, are not made "
                "safer by this run.",
                *(
                    ()
                    if source is None
                    else (
                        f"This is the second phase of run {source}: it released nothing itself, "
                        "and its epsilons are that run's.",
                    )
                ),
            ),
        ),
    )
