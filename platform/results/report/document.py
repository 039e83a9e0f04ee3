"""The privacy budget report of a run as a value: agreed records in, sections out.

Every number links to its ledger rows and audit entries. A ledger row is named by run, round,
attempt, client and channel. If a log was read, each row and each entry is also a leaf of the log;
a command prints the leaf's proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from platform.agreement.budgets import RunBudget, read_budget
from platform.config import Sources
from platform.config.run import name_in
from platform.data.catalogue import dataset_infos
from platform.results.inference import gains
from platform.results.report.blocks import (
    Basis,
    Block,
    Bullets,
    Facts,
    Figure,
    Line,
    Link,
    Paragraph,
    Piece,
    Place,
    Plot,
    Section,
    Table,
    Words,
    bullets,
    facts,
    paragraph,
    ranges,
    share_text,
    table,
)
from platform.results.report.empirical import SeenChannel, empirical_section, require_same_claim
from platform.results.report.guarantee import (
    composition_section,
    limits_section,
    odds_section,
    right_guesses,
    trust_section,
    unit_section,
)
from platform.results.report.hazards import hazards_section, report_warnings
from platform.results.report.spending import releases_section, spending_section
from platform.results.report.subject import LogView, Subject, read_log
from platform.rounds.documents import ADVERSARIES
from storage import Database

SCHEMA_VERSION = 1

LAWS: Final = {
    None: "none",
    "gaussian": "Gaussian, drawn in floating point",
    "discrete_gaussian": "discrete Gaussian, drawn as integers on a grid",
    "skellam": "Skellam, drawn as integers on a grid",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A privacy budget report: the run at a glance, warnings by importance, and sections.

    `odds` has by adversary how many guesses of a hundred are right at most; None before a release
    is priced. The n-th of the `bases` of numbers is shown as number n.
    """

    run_id: str
    title: str
    lead: Facts
    warnings: tuple[str, ...]
    odds: tuple[tuple[str, Figure | None], ...]
    sections: tuple[Section, ...]
    bases: tuple[Basis, ...]


def report_of(
    database: Database,
    run_ids: Sequence[str],
    *,
    seen: Sequence[SeenChannel] = (),
    sources: Sources | None = None,
) -> Report:
    """Read the first run's records, and others' to compare it with, and return its report."""
    mechanisms = (sources or Sources()).mechanisms
    first, *others = [read_budget(database, one, mechanisms=mechanisms) for one in run_ids]
    read = [one.agreed for one in (first, *others)]
    runs = {run for one in read for run in (one.records.run_id, one.spending.run_id)}
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return budget_report(first, others, made=made, log=read_log(database, runs), seen=seen)


def budget_report(
    budget: RunBudget,
    compared: Sequence[RunBudget] = (),
    *,
    made: str,
    log: LogView | None = None,
    seen: Sequence[SeenChannel] = (),
) -> Report:
    """Return the report of a run whose records were found to agree; it shows the time `made`.

    It may compare the run with others, name the leaves of a log, and show what an audit has `seen`.
    An audit of another claim is refused (`OtherClaim`).
    """
    subject, others = Subject(budget, log), [Subject(one, log) for one in compared]
    require_same_claim(subject, seen)
    sections = (
        unit_section(subject),
        odds_section(subject),
        spending_section(subject),
        releases_section(subject),
        *([_comparison(subject, others)] if others else []),
        trust_section(subject),
        limits_section(subject),
        composition_section(subject),
        _construction(subject),
        Section("use", "What the run was good for", tuple(_usefulness(subject))),
        _provenance(subject),
        empirical_section(subject, seen),
        Section("log", "Audit log and versions", tuple(_log(subject))),
        hazards_section(subject),
    )
    bases = bases_of(sections)
    config = subject.agreed.config
    done = "finished" if subject.summary is not None else "not finished"
    status = f"{done}, {len(subject.trained)} of {config.rounds} rounds are over"
    return Report(
        run_id=subject.run_id,
        title=f"Privacy budget report of run {subject.run_id}",
        lead=facts(
            ("Epsilon against the server", subject.epsilon("server")),
            ("Right guesses of 100, at most", right_guesses(subject, "server") or "not known yet"),
            ("Mean accuracy", _accuracy(subject, "mean", "not measured")),
            ("Configuration", config.name),
            ("Status", status),
            ("Method and data", f"{config.method.name} on {config.task.dataset}"),
            ("Mechanism", subject.facts.name),
            ("Made", made),
        ),
        warnings=(
            *(
                f"an audit has refuted the claim on channel {one.channel}: the epsilons of this "
                "document do not hold"
                for one in seen
                if not one.passed
            ),
            *report_warnings(subject),
        ),
        odds=tuple((name, right_guesses(subject, name)) for name in ADVERSARIES),
        sections=(*sections, _evidence((subject, *others), bases)),
        bases=bases,
    )


