"""What a run with secret cohorts exports, and a guesser who enumerates all draws against it.

The guesser knows all clients' names and pseudonyms, the configuration, and every record of the run
but who was drawn, who was lost, and what the coordinator drew at random. It takes each digest that
is in an export and computes that digest for every subset of the clients, and it looks for numbers
that go with the size of the cohort round by round.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, combinations, count, product
from pathlib import Path
from typing import Any

import pytest

from platform.disk.log_files import bytes_digest, document_digest, rows_digest
from platform.experiment.planning import Surroundings
from platform.results.report.blocks import Table
from storage import open_database
from tests.trunk._pages import OWN, page_of
from tests.trunk._reports import report_of, section, text
from tests.trunk._runs import Command, Finished, Storage, gaussian_epsilon
from tests.trunk._tampering import execute
from tests.trunk.conftest import MakeStorage
from tests.trunk.test_cohort import POISSON

ROUNDS = 8
SECRET = (*POISSON, "cohort.size=2", "cohort.dropout_rate=0.3", f"rounds={ROUNDS}", "seed=7")
VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "records"
DIGEST = re.compile(r"[0-9a-f]{64}")
MEASURED = ("accuracy", "protocol", "validation")
"""What a simulation's experimenter measures on data that are at hand: no part of any export."""


@dataclass(frozen=True)
class Truth:
    """What must stay the coordinator's, from its database past our own code."""

    cohorts: Mapping[int, tuple[str, ...]]
    survivors: Mapping[int, tuple[str, ...]]
    salts: frozenset[str]

    @classmethod
    def of(cls, run: Finished) -> Truth:
        plans = dict(run.storage.rows("SELECT round_number, plan FROM attempts"))
        rounds = dict(run.storage.rows("SELECT round_number, document FROM rounds"))
        documents = [json.loads(text) for text in (*plans.values(), *rounds.values())]
        return cls(
            {n: tuple(json.loads(text)["cohort"]) for n, text in plans.items()},
            {n: tuple(json.loads(text)["survivors"]) for n, text in rounds.items()},
            frozenset(one["salt"] for one in documents if "salt" in one),
        )

    def features(self, number: int) -> dict[str, int]:
        drawn, left = len(self.cohorts[number]), len(self.survivors[number])
        return {"size": drawn, "survivors": left, "lost": drawn - left, "nobody": int(not drawn)}


@pytest.fixture(scope="module")
def run(make_storage: MakeStorage) -> Finished:
    """Its clock ticks once a look, so that no unknown time is in any record."""
    storage, ticks = make_storage("secret"), count()
    known = Surroundings(clock=lambda: float(next(ticks)))
    return Storage(storage.folder, known).run(*SECRET)


@pytest.fixture
def exports(run: Finished, sotto: Command, tmp_path: Path) -> dict[str, bytes]:
    """Everything that a command, a file of the run or the live page shows of it."""
    found = {p.name: p.read_bytes() for p in run.folder.iterdir() if p.is_file()}
    found["heads"] = (run.storage.folder / "sotto.audit.heads").read_bytes()
    place = ("--storage", run.storage.url)

    def command(*arguments: str) -> None:
        answer = sotto(*arguments, *place)
        assert answer.code == 0, answer
        found[" ".join(arguments)] = answer.out.encode()

    command("audit", "export", str(tmp_path / "log"))
    for file in (p for p in (tmp_path / "log").rglob("*") if p.is_file()):
        found[f"log/{file.relative_to(tmp_path / 'log')}"] = file.read_bytes()
    for form in ("json", "csv", "table"):
        command("audit", "query", "--run", run.run_id, "--format", form)
    for status in ("reserved", "released"):
        command("audit", "query", "--status", status, "--format", "json")
    pseudonyms = sorted(name for name, _ in run.identities().values())
    for name in pseudonyms:
        command("audit", "query", "--actor", name, "--format", "json")
        command("charges", name, str(tmp_path / name))
        found[f"charges of {name}"] = (tmp_path / name).read_bytes()
    ((last,),) = run.storage.rows("SELECT max(sequence) FROM audit WHERE round_number = 1")
    for number in (2, last):
        command("audit", "prove", f"{run.run_id}:{number}", "--json")
    command("audit", "head", "--json")
    command("audit", "verify", "--json")
    for other in (("report", run.run_id), ("budget", run.run_id), ("budget",), ("runs",)):
        command(*other, "--json")
        command(*other)
    for form in ("html", "json"):
        report = tmp_path / f"report.{form}"
        command("report", run.run_id, "--format", form, "--output", str(report))
        found[f"report as {form}"] = report.read_bytes()
    page = page_of(run.storage)
    for address in ("/", f"/run?id={run.run_id}", f"/audit?run={run.run_id}", "/metrics"):
        found[f"page {address}"] = page.get(address).content
    found["page /verify"] = page.post("/verify", headers=OWN).content
    return found


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, n) for n in range(len(names) + 1))


