"""The sentences that keep the readers of a report from misreading its numbers.

This module also puts settings of a run into words (optimiser, protocol, selection), and chooses the
round that is reported beside the last, never by test examples. Without a mechanism it chooses the
measured round with the best mean validation accuracy. Under a mechanism exact accuracies would be a
release that nothing covers, so only the noised means that came with uploads decide, which is
post-processing. An upload of round t carries the accuracy of the model after round t - 1, so the
last round cannot be chosen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from methods.interface.subspace import subspace_of
from platform.config import RunConfig
from platform.config.rules import OWN
from platform.data.catalogue import dataset_info
from platform.mechanisms import Circumstances
from platform.rounds.documents import COLLECTION, in_rounds
from platform.rounds.leaving import LEFT, left_clients
from platform.rounds.run import Run

Code = Literal[  # noqa: RUF041 -- flat, it would be twenty lines
    Literal["canaries", "ended-early", "centralised", "lost-round", "no-pool", "restored"],
    Literal["departed", "absent", "second-phase", "test-examples", "privacy", "mechanism"],
    Literal["subspace", "private-experts", "expert-pool", "secure-aggregation"],
    Literal["attempts", "selection", "stopping", "other"],
]
"""Subjects of warnings; `other` is for sentences that earlier versions stored without a code."""


@dataclass(frozen=True)
class Caveat:
    """A warning of a finished run: its subject, by which programs decide, and its sentence."""

    code: Code
    text: str


def caveats_of(summary: Mapping[str, Any]) -> list[Caveat]:
    """Return the warnings of a summary; earlier versions stored sentences alone."""
    found: list[Caveat] = []
    for one in summary.get("warnings", ()):
        if not isinstance(one, str):
            found.append(Caveat(**one))
        elif one.startswith("the run ended before round "):
            found.append(Caveat("ended-early", one))
        else:
            found.append(Caveat("expert-pool" if one.startswith("expert pool:") else "other", one))
    return found


def run_warnings(
    run: Run,
    documents: Sequence[Mapping[str, Any]],
    *,
    ended_early: str | None = None,
    uncollected: str | None = None,
    remarks: Sequence[str] = (),
    canaries: Mapping[str, Any] | None = None,
) -> list[Caveat]:
    """Return all warnings of a finished run, most important first.

    `uncollected` says why its pool was not made, if it should have been made; `remarks` are on the
    images on which it was measured.
    """
    claim = privacy_warnings(run.terms.config) if run.terms.protection.releases_anything else ()
    found: list[tuple[Code, Iterable[str]]] = [
        ("test-examples", remarks),
        ("canaries", canary_notes(canaries)),
        ("privacy", claim),
        ("mechanism", _mechanism(run)),
        ("subspace", _subspace(run)),
        ("private-experts", _groups(run, documents)),
        ("expert-pool", _pool(run, documents, is_made=uncollected is None)),
        ("secure-aggregation", _aggregation(run)),
        ("attempts", _attempts(run)),
        ("selection", _selection(run, documents)),
    ]
    return [
        *(Caveat("canaries", text) for text in canary_warnings(canaries)),
        *_course(run, documents, ended_early, uncollected),
        *(Caveat(code, text) for code, texts in found for text in texts),
    ]


def _course(
    run: Run,
    documents: Sequence[Mapping[str, Any]],
    ended_early: str | None,
    uncollected: str | None,
) -> Iterator[Caveat]:
    """Yield what happened to a run and its clients."""
    if ended_early:
        yield Caveat("ended-early", f"the run {ended_early}")
    if run.terms.method.centralised:
        yield Caveat(
            "centralised",
            f"centralised: one party holds all data, no federation: {run.terms.config.method.name} "
            "does not keep data where they are, so its numbers are not those of a federated method",
        )
    for document in documents:
        if document.get("lost") is not None:
            yield Caveat(
                "lost-round",
                f"round {document['round']} has no result ({document['lost']}); clients send a "
                "masked vector without noise of its own in one attempt of a round",
            )
    if uncollected:
        no_pool = "the pool was not made, and clients personalised without experts"
        yield Caveat("no-pool", f"{no_pool}: {uncollected}")
    roll = run.roll
    with run.records.read() as uow:
        restored = uow.audit.query(run=run.run_id, action="database.restored")
        departed = left_clients(uow, run.run_id, roll.clients)
    for entry in restored:
        yield Caveat(
            "restored",
            f"the database came back from a backup on {entry.time[:10]}: what the run released "
            "between the backup and that day is in no record, and in no epsilon of this report",
        )
    for gone in departed:
        what = "left for good" if gone.action == LEFT else "was removed by the operator"
        name = "never charged" if gone.pseudonym is None else gone.pseudonym
        erased = f", and {gone.generations} generations of the pool went with it"
        yield Caveat(
            "departed",
            f"client {roll.clients.index(gone.client) + 1} of {len(roll.clients)} ({name}) {what} "
            f"on {gone.time[:10]} after round {gone.after_round}"
            f"{erased if gone.generations else ''}; its charges stay in every epsilon",
        )
    known = {*roll.pseudonyms, *roll.left}
    never = [str(n) for n, client in enumerate(roll.clients, start=1) if client not in known]
    if never:
        yield Caveat(
            "absent",
            f"clients that never joined, and counted as lost in every round: {', '.join(never)}",
        )
    if run.source_id is not None:
        yield Caveat(
            "second-phase",
            f"second phase of run {run.source_id}: rounds, epsilon and local twins are that "
            "run's, and nothing else was released",
        )


def privacy_warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about a claim that follow from the configuration alone, finished or not."""
    facts, section, clients = config.mechanism.facts, config.privacy, config.task.clients
    if not facts.claims:
        yield f"mechanism {facts.name}: epsilon is infinite; nothing bounds what an upload reveals"
        return
    task = config.task
    if config.federation is None and task.partition.kind != "domain":
        yield (
            f"task.partition.kind {task.partition.kind} deals out one pool of examples: epsilon is "
            f"about a {facts.unit} as it was dealt out and split, not about an example of the "
            "pool, one of which more may change what many clients hold"
        )
    elif config.federation is None:
        info, open_keys = dataset_info(task.dataset, config.plugins), []
        if not info.domains and task.domains is None:
            open_keys.append("who the clients are (task.domains fixes it)")
        if not info.classes and task.class_names is None:
            fixes = "task.class_names fixes them" if task.dataset in OWN else "no key fixes them"
            open_keys.append(f"which classes there are ({fixes})")
        if open_keys:
            yield (
                f"the clients' folders say {' and '.join(open_keys)}: epsilon holds if that was "
                "known beforehand and no client's folder could have changed it"
            )
    if section.noise_source == "seeded":
        yield "noise_source seeded: the noise can be recomputed from the seed; it protects nobody"
    if facts.unit == "client" and section.target_delta > 1 / clients:
        yield f"delta {section.target_delta:g} is above 1/clients = {1 / clients:g}"
    if config.noise_distribution == "gaussian":
        yield (
            f"{facts.name} draws floating-point noise: attacks on its lowest bits are not covered"
        )