def _comparison(subject: Subject, others: Sequence[Subject]) -> Section:
    blocks: list[Block] = []
    for other in others:
        differ = differences(subject, other)
        if differ:
            text = (
                f"The epsilons of this run and of {other.run_id} are not directly comparable: "
                f"{'; '.join(differ)}."
            )
        else:
            text = (
                f"This run and {other.run_id} have the same unit, relation and delta, so their "
                "epsilons may be compared adversary by adversary. If both hold data of the same "
                "people, these people have spent both."
            )
        blocks.append(paragraph(text))
    columns = (
        "Run",
        "Status",
        "Unit, relation, delta",
        *(f"Epsilon, {name}" for name in ADVERSARIES),
        "Right guesses of 100 against the server, at most",
        "Mean accuracy",
        "Worst client",
    )
    rows: list[tuple[Piece, ...]] = [
        (
            one.run_id,
            one.agreed.records.run.status,
            f"{one.facts.unit or 'none'}, {_relation(one)}, {one.delta:g}",
            *(one.epsilon(name) for name in ADVERSARIES),
            right_guesses(one, "server") or "not known yet",
            _accuracy(one, "mean", "not measured"),
            _accuracy(one, "worst", "not measured"),
        )
        for one in (subject, *others)
    ]
    blocks.append(table("This run first, then the others", columns, rows))
    return Section("comparison", "Beside other runs", tuple(blocks))


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


def _accuracy(subject: Subject, which: str, missing: str) -> Piece:
    value = None if subject.summary is None else subject.summary["final"]["accuracy"][which]
    return missing if value is None else subject.stated(f"final.accuracy.{which}").share(value)


def _log(subject: Subject) -> Iterator[Block]:
    head, run, log = subject.agreed.records.head, subject.agreed.records.run, subject.log
    text = f"{head.count}:{head.hash}"
    basis = Basis(
        what="the run's whole audit log, each entry hashed with the one before",
        run_id=run.run_id,
        entries=(head.count,),
        check=f"sotto audit verify --run {run.run_id} --head {text}",
    )
    over_all_runs: list[tuple[str, Piece | Words]] = [("Log over all runs", "was not read")]
    if log is not None:
        whole = Basis(
            what="all leaves of the log, recomputed from their rows, and every head that was kept",
            run_id=subject.run_id,
            check="sotto audit verify",
        )
        signed = f"{log.key}; {log.heads} are kept beside the database"
        over_all_runs = [
            ("Log over all runs", (whole.count(log.size), f" leaves, root {log.root}")),
            ("Heads signed by", signed if log.is_signed else "no known key"),
        ]
    yield facts(
        ("Head of the run's log", Figure(text, text, basis)),
        *over_all_runs,
        ("Digest of the configuration", run.config_digest),
        ("Status of the run", run.status),
    )
    yield paragraph(
        "The program compared the records before it made this document: ledger, rounds, audit "
        "log, run folder and, in a simulation, the clients' own ledgers agree. Somebody else who "
        "keeps the head can later check that nothing before it was changed, removed or cut."
    )
    try:
        versions = json.loads(run.versions_json)
    except (ValueError, RecursionError):
        return
    if isinstance(versions, dict) and versions:
        known = {name: "unknown" if text is None else text for name, text in versions.items()}
        rows = [(str(name), str(text)) for name, text in known.items()]
        yield table("What ran", ("Part", "Version"), rows)