def digests_of_draws(run: Finished) -> Iterator[tuple[str, str]]:
    """A digest of each kind that a record has, for every draw, and which draw it is."""
    names = sorted(run.identities())
    pseudonym = {name: known for name, (known, _) in run.identities().items()}
    with closing(open_database(run.storage.url, read_only=True)) as database:
        with database.unit_of_work(read_only=True) as uow:
            ledger = uow.ledger.rows(run.run_id)
    documents = without_salts(run, "SELECT round_number, document FROM rounds")
    plans = without_salts(run, "SELECT round_number, plan FROM attempts")
    for number, chosen in product(documents, subsets(names)):
        what, drawn = f"round {number}: {', '.join(chosen) or 'nobody'}", list(chosen)
        yield document_digest({**documents[number], "survivors": drawn}), f"survivors of {what}"
        yield document_digest({**plans[number], "cohort": drawn}), f"cohort of {what}"
        yield bytes_digest(json.dumps(drawn).encode()), f"names of {what}"
        theirs = {pseudonym[name] for name in drawn}
        here = [row for row in ledger if row.round_number == number]
        others = [row for row in ledger if row.round_number != number]
        if len(chosen) < len(names):
            # A ledger in which all are marked is that of no draw in particular.
            rows = [replace(row, cohort_drawn=row.pseudonym in theirs) for row in here]
            yield rows_digest(rows, with_status=False), f"rows of {what}"
            yield rows_digest((*others, *rows), with_status=True), f"ledger of {what}"
        if chosen:
            some = [row for row in here if row.pseudonym in theirs]
            kept = [replace(row, status="reserved") for row in some]
            rows = [*(row for row in here if row.pseudonym not in theirs), *kept]
            yield rows_digest((*others, *rows), with_status=True), f"lost of {what}"


def without_salts(run: Finished, query: str) -> dict[int, dict[str, Any]]:
    found = {number: json.loads(text) for number, text in run.storage.rows(query)}
    return {n: {k: v for k, v in one.items() if k != "salt"} for n, one in found.items()}


def told_draws(run: Finished, exports: Mapping[str, bytes]) -> list[str]:
    """What the guesser finds out from digests."""
    meaning = dict(digests_of_draws(run))
    return sorted(
        f"{name}: {meaning[digest]}"
        for name, data in exports.items()
        for digest in {*DIGEST.findall(data.decode("latin-1"))} & meaning.keys()
    )


Place = tuple[str, ...]


