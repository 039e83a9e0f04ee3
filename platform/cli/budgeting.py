"""`budget`: how much clients have spent, how much is left, and how many further rounds fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from platform.agreement import Agreed, Fault, require_agreement, stored_tree
from platform.agreement.budgets import (
    budget_document,
    overview_document,
    pseudonyms_of,
    read_budget,
    require_known_client,
)
from platform.agreement.statements import lifetime_of
from platform.cli.keeping import unreadable
from platform.cli.output import Said, Sheet, answer, epsilon, rounded_down, shows_all, table
from platform.disk.opening import open_existing
from platform.errors import RecordsDisagree
from platform.results.reading import resolved
from platform.results.report.guarantee import guess_words
from platform.results.report.hazards import claim_warnings, stated_warnings
from platform.rounds.documents import ADVERSARIES
from privacy import MOST_ROUNDS
from storage import AuditChainBroken, Database

Document = Mapping[str, Any]

NEWEST: Final = 20
"""Without a run the command states this many runs, and all that have not finished."""
GOING_ON: Final = frozenset({"running", "interrupted"})
SUMS: Final = (
    "note: epsilons do not add up: a reserved part, or the cost of an attempt, is how much less "
    "the whole would be without it; what is left is a difference, not a promise of that much more"
)
RESERVED: Final = (
    "note: reserved: charged and spent, but not known to be in a result, as the attempt is open, "
    "aborted or lost, or the client missed the end of its round"
)
LIVES: Final = "note: what each client has spent in its lifetime, and what is left: budget RUN"
CLIENT_COLUMNS: Final = (
    "client",
    "epsilon s/p/o",
    "of it reserved",
    "left",
    "lifetime",
    "of it left",
    "rounds left",
)
ATTEMPT_COLUMNS: Final = ("round", "attempt", "state", "why", "clients charged", "cost")


def budget_command(run_id: str | None, client: str | None, storage: str, *, as_json: bool) -> None:
    """Print the budget of a run, else of newest runs and those that go on, or of all (`--all`).

    With a client, state this client alone, and all runs that charged it.
    """
    with closing(open_existing(storage)) as database:
        if run_id is None:
            _print_runs(database, client, as_json=as_json)
            return
        _, document = stated_budget(database, resolved(database, run_id, storage), client)
    answer(document, _of_run(document), as_json=as_json)


def stated_budget(
    database: Database, run_id: str, client: str | None = None
) -> tuple[Agreed, dict[str, Any]]:
    """Return a run whose records agree, and its budget (or one client's) with every warning."""
    budget = read_budget(database, run_id, client)
    agreed = budget.agreed
    warnings = list(stated_warnings(agreed))
    if any(row.cohort_drawn is False for row in agreed.spending.ledger):
        warnings.append(
            "these numbers tell which clients were drawn into which cohort; epsilon for observer "
            "holds only while that is secret: do not show them to others"
        )
    found = budget_document(budget, warnings)
    return agreed, {**found, "lifetime_covers": lifetime_of(agreed.config)}


def _of_run(document: Document) -> Iterator[Said]:
    yield f"run {document['run_id']}, client by client"
    yield terms_words(document)
    if guesses := document["right_guesses"] and guess_words(document):
        yield f"in guesses: {guesses}"
    if clients := client_rows(document):
        yield grouped(clients)
    else:
        yield "no client has been charged for anything yet"
    if attempts := attempt_rows(document):
        yield table("attempts without a result", ATTEMPT_COLUMNS, attempts)
    yield from (f"note: {text}" for text in document["warnings"])
    yield from closing_words(document)


def grouped(clients: Sequence[tuple[str, ...]]) -> Sheet:
    """Return the rows of clients, without `--all` one for equal clients and no empty column."""
    if shows_all():
        return table(None, CLIENT_COLUMNS, clients)
    equal: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in clients:
        equal.setdefault(tuple(cells), []).append(name)
    rows = [
        (names[0] if len(names) == 1 else f"{len(names)} clients", *cells)
        for cells, names in equal.items()
    ]
    told = [at for at, cells in enumerate(zip(*rows, strict=True)) if set(cells) != {"-"}]
    columns = [CLIENT_COLUMNS[at] for at in told]
    return table(None, columns, [[row[at] for at in told] for row in rows])


def client_rows(document: Document) -> list[tuple[str, ...]]:
    """Return the cells of each client, one for each column of `CLIENT_COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for one in document["clients"]:
        life, reserved = one["lifetime"], one["reserved"]
        number = "" if one["number"] is None else f" (client {one['number']})"
        why = ", ".join(f"{count} {word}" for word, count in reserved["releases"].items())
        rows.append(
            (
                f"{one['pseudonym']}{number}{'' if one['takes_part'] else ', has left'}",
                _three(one["epsilon"]),
                f"{epsilon(reserved['epsilon'])} ({why})" if why else "-",
                rounded_down(one["left"]),
                "n/a" if life["problem"] is not None else epsilon(life["spent"]),
                rounded_down(life["left"]),
                _rounds(one["rounds_left"]),
            )
        )
    return rows


def attempt_rows(document: Document) -> list[tuple[Any, ...]]:
    """Return the cells of each attempt, one for each column of `ATTEMPT_COLUMNS`."""
    names = ("round", "attempt", "state", "why", "clients_charged")
    return [
        (
            *("-" if one[name] is None else one[name] for name in names),
            epsilon(one["cost"])
            if one["clients_charged"]
            else "nothing: nothing had left a client",
        )
        for one in document["attempts"]
    ]


def terms_words(document: Document) -> str:
    """Return the meaning of the epsilons in words: delta, unit, relation, accountant, limits."""
    if document["unit"] is None:
        return f"mechanism {document['mechanism']}: no guarantee; epsilon counts as infinite"
    text = (
        f"epsilon for server/peers/observer at delta {document['delta']:g}, for one "
        f"{document['unit']} under {document['relation']}, by accountant {document['accountant']}"
    )
    limits = {"target": document["target_epsilon"], "lifetime budget": document["lifetime_budget"]}
    given = [f"{name} {limit:g}" for name, limit in limits.items() if limit is not None]
    if not given:
        return f"{text}; without a limit"
    return f"{text}; limited by {' and '.join(given)} against the {document['limited_against']}"


def _three(spent: Document) -> str:
    return "/".join(epsilon(spent[name]) for name in ADVERSARIES)


def _rounds(number: int | None) -> str:
    if number is None:
        return "-"
    return f"{number} or more" if number == MOST_ROUNDS else str(number)


def closing_words(document: Document) -> Iterator[str]:
    """Yield the forecast, and the notes without which a reader may misread a number."""
    found, forecast = document["forecast"], "none: the run releases nothing any more"
    if found is not None:
        coming, fitting = found["rounds_to_come"], found["rounds_left"]
        if not any(document[name] for name in ("target_epsilon", "lifetime_budget")):
            forecast = f"{coming} rounds are to come, and no limit ends the run before"
        elif fitting is None:
            forecast = (
                f"{coming} rounds are to come; how many fit is known once the first is charged; "
                "calibrated noise was calibrated for all of them"
            )
        else:
            enough = "so all of them fit" if fitting >= coming else "so the run ends early"
            forecast = (
                f"{_rounds(fitting)} further rounds fit at the noise of the rounds so far, and "
                f"{coming} are to come, {enough}"
            )
    yield f"forecast: {forecast}"
    if any(one["reserved"]["releases"] for one in document["clients"]):
        yield RESERVED
    yield f"note: lifetime: {document['lifetime_covers']}"
    for text in sorted({one["lifetime"]["holds"] or "" for one in document["clients"]} - {""}):
        yield f"note: lifetime: {text}"
    for one in document["clients"]:
        if one["lifetime"]["problem"] is not None:
            problem = one["lifetime"]["problem"]
            yield f"note: the lifetime of {one['pseudonym']} has no epsilon: {problem}"
    yield SUMS


def _print_runs(database: Database, client: str | None, *, as_json: bool) -> None:
    with database.unit_of_work(read_only=True) as uow:
        known = list(reversed(uow.runs.list()))
        charged = set() if client is None else {row.run_id for row in uow.ledger.rows_of([client])}
    # All records of a run are compared first, which takes some hundredths of a second a run.
    if shows_all() or (client is not None and not charged):
        # A client that was never charged may have joined a run all the same.
        chosen = [run.run_id for run in known]
    elif client is None:
        chosen = [r.run_id for at, r in enumerate(known) if at < NEWEST or r.status in GOING_ON]
    else:
        # A second phase continues the ledger of its first run.
        chosen = [
            run.run_id
            for run in known
            if (stored_tree(run).get("phase_two_of") or run.run_id) in charged
        ]
    left_out = len(known) - len(chosen)
    documents: list[dict[str, Any]] = []
    faults: list[Fault] = []
    clients: set[str] = set()
    newest: str | None = None
    for run_id in chosen:
        try:
            agreed = require_agreement(database, run_id)
        except (RecordsDisagree, AuditChainBroken) as error:
            faults.append(error)
            problem = {"status": unreadable(error), "problem": str(error)}
            documents.append({"run_id": run_id, **problem})
            continue
        named = pseudonyms_of(agreed)
        clients.update(named)
        if client is None or client in named:
            newest = newest or run_id
            warnings = claim_warnings(agreed)
            documents.append({**overview_document(agreed, warnings, client), "problem": None})
    found: dict[str, Any] = {"client": client, "runs": documents, "left_out": left_out}
    if client is not None:
        require_known_client(client, clients, "all runs")
        budget = budget_document(read_budget(database, str(newest), client), ())
        found["lifetime"] = budget["clients"][0]["lifetime"]
    answer(found, _overview(found), as_json=as_json)
    if faults:
        raise faults[0]


def _overview(found: Document) -> Iterator[Said]:
    runs = [one for one in found["runs"] if one["problem"] is None]
    whose = "the client that spent most" if found["client"] is None else found["client"]
    yield f"epsilon for server/peers/observer so far, of {whose}"
    warned: dict[str, list[str]] = {}
    for one in runs:
        for text in one["warnings"]:
            warned.setdefault(text, []).append(one["run_id"])
    columns = ("run", "status", "rounds", "epsilon s/p/o", "left", "of", "delta", "accounting")
    yield table(None, columns, [_run_row(one) for one in found["runs"]])
    for text, names in warned.items():
        few = shows_all() or len(names) == 1
        yield f"note: {text} ({', '.join(names) if few else f'{len(names)} runs'})"
    if number := found["left_out"]:
        left = f"{'1 run is' if number == 1 else f'{number} runs are'} left out"
        if found["client"] is not None:
            yield f"note: {left} that never charged this client; `--all` reads them too"
        else:
            yield f"note: {left}, older and over; `--all` reads and compares them too"
    life = found.get("lifetime")
    if life is None and any(one["lifetime_budget"] is not None for one in runs):
        yield LIVES
    if life is not None:
        spent = epsilon(life["spent"]) if life["problem"] is None else f"n/a: {life['problem']}"
        yield f"lifetime: {spent}, left {rounded_down(life['left'])}"
    yield SUMS


def _run_row(one: Document) -> tuple[str, ...]:
    if one["problem"] is not None:
        return (one["run_id"], one["status"], *(["n/a"] * 6))
    target = one["target_epsilon"]
    words = (one["mechanism"], one["unit"], one["relation"], one["accountant"])
    phase = "" if one["phase_two_of"] is None else f", second phase of {one['phase_two_of']}"
    return (
        one["run_id"],
        one["status"],
        f"{one['rounds_over']} of {one['rounds_planned']}",
        _three(one["epsilon"]),
        rounded_down(one["left"]),
        "-" if target is None else f"{target:g}",
        f"{one['delta']:g}",
        ", ".join(word for word in words if word) + phase,
    )