def _provenance(subject: Subject) -> Section:
    config = subject.agreed.config
    task = config.task
    infos = (info for info in dataset_infos() if info.name == task.dataset)
    origins = (f"{info.title}; {info.source}" for info in infos)
    origin = next(origins, "unknown to this version of the program")
    public, section = "none was declared", config.public_data
    if section is not None:
        name = section.dataset or task.dataset
        public = f"{name}; the configuration declares it public, and no record can prove that"
    model = "none"
    if task.model is not None:
        model = f"{task.model.name}, {task.model.pretrained or 'the weights it ships with'}"
    simulated = (
        "simulated in one process from one data set, dealt out as "
        f"{task.partition.kind}; nothing protected the data from the experimenter"
    )
    federated = (
        "each a process with data of its own; the data leave the client only in the releases above"
    )
    has_pool = subject.agreed.records.generations or any(r.channel == "pool" for r in subject.rows)
    generations = config.pool.generations
    plural = "" if generations == 1 else "s"
    return Section(
        "data",
        "Where the data came from, security, retention",
        (
            facts(
                ("Data set", f"{task.dataset}: {origin}"),
                ("Clients", f"{task.clients}, {simulated if subject.is_simulated else federated}"),
                ("Public data", public),
                ("Pretrained model", model),
                ("Run created", subject.agreed.records.run.created),
            ),
            paragraph(
                "Open: no record of a run shows by what right the data were collected, with whose "
                "consent, and whether fewer data would have been enough. The operator has to say."
            ),
            bullets(
                "Security at rest: only their owner's account can read database, stores and run "
                "folders. They are not encrypted by this program: the operator has to secure "
                "disks, backups and the administrators' accounts.",
                "Security on the way: all clients were in one process, so nothing was sent."
                if subject.is_simulated
                else "Security on the way: messages travel over the transport that was set up for "
                "this federation. No record of the run names it or its certificates.",
                "Access: a reader of the coordinator's database sees pseudonyms, charges and who "
                "took part. The operator has to say who that is.",
                "Kept for good: ledger, audit log, rounds, and the newest two states of the "
                "model. Ledger rows are never deleted, because a release cannot be taken back.",
                "Deleted when a round is committed: the messages that the coordinator received at "
                "each stage. A client's data stay in place. Features that a frozen model made of "
                "them stay in the client's cache, in the clear, until `cache clear` or until room "
                "is needed.",
                *(
                    [
                        f"The pool: entries live for {generations} generation{plural}, and are "
                        "deleted by whole generations."
                    ]
                    if has_pool
                    else []
                ),
                "A client that leaves for good takes its data with it and has its pool "
                "generations erased. Its earlier releases stay in the model and in its ledger.",
            ),
        ),
    )