def _subspace(run: Run) -> Iterator[str]:
    method = subspace_of(run.terms.method)
    if method is None:
        return
    images = 0 if method.public is None else method.public.num_examples
    section, task = run.terms.config.public_data, run.terms.config.task
    name = task.dataset if section is None else section.dataset or task.dataset
    origin, condition = {
        "text_jacobian": (
            "found from the frozen model, the list of classes and each broadcast",
            "",
        ),
        "public_images": (
            f"found from {images} images declared public ({name}), which were fixed in advance, "
            "the frozen model and each broadcast",
            ", if these images are in fact public",
        ),
        "random": ("drawn anew for each round", ""),
    }[method.kind]
    yield (
        f"uploads live in {method.rank} of {method.whole} directions, {origin}: they depend on "
        f"nothing private{condition}; the choice of privacy.rank is not charged, so it must not "
        "have been tried out on these data"
    )


def _groups(run: Run, documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    extras = run.terms.protection.extras
    if extras.groups is None:
        return
    yield (
        f"private experts: each client picked one of {extras.groups.number}, and its pick is in "
        "its own store; pool.experts and pool.floor must not have been tried out on these data, as "
        "that is not charged"
    )
    readings = [(d["round"], d["groups"]) for d in documents if d.get("groups")]
    small = [number for number, found in readings if found["kept"]]
    if small:
        yield (
            f"private experts: in {len(small)} of {len(readings)} rounds a group's "
            f"{'count was' if readings[0][1]['counts'] is None else 'noised count was'} below the "
            "floor, and its expert stayed as it was"
        )
    copied = [number for number, found in readings if found.get("copied")]
    if copied:
        yield (
            f"private experts: in {len(copied)} of {len(readings)} rounds an expert that nobody "
            "picked became a copy of one with more than twice an even share of the clients"
        )


def _mechanism(run: Run) -> Iterator[str]:
    mechanism, terms = run.terms.config.mechanism, run.terms.protection.terms
    if not (run.terms.protection.releases_anything and mechanism.facts.claims):
        return
    corrupt = run.terms.config.secure_aggregation.corrupt
    yield from mechanism.caveats(
        Circumstances(corrupt, is_active=terms is not None and terms.active)
    )
    entries = run.terms.protection.entries
    if entries is not None and entries.mechanism is not None:
        # If the sum's noise is also the client's own, entries and sum cost alike.
        dominates = not mechanism.facts.noises_alone
        yield "pool entries carry noise of their own and are charged beside the sum" + (
            "; they dominate what is spent" if dominates else ""
        )
    if run.terms.cohort_kind is not None:
        yield (
            "epsilon for observer counts on cohorts that stay secret: publish the final model "
            "only, not this report or the audit log"
        )


def _pool(run: Run, documents: Sequence[Mapping[str, Any]], *, is_made: bool) -> Iterator[str]:
    rules, protection = run.terms.pool_rules, run.terms.protection
    if rules is None:
        return
    if rules.policy.fixed and not any(d.get("phase") == COLLECTION for d in documents):
        with run.records.read() as uow:
            rows = uow.ledger.rows(run.source)
        # An interrupted collection is in the ledger alone; one that costs nothing is not there.
        if all(row.round_number != protection.collects_at for row in rows):
            return
    yield "expert pool: against server and peers its entries are linkable; only epsilon bounds them"
    if rules.policy.opens:
        yield (
            "each pool entry is a summary of its owner's data, made before the first round and "
            "handed to the clients of all rounds: only epsilon bounds what it tells of that data"
        )
    elif rules.policy.fixed and is_made:
        yield (
            "each pool entry is a model of its owner's data, made after the last round: it tells "
            "of that data, such as its classes, and only epsilon bounds how much"
        )
    if rules.policy.fixed:
        collection = protection.collection
        if collection is not None and collection.mechanism.facts.claims:
            yield (
                "pool entries carry noise of their own and are charged once for each attempt, "
                "beside the sums of all rounds"
            )
        return
    if protection.masked and not protection.has_own_entry_noise:
        yield (
            "pool.noise same: the coordinator reads every survivor's upload by name, as a pool "
            "entry; secure aggregation hides nothing here that epsilon does not bound"
        )
    safe = 2 * (rules.policy.k + 1)
    if rules.minimum < safe:
        yield f"pool.minimum {rules.minimum} is below 2(K+1) = {safe}"
    fewest = min((len(d["survivors"]) for d in documents), default=0)
    if fewest * rules.generations < rules.minimum:
        yield (
            f"pool: {fewest} survivors a round are fewer than pool.minimum = {rules.minimum}, so "
            "experts may not have been served"
        )


def _aggregation(run: Run) -> Iterator[str]:
    terms = run.terms.protection.terms
    if terms is not None and terms.active:
        yield (
            "secure aggregation: also against an active server, if the enrolment reached all "
            f"clients by another way and at most {terms.corrupt} collude with it"
        )
    elif run.terms.protection.masked:
        yield "secure aggregation: semi-honest server; an active one is not covered"
    elif run.terms.protection.layout.spec:
        yield "secure aggregation is off: the server sees every client's upload"
    canaries = run.terms.config.canaries
    if run.terms.protection.masked and not run.terms.protection.has_client_noise:
        yield (
            "each secure sum holds at least "
            f"{0 if terms is None else terms.smallest_sum - canaries} vectors, each client's in "
            "one sum a round; not covered: sums of several rounds or runs subtracted from each "
            "other, a server that chooses its broadcasts, clients' stores put back to an older copy"
        )


def _selection(run: Run, documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    config, protection = run.terms.config, run.terms.protection
    has_means, hides_size = protection.extras.metric is not None, protection.sums.hides_size
    if has_means and hides_size:
        yield (
            "noised validation means are withheld: how many clients are in a sum is secret here, "
            "and a sum over a guessed number is no mean"
        )
    elif has_means:
        released = [d["released_validation"] for d in documents]
        # Rounds of earlier versions do not state it.
        spreads = [r["std"] for r in released if r is not None and "std" in r]
        if spreads:
            yield (
                "noised validation means carry noise of standard deviation up to "
                f"{max(spreads):.3f}; the last round's model has none, as no upload follows it"
            )
    chosen = config.evaluation.selection == "best_on_validation"
    if chosen and best_on_validation(config, documents) is None:
        yield "evaluation.selection: best_on_validation had no round to choose from"


def _attempts(run: Run) -> Iterator[str]:
    with run.records.read() as uow:
        rows = uow.ledger.rows(run.source)
    charged = {(row.round_number, row.attempt) for row in rows if row.status != "aborted"}
    attempts = Counter(number for number, _ in charged)
    repeated = sorted(number for number, count in attempts.items() if count > 1)
    if repeated:
        listed = ", ".join(map(str, repeated))
        yield f"aborted attempts of round {listed} stay charged beside the one that followed"


def lower_text(bound: float) -> str:
    """Return a lower bound, rounded down."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def canary_warnings(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the first warning: canaries show a larger epsilon than is claimed, or show nothing."""
    if found is None:
        return
    if found["is_blind"]:
        yield (
            "BLIND: what this run's own canaries sent is not in its model, or less than half of "
            "it; their audit says nothing of any epsilon"
        )
        return
    seen, claimed = found["lower_bound"], found["claimed"]
    shown = f"epsilon is at least {lower_text(seen)} where {claimed:.2f} is claimed"
    if found["is_refuted"]:
        yield (
            f"REFUTED by this run's own canaries: {shown}; a run that keeps its claim shows that "
            "less than once in a million runs. Do not rely on any epsilon of this run"
        )
    elif found["is_above_claim"]:
        yield (
            f"ABOVE THE CLAIM: by this run's own canaries {shown}; one in twenty runs that keep "
            "their claim shows as much. Run it again, and do not rely on any epsilon of it before"
        )


def canary_notes(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the note on canaries that every report needs, whatever they showed."""
    if found is None:
        return
    yield (
        f"{found['canaries']} canary clients of an audit were in every sum, are charged in the "
        "ledger, and are counted in cohorts, but in no mean, in no smallest sum and in no noise "
        "that is claimed; they moved the final model beside what it learnt, by "
        f"{100 * found['share_of_noise']:.0f}% of the length of its noise, so accuracy is "
        "not that of a run without them"
    )


PROTOCOLS: Final = {
    "client_mean": "client mean: every client on its own test examples",
    "all_classes": (
        "all classes: every client on all test examples of all clients, beside it on its own"
    ),
    "base_to_novel": (
        "base to novel: own test examples, all base classes, all novel classes, harmonic mean"
    ),
    "leave_one_domain_out": "leave one domain out: every client on the held-out domain",
}
_LAST: Final = "last round, after personalising"
BESIDE: Final = "; beside it "
"""Stands before the chosen round's part of the sentence."""
_WHEN: Final = "measured after the update, before personalising; never chosen by test examples"


def evaluation_document(config: RunConfig) -> dict[str, str]:
    """Return protocol and selection in words, as every report names them."""
    section, protocol = config.evaluation, PROTOCOLS[config.evaluation.protocol]
    if section.measured_clients is not None:
        whom = f"{section.measured_clients} of {config.task.clients} clients, drawn at random,"
        protocol = protocol.replace("every client", whom)
    if config.task.held_out_domain is not None:
        protocol = f"{protocol} {config.task.held_out_domain!r}"
    selection = _LAST
    if section.selection != "last" and section.release == "noised":
        selection += (
            f"{BESIDE}the round with the best noised mean validation accuracy but the last, whose "
            f"model no upload measured, {_WHEN}"
        )
    elif section.selection != "last":
        selection += f"{BESIDE}the round with the best mean validation accuracy, {_WHEN}"
    return {"protocol": protocol, "selection": selection}


def best_on_validation(
    config: RunConfig, documents: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the chosen round, the validation accuracy that decided, accuracy and protocol.

    None if the configuration asks for no choice, or no round can be chosen.
    """
    if config.evaluation.selection != "best_on_validation":
        return None
    rounds = in_rounds(documents)
    means = [(d["round"], d["validation"]["mean"]) for d in rounds]
    if config.evaluation.release == "noised":
        released = [d["released_validation"] for d in rounds]
        means = [(r["round"], r["mean"]) for r in released if r is not None]
    scores: dict[int, float] = {number: mean for number, mean in means if mean is not None}
    measured = {d["round"]: d for d in rounds if d["accuracy"]["mean"] is not None}
    candidates = {number: score for number, score in scores.items() if number in measured}
    if not candidates:
        return None
    # Among equal rounds the earlier one counts: it cost fewer rounds.
    best = min(candidates, key=lambda number: (-candidates[number], number))
    return {
        "round": best,
        "validation": candidates[best],
        "accuracy": measured[best]["accuracy"],
        "protocol": measured[best]["protocol"],
    }


def optimizer_document(config: RunConfig) -> dict[str, Any]:
    """Return optimiser, amount and schedule with the values in force, defaults included.

    Rates that a method names in its own section are its options; the schedule is of these, too.
    """
    section = config.training
    amount = "local_steps" if section.local_epochs is None else "local_epochs"
    names = ("momentum",) if section.optimizer == "sgd" else ("betas", "eps")
    values = {
        "momentum": section.momentum,
        "betas": list(section.effective_betas),
        "eps": section.effective_eps,
    }
    return {
        "optimizer": section.optimizer,
        "learning_rate": section.learning_rate,
        **{name: values[name] for name in names},
        "weight_decay": section.weight_decay,
        "batch_size": section.batch_size,
        amount: getattr(section, amount),
        "schedule": {
            **(
                {"kind": "constant"}
                if section.schedule is None
                else section.schedule.model_dump(mode="json", exclude_none=True)
            ),
            "first_factor": section.factor(1, config.rounds),
            "last_factor": section.factor(config.rounds, config.rounds),
        },
    }


def optimizer_words(document: Mapping[str, Any]) -> str:
    """Return the content of `optimizer_document` as one line of words."""
    parts = [str(document["optimizer"]), f"learning rate {document['learning_rate']:g}"]
    if "betas" in document:
        first, second = document["betas"]
        parts += [f"betas {first:g} and {second:g}", f"eps {document['eps']:g}"]
    else:
        parts.append(f"momentum {document['momentum']:g}")
    parts.append(f"weight decay {document['weight_decay']:g}")
    steps = document.get("local_steps")
    amount = f"{steps} steps" if steps else f"{document['local_epochs']} epochs"
    parts.append(f"{amount} a round in batches of {document['batch_size']}")
    schedule = document["schedule"]
    rates = [f"{schedule['kind']} rates"]
    if "gamma" in schedule:
        rates.append(f"times {schedule['gamma']:g} a round")
    if schedule.get("warm_up_rounds"):
        rates.append(f"after {schedule['warm_up_rounds']} rounds of warm-up")
    if len(rates) > 1 or schedule["kind"] != "constant":
        first, last = f"{schedule['first_factor']:.3g}", f"{schedule['last_factor']:.3g}"
        rates.append(f"factor {first} in round 1, {last} in the last")
    return f"{', '.join(parts)}; {', '.join(rates)}"


# Markdown ignores an underscore within a word, and "<" before a space; addresses become links.
_SPECIAL: Final = re.compile(
    r"[\\`*\[\]&|~!#@$^]|<(?=\S)|\A>|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE
)


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: one line, without mark-up, HTML or links."""
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return _SPECIAL.sub(r"\\\g<0>", shown)
