"""Budgets as plain data, for JSON and for tables: warnings first, and what an epsilon means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from platform.agreement.budgets import ClientBudget, RunBudget, left_of
from platform.agreement.reading import Agreed
from platform.agreement.statements import stopping_of
from platform.protection.ledger_rows import as_releases
from platform.rounds.documents import epsilon_document, in_rounds, json_number
from privacy import Epsilons, RunningLedger

SCHEMA_VERSION: Final = 1


def budget_document(budget: RunBudget, warnings: Sequence[str]) -> dict[str, Any]:
    """Return a run's budget as plain data, warnings first; infinity as "inf"."""
    agreed, claims = budget.agreed, budget.agreed.config.mechanism.facts.claims
    return {
        "warnings": list(warnings),
        **terms_document(agreed, budget.epsilons),
        "clients": [_client_document(one, claims=claims) for one in budget.clients],
        "attempts": [
            {
                "round": one.round_number,
                "attempt": one.attempt,
                "state": one.state,
                "why": one.why,
                "clients_charged": one.charged,
                "cost": json_number(cost),
            }
            for one, cost in budget.attempts
        ],
        "forecast": _forecast_document(budget),
    }


def terms_document(agreed: Agreed, spent: Epsilons) -> dict[str, Any]:
    """Return what a run's epsilons mean, and those of the worst client."""
    config, facts = agreed.config, agreed.config.mechanism.facts
    claims, is_over = facts.claims, agreed.summary is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": agreed.records.run_id,
        "phase_two_of": config.phase_two_of,
        "status": agreed.records.run.status,
        "finished": is_over,
        "rounds_over": len(in_rounds([row.document for row in agreed.spending.rounds])),
        "rounds_planned": config.rounds,
        "mechanism": facts.name,
        "unit": facts.unit,
        "relation": config.relation if claims else None,
        "delta": config.privacy.target_delta,
        "accountant": spent.accountant,
        "limited_against": _limited_against(agreed),
        "target_epsilon": config.privacy.target_epsilon,
        "lifetime_budget": config.privacy.lifetime_budget,
        **_spent(spent, is_known=not agreed.is_unpriced),
        "left": left_of(config.privacy.target_epsilon, spent.claimed),
        "stopping": stopping_of(agreed.spending, config),
    }


def _limited_against(agreed: Agreed) -> str | None:
    """Return whose epsilon `spent`, `left` and every limit are."""
    facts = agreed.config.mechanism.facts
    if not facts.claims:
        return None
    return "peers" if facts.is_bare_to_server else "server"


def _spent(spent: Epsilons, *, is_known: bool) -> dict[str, Any]:
    """Return what was spent; nothing at all where the first release will cost infinity."""
    epsilon, claimed = epsilon_document(spent), json_number(spent.claimed)
    if is_known:
        return {"epsilon": epsilon, "spent": claimed}
    return {"epsilon": dict.fromkeys(epsilon), "spent": None}


def _client_document(one: ClientBudget, *, claims: bool) -> dict[str, Any]:
    is_known = claims or one.releases > 0
    life = one.lifetime
    return {
        "pseudonym": one.member.pseudonym,
        "number": one.member.number,
        "takes_part": not one.member.gone,
        **_spent(one.epsilons, is_known=is_known),
        "releases": one.releases,
        "reserved": {
            "epsilon": json_number(one.reserved.epsilon),
            "releases": dict(one.reserved.releases),
        },
        "left": one.left,
        "lifetime": {
            "spent": None
            if life.epsilon is None or not (claims or life.runs)
            else json_number(life.epsilon),
            "left": life.left,
            "problem": life.problem,
            "holds": life.holds,
            "runs": list(life.runs),
        },
        "rounds_left": one.rounds_left,
    }


def _forecast_document(budget: RunBudget) -> dict[str, Any] | None:
    if budget.coming is None:
        return None
    return {"rounds_to_come": budget.coming.rounds, "rounds_left": budget.rounds_left}


def overview_document(
    agreed: Agreed, warnings: Sequence[str], only: str | None = None
) -> dict[str, Any]:
    """Return what a run has spent, in one row of a table of runs.

    Args:
        agreed: The run.
        warnings: What must be said of its claim.
        only: Of this client; None for the largest epsilon over all.

    Raises:
        UnsupportedEvent: If the run's releases cannot be priced together.
    """
    section = agreed.config.privacy
    ledger = RunningLedger(as_releases(agreed.spending.ledger, agreed.config.mechanisms))
    chosen = ledger if only is None else RunningLedger.joined((ledger,), [only])
    spent = chosen.epsilons(section.target_delta, section.accountant)
    return {"warnings": list(warnings), **terms_document(agreed, spent)}