def _usefulness(subject: Subject) -> Iterator[Block]:
    if subject.summary is None:
        yield paragraph("The run has not finished, so nothing final was measured.")
        return
    summary = subject.summary
    measured_on = "; ".join(str(text) for text in summary.get("evaluation", {}).values())
    if subject.is_simulated:
        yield paragraph(
            "These numbers are exact: the experimenter of a simulation has all the data. They "
            "carry no noise and are in no ledger."
        )
    hidden = "not measured here: it is known to the clients only"
    shown, tested = list[tuple[str, Piece]](), gains(summary)
    for term, field in (
        ("Gain over each client alone", "gain_over_local"),
        ("Worth of sharing", "worth_of_sharing"),
    ):
        gain = summary[field]
        text = "not measured in this run" if gain is None else f"{100 * gain:+.1f} points"
        if (one := tested[field]) is not None:
            text = one.words("clients")
        shown.append((term, text if gain is None else Figure(text, gain, subject.stated(field))))
    yield facts(
        ("Method and data", f"{summary['method']} on {summary['dataset']}"),
        ("Measured on", measured_on or "each client's own test examples"),
        ("Mean over clients", _accuracy(subject, "mean", hidden)),
        ("Worst client", _accuracy(subject, "worst", hidden)),
        ("Spread over clients (standard deviation)", _accuracy(subject, "std", hidden)),
        *shown,
    )
    yield paragraph(
        "Gain over each client alone compares the federation with clients that train by "
        "themselves, with the same method and as many steps. Worth of sharing compares the run "
        "with the same run in which every upload is zero. The worst client is shown because noise "
        "harms small groups most, and a mean can hide them."
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


def _construction(subject: Subject) -> Section:
    config, declared = subject.agreed.config, subject.facts
    law, privacy = config.noise_distribution, config.privacy
    sampling = "see the kinds of release"
    if subject.summary is not None:
        sampling = str(subject.summary["sampling"] or "none")
    if not declared.claims:
        where = "no noise anywhere"
    elif declared.is_in_steps:
        where = "noise in every local training step, on the client"
    elif declared.is_shared_out:
        where = "every client adds a share of the noise, and only a sum has enough of it"
    elif declared.is_bare_to_server:
        where = "the coordinator sees the sum without noise, and adds the noise"
    else:
        where = "every client adds all of the noise to its clipped upload"
    if not declared.claims:
        source = "none is needed"
    elif privacy.noise_source == "seeded":
        source = (
            "a seed in the configuration: anyone with the seed can compute the noise and remove "
            "it, so it protects nobody"
        )
    else:
        source = "the operating system's entropy"
    if law is None:
        arithmetic = "there is no noise, so its lowest bits reveal nothing"
    elif law == "gaussian":
        arithmetic = (
            "not covered: floating-point noise is not a real Gaussian, and the lowest bits of a "
            "noised number may tell of the number without noise"
        )
    else:
        arithmetic = "covered: data and noise are integers when they are added; samplers are exact"
    if declared.is_in_steps:
        clipping = f"each record's gradient to {privacy.per_sample_clipping_norm:g}"
    elif not declared.claims:
        clipping = "none"
    else:
        clipping = f"each client's whole upload to {privacy.clipping_norm:g}"
        if privacy.adaptive_clipping is not None:
            clipping += ", then following a noised quantile that is charged with the upload"
    return Section(
        "construction",
        "Mechanism, randomness, floating point, side channels",
        (
            facts(
                ("Mechanism", f"{config.mechanism.name}: {where}"),
                ("Law of the noise", LAWS[law]),
                ("Randomness of the noise", source),
                ("Keys and masks", "always the operating system's entropy"),
                ("Floating point", arithmetic),
                ("Clipping", clipping),
                ("Sampling counted on", sampling),
            ),
            bullets(*_side_channels(subject)),
        ),
    )


def _side_channels(subject: Subject) -> Iterator[str]:
    if subject.facts.unit == "client":
        yield (
            "Failures: if anything fails inside a client between its data and its upload, the "
            "client uploads the zero vector, noised and charged like every upload. So nobody sees "
            "which client failed."
        )
    elif subject.facts.unit == "record":
        yield "Failures: a record that is not finite counts as zero inside the noised sum."
    else:
        yield "Failures: a client that fails says so, and a failure may tell of its data."
    yield (
        "Timing, memory, power and crashes of native code: not covered. Python cannot reliably "
        "erase secrets from memory."
    )
    yield "Nothing hides who sends how much, and when, or which client is late or silent."
    tree = subject.agreed.config.model_dump(mode="json")
    for role, origin in subject.origins.items():
        yield (
            f"The {role.replace('_', ' ')} {name_in(tree, role)!r} is code from outside this "
            f"package ({origin}). This package does not vouch for that code."
        )


def bases_of(sections: Iterable[Section]) -> tuple[Basis, ...]:
    """Return the bases of all figures, each once, in the order in which a reader meets them."""
    found: dict[Basis, None] = {}
    for block in (block for section in sections for block in section.blocks):
        lines: Iterable[Words] = ()
        match block:
            case Paragraph():
                lines = [block.words]
            case Bullets():
                lines = block.items
            case Facts():
                lines = [line for _, line in block.rows]
            case Table():
                lines = [cell for row in block.rows for cell in row]
        found.update((p.basis, None) for line in lines for p in line if isinstance(p, Figure))
    return tuple(found)


def proof_anchor(number: int) -> str:
    """Return the anchor of the n-th basis; the first is 1."""
    return f"proof-{number}"


def rows_anchor(run_id: str, place: Place) -> str:
    """Return the anchor of the ledger rows of a place."""
    name = "-".join(map(str, (run_id, *place)))
    return "rows-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def _evidence(subjects: Sequence[Subject], bases: Sequence[Basis]) -> Section:
    """Return the section that lists the basis of every number, and the ledger rows of all runs."""
    listed = [place for subject in subjects for place in _ledger(subject)]
    known = {anchor for anchor, _ in listed}
    ledger: Block = paragraph("The ledger has no row.")
    if listed:
        ledger = table(
            "The ledger's rows",
            ("Place", "Reserved in audit entry", "Clients, by pseudonym", "Their leaves"),
            (row for _, row in listed),
            (anchor for anchor, _ in listed),
        )
    proofs: list[tuple[Piece | Words, ...]] = []
    for number, basis in enumerate(bases, 1):
        command, leaves = basis.check, _leaves_of(basis, subjects)
        if len(leaves) == 1:
            # The basis's own command checks the head of a chain; this one proves one record.
            proof = f"sotto audit prove {leaves[0]}"
            command = f"{command}; {proof}" if command else proof
        entries = ", ".join(map(str, basis.entries)) or "none"
        cells = (entries, ranges(leaves) or "none", command or "none")
        proofs.append((str(number), basis.what, _rows(basis, known), *cells))
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
            table(
                "Numbers, and the records that they rest on",
                ("Number", "Rests on", "Ledger rows", "Audit entries", "Leaves", "Command"),
                proofs,
                (proof_anchor(number) for number in range(1, len(bases) + 1)),
            ),
            ledger,
        ),
    )