def numbers_by_round(exports: Mapping[str, bytes]) -> dict[Place, dict[int, float]]:
    """Every number that an export states of a round, by where it stands."""
    found: dict[Place, dict[int, float]] = {}

    def note(place: Place, number: int, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                note((*place, str(key)), number, inner)
        elif isinstance(value, (list, tuple)):
            found.setdefault((*place, "length"), {})[number] = len(value)
        elif isinstance(value, (int, float)):
            found.setdefault(place, {})[number] = float(value)

    for row in json.loads(exports["summary.json"])["rounds"]:
        note(("summary",), row["round"], row)
    for line in exports["metrics.jsonl"].splitlines():
        note(("metrics",), json.loads(line)["round"], json.loads(line))
    for name, data in exports.items():
        if name.startswith("audit query") and name.endswith("json"):
            rows = [row for row in json.loads(data) if row["round"] is not None]
            for (number, action), times in Counter((r["round"], r["action"]) for r in rows).items():
                note((name, action, "entries"), number, times)
            for row in rows:
                note((name, row["action"]), row["round"], row["detail"])
    sizes = [int(json.loads(line)["note"].split("\n")[1]) for line in exports["heads"].splitlines()]
    # A head for a run's beginnings, then two for each round: opened and committed.
    for number in range(1, ROUNDS + 1):
        grown = [sizes[1 + 2 * number - 1 + i] - sizes[1 + 2 * number - 2 + i] for i in (0, 1)]
        note(("heads",), number, {"opened": grown[0], "committed": grown[1]})
    return found


def told_sizes(truth: Truth, exports: Mapping[str, bytes]) -> list[str]:
    """Numbers that go with the size of the cohort, or how many were lost, in every round."""
    return sorted(
        f"{' '.join(place)} tells {feature}"
        for place, values in numbers_by_round(exports).items()
        if not any(word in MEASURED for word in place)
        for feature in ("size", "survivors", "lost", "nobody")
        if goes_with(values, {n: truth.features(n)[feature] for n in values})
    )


def goes_with(values: Mapping[int, float], truth: Mapping[int, int]) -> bool:
    """Whether equal values mean equal truths, and different truths are told apart by them."""
    meaning: dict[float, set[int]] = {}
    for number, value in values.items():
        meaning.setdefault(value, set()).add(truth[number])
    is_repeated = 1 < len(meaning) < len(values)
    return is_repeated and all(len(means) == 1 for means in meaning.values())


def test_no_export_tells_who_was_drawn_or_how_many(run, exports):
    truth = Truth.of(run)
    drawn = [truth.features(number) for number in truth.cohorts]
    assert len({one["size"] for one in drawn}) >= 3 and len({one["lost"] for one in drawn}) >= 2
    assert told_draws(run, exports) == []
    assert told_sizes(truth, exports) == []
    # One for each plan and document, which nobody could try out.
    assert len(truth.salts) == 2 * ROUNDS and {len(salt) for salt in truth.salts} == {64}
    for salt in truth.salts:
        for name, data in exports.items():
            assert salt.encode() not in data and bytes.fromhex(salt) not in data, name
    for document in run.summary["rounds"]:
        withheld = ("cohort", "dropped", "bytes_up", "bytes_down", "seconds")
        assert all(document[name] is None for name in withheld)
    gauges = exports["page /metrics"].decode()
    named = re.findall(r"^(sotto_\w+)\{", gauges, re.MULTILINE)
    assert named and not {n for n in named if re.search("cohort|dropped|bytes|seconds", n)}


def test_epsilon_is_that_of_a_client_in_every_round_whoever_was_drawn(run: Finished) -> None:
    """What the most drawn client spent would tell how often that was."""
    for number, document in enumerate(run.summary["rounds"], start=1):
        expected = gaussian_epsilon(8.0, number)
        assert document["epsilon"]["peers"] == pytest.approx(expected, rel=1e-3)
    spent = run.storage.rows(
        "SELECT round_number, pseudonym, cohort_drawn, status FROM ledger ORDER BY 1, 2"
    )
    assert len(spent) == 5 * ROUNDS
    assert {(drawn, status) for _, _, drawn, status in spent} == {(1, "released")}


def test_in_the_report_all_clients_stand_alike_whoever_was_drawn(run: Finished) -> None:
    report = report_of(run)
    blocks = [b for b in section(report, "budget").blocks if isinstance(b, Table)]
    (clients,) = [block for block in blocks if block.columns[0] == "Clients"]
    assert len(clients.rows) == 1 and "(withheld)" not in text(report)
    assert "the coordinator's secret" in text(report)


@pytest.mark.parametrize(
    ("table", "column", "field", "found"),
    [
        ("attempts", "plan", "cohort", "that audit entry"),
        ("attempts", "plan", "salt", "that audit entry"),
        ("rounds", "document", "survivors", "SHA-256"),
    ],
)
def test_what_is_sealed_is_still_held_against_the_records(
    run, sotto, tmp_path, table, column, field, found
):
    """The newest document of a table is changed past our code, its digest computed anew."""
    storage = Storage(tmp_path / "copy")
    shutil.copytree(run.storage.folder, storage.folder, symlinks=True)
    query = f"SELECT round_number, {column} FROM {table} ORDER BY 1 DESC LIMIT 1"  # noqa: S608
    ((number, before),) = storage.rows(query)
    document = {**json.loads(before), field: "00" * 32 if field == "salt" else ["client-00000"]}
    after = json.dumps(document, sort_keys=True, separators=(",", ":"))
    where = f"UPDATE {table} SET {column} = '{after}' WHERE round_number = {number}"  # noqa: S608
    execute(storage.file, where)
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3 and found in answer.err


def test_a_run_of_an_early_version_verifies_and_its_draws_are_withheld(sotto, tmp_path):
    """Its ledger marks who was drawn, and prices the most drawn client by that."""
    with tarfile.open(VECTORS / "secret-cohorts.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    place = ("--storage", Storage(tmp_path / "runs").url)
    assert sotto("upgrade", *place).code == 0
    verified = sotto("audit", "verify", *place, "--json")
    assert (verified.code, verified.document["log"]["size"]) == (0, 40)
    spent = sotto("report", "latest", *place, "--json").document["final"]["epsilon"]
    # Three rounds, of which one client was drawn into each.
    assert spent["peers"] == pytest.approx(1.6980496153690625)
    report = sotto("report", "latest", "--format", "json", *place).out
    # Its summary states the sentences of its warnings without a code.
    (path,) = tmp_path.glob("runs/*/summary.json")
    told, notes = json.loads(path.read_text())["warnings"], sotto("report", "latest", *place).out
    assert len(told) == 5 and all(f"note: {text}" in notes and text in report for text in told)
    names = sotto("budget", "latest", *place, "--json").document["clients"]
    assert "no single clients" in report and len(names) == 5
    budget = report.split('"What each number rests on"')[0]
    assert not [one["pseudonym"] for one in names if one["pseudonym"] in budget]
