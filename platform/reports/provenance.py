"""Where the data came from, who could reach them, and what is kept for how long."""

from __future__ import annotations

from collections.abc import Iterator

from platform.data.catalogue import dataset_infos
from platform.reports.blocks import Block, Facts, Section, bullets, paragraph, words
from platform.reports.subject import Subject


def provenance_section(subject: Subject) -> Section:
    """Return where data came from, and how they are kept."""
    return Section(
        "data", "Where the data came from, security, retention", tuple(_provenance(subject))
    )


def _provenance(subject: Subject) -> Iterator[Block]:
    config = subject.agreed.config
    task = config.task
    model = "none" if task.model is None else task.model.name
    pretrained = "" if task.model is None else task.model.pretrained or "the weights it ships with"
    yield Facts(
        (
            ("Data set", words(f"{task.dataset}: {_origin(task.dataset)}")),
            ("Clients", words(_clients(subject))),
            ("Public data", words(_public(subject))),
            ("Pretrained model", words(f"{model}{', ' if pretrained else ''}{pretrained}")),
            ("Run created", words(subject.agreed.records.run.created)),
        )
    )
    yield paragraph(
        "Open: by what right the data were collected, with whose consent, and whether fewer would "
        "have done, is in no record of a run. Whoever operates it has to say."
    )
    yield bullets(*_security(subject), *_retention(subject))


def _origin(name: str) -> str:
    for info in dataset_infos():
        if info.name == name:
            return f"{info.title}; {info.source}"
    return "unknown to this version of the program"


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


def _public(subject: Subject) -> str:
    section = subject.agreed.config.public_data
    if section is None:
        return "none was declared"
    name = section.dataset or subject.agreed.config.task.dataset
    return f"{name}, declared public by whoever wrote the configuration, which nobody can check"


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