def _leaves_of(basis: Basis, subjects: Sequence[Subject]) -> list[int]:
    """Return the leaves of all records that a number rests on; none if the log was not read."""
    log, places = subjects[0].log, set(basis.places)
    if log is None:
        return []
    found = [log.events.get((basis.run_id, entry)) for entry in basis.entries]
    chosen = None if basis.pseudonyms is None else set(basis.pseudonyms)
    for subject in subjects:
        if not places or subject.agreed.spending.run_id != basis.run_id:
            continue
        for row in subject.rows:
            place = row.round_number, row.attempt, row.channel
            # A withheld pseudonym is in no row, so this tells no leaf of it.
            if place in places and (chosen is None or row.pseudonym in chosen):
                found.append(log.charges.get((basis.run_id, place, row.pseudonym)))
    return sorted({leaf for leaf in found if leaf is not None})


def _rows(basis: Basis, known: set[str]) -> Piece | Words:
    if not basis.places:
        return "none"
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


def _ledger(subject: Subject) -> Iterator[tuple[str, tuple[Piece | Words, ...]]]:
    """Yield the ledger's rows by place; a list of clients is linked when it repeats."""
    clients: dict[Place, list[str]] = {}
    for row in subject.rows:
        place = row.round_number, row.attempt, row.channel
        clients.setdefault(place, []).append(row.pseudonym)
    run, seen = subject.agreed.spending.run_id, dict[tuple[str, ...], Place]()
    charges = {} if subject.log is None else subject.log.charges
    reserving: dict[tuple[object, ...], int] = {}
    for item in subject.agreed.spending.entries("release.reserved"):
        at = item.entry.round, item.detail.get("attempt"), item.entry.channel
        reserving.setdefault(at, item.entry.sequence)
    for place, names in sorted(clients.items()):
        known = {name: charges.get((run, place, name)) for name in names}
        ordered = sorted(names, key=lambda name: known[name] or 0)
        same = seen.setdefault(tuple(ordered), place)
        named: Piece | Words = f"{len(names)}: {', '.join(ordered)}"
        if same != place:
            named = (f"{len(names)}: ", Link("the same as before", rows_anchor(run, same)))
        leaves = [leaf for leaf in (known[name] for name in ordered) if leaf is not None]
        where = ", ".join(map(str, leaves))
        if len(leaves) < len(ordered):
            where = "none"
        elif leaves == list(range(leaves[0], leaves[0] + len(leaves))) and len(leaves) > 1:
            where = f"{leaves[0]} to {leaves[-1]}, in their order"
        number, attempt, channel = place
        said = f"run {run}, round {number}, attempt {attempt}, channel {channel}"
        yield rows_anchor(run, place), (said, str(reserving.get(place, "none")), named, where)
