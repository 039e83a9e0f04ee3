"""What the numbers do not cover, and what they cover that one might not expect."""

from __future__ import annotations

from collections.abc import Iterator

from platform.reports.blocks import Section, bullets, paragraph
from platform.reports.subject import Subject


def limits_section(subject: Subject) -> Section:
    """Return what is not protected."""
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
    if any(row.channel == "pool" for row in subject.rows) or _has_pool(subject):
        yield (
            "The expert pool is linkable: to server and peers its entries can be told apart, and "
            "who knows something of a client may find its entry; only epsilon bounds what it "
            "tells."
        )
        yield _linking(subject)


def _linking(subject: Subject) -> str:
    if subject.agreed.config.privacy.noise_source == "os":
        return (
            "Of the coordinator's disk, after the fact, it is claimed that no row ties a pool "
            "entry to its client better than chance; that is a claim about linking, not an epsilon."
        )
    return "With seeded randomness nothing is claimed of the coordinator's disk either."


def _has_pool(subject: Subject) -> bool:
    warnings = () if subject.summary is None else subject.summary["warnings"]
    return any(text.startswith("expert pool:") for text in warnings)


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
    """Return what is counted together, and what may be done with results for free."""
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
