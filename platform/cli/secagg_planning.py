"""`secagg-plan`: graph and threshold of secure aggregation, computed before a run is configured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from platform.cli.output import console, print_json, table
from platform.errors import ConfigError
from privacy.errors import CalibrationError
from privacy.secure_aggregation import Plan, plan
from privacy.secure_aggregation.masking import packed_bytes
from privacy.secure_aggregation.parameters import CORRECTNESS_BITS, SECURITY_BITS, GraphChoice

# Wire sizes of `docs/secure-aggregation.md`: bytes that a client sends for each neighbour (box and
# revealed share; against an active adversary two commitments more) and once.
_PER_NEIGHBOUR = {False: 98 + 38, True: 98 + 64 + 38}
_ONCE = {False: 4 * 68 + 64 + 32 + 38, True: 5 * 116 + 64 + 32 + 64 + 32 + 38}

_REGIMES: tuple[tuple[bool, GraphChoice], ...] = (
    (False, "complete"),
    (False, "k_regular"),
    (True, "complete"),
)


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What the aggregation has to withstand.

    Attributes:
        clients: Size of the cohort.
        corrupt_rate: Share of it that may collude with the coordinator.
        dropout_rate: Share of it that may be lost.
        security_bits: Secrecy fails with probability at most 2^-security_bits.
        correctness_bits: A round aborts with probability at most 2^-correctness_bits.
        length: Number of values in a vector.
        ring_bits: Bits of each of them.
    """

    clients: int
    corrupt_rate: float = 0.05
    dropout_rate: float = 0.1
    security_bits: float = SECURITY_BITS
    correctness_bits: float = CORRECTNESS_BITS
    length: int = 65_536
    ring_bits: int = 32


def secagg_plan_command(question: PlanQuestion, *, as_json: bool) -> None:
    """Print the numbers of every regime, and which graph `auto` takes.

    Raises:
        ConfigError: If a number is out of its range.
    """
    try:
        documents = list(_documents(question))
    except ValueError as error:
        raise ConfigError(f"secagg-plan: {error}") from error
    if as_json:
        print_json(documents)
    else:
        _show(question, documents)


def _documents(question: PlanQuestion) -> Iterator[Mapping[str, Any]]:
    for active, graph in _REGIMES:
        base = {
            "adversary": "active" if active else "semi_honest",
            "graph": graph,
            "rule": "2t > n + c" if active else "t > c" if graph == "complete" else "bounds",
        }
        try:
            found, auto = _plan(question, active, graph), _plan(question, active, "auto")
        except CalibrationError as error:
            refused = dict.fromkeys(("neighbours", "threshold", "corrupt", "smallest_sum"))
            yield base | refused | {"chosen": False, "refused": str(error)}
            continue
        yield base | _numbers(question, found) | {"chosen": found == auto, "refused": None}


def _plan(question: PlanQuestion, active: bool, graph: GraphChoice) -> Plan:
    return plan(
        question.clients,
        corrupt_rate=question.corrupt_rate,
        dropout_rate=question.dropout_rate,
        active=active,
        graph=graph,
        security_bits=question.security_bits,
        correctness_bits=question.correctness_bits,
    )


def _numbers(question: PlanQuestion, found: Plan) -> dict[str, Any]:
    sent = found.neighbours * _PER_NEIGHBOUR[found.active] + _ONCE[found.active]
    return {
        "neighbours": found.neighbours,
        "threshold": found.threshold,
        "corrupt": found.corrupt,
        "smallest_sum": found.smallest_sum,
        "security_bits": _finite(found.security_bits),
        "correctness_bits": _finite(found.correctness_bits),
        "bytes_up": sent + packed_bytes(question.length, question.ring_bits),
    }


def _finite(bits: float) -> float | None:
    # Infinity, where the rule holds for certain, is no JSON.
    return None if math.isinf(bits) else round(bits, 1)


def _show(question: PlanQuestion, documents: Sequence[Mapping[str, Any]]) -> None:
    names = ("adversary", "graph", "rule", "neighbours", "threshold", "corrupt", "smallest_sum")
    short = ("adversary", "graph", "rule", "k", "t", "c", "least sum")
    columns = (*short, "leaks", "aborts", "bytes up", "auto")
    rows = [
        (
            *("-" if d[name] is None else str(d[name]) for name in names),
            _said(d, "security_bits"),
            _said(d, "correctness_bits"),
            f"{d['bytes_up']:,}" if "bytes_up" in d else "-",
            "yes" if d["chosen"] else "",
        )
        for d in documents
    ]
    out = console()
    out.print(table(f"secure aggregation of {question.clients} clients", columns, rows))
    for document in documents:
        if document["refused"] is not None:
            out.print(
                f"{document['adversary']}, {document['graph']}: {document['refused']}",
            )


def _said(document: Mapping[str, Any], name: str) -> str:
    if document["refused"] is not None:
        return "-"
    bits = document[name]
    return "never" if bits is None else f"2^-{bits:.1f}"
