"""How good exactly those arrays are that an export writes.

A run's report states the accuracy of clients' final models, each with its own part. What is
exported is something else: the shared part alone, or one client's model. So it is measured anew.
"""

from __future__ import annotations

from methods import ClientView, Method
from methods.errors import MethodError
from platform.experiment.evaluation import Accuracy, EvaluationPlan, over_clients
from platform.parties.scoring import CommonScores, EvaluationSet
from platform.wire.transport import ClientId


def exported_accuracy(
    method: Method, view: ClientView, plan: EvaluationPlan, client: ClientId | None
) -> Accuracy | None:
    """Return accuracy of one model on clients' test examples.

    Args:
        method: Predicts.
        view: All that is exported.
        plan: Who is measured, and on what.
        client: Whose model it is, measured on this client's examples alone; None for what all
            share.

    Returns:
        The accuracy; None where a method predicts nothing without a client's own part, or nobody
        has test examples.
    """
    measured = plan.measured if client is None else (client,)
    # All of them live as long as the scores, which know a set by its identity.
    tests, scores = [_test_of(plan, each) for each in measured], CommonScores()
    try:
        tallies = [(scores.count(method, view, test), test.examples.num_examples) for test in tests]
    except MethodError:
        return None
    return over_clients(tallies) if any(count for _, count in tallies) else None


def _test_of(plan: EvaluationPlan, client: ClientId) -> EvaluationSet:
    """Return what a client's accuracy is on in the report."""
    if client in plan.everything:
        return plan.everything[client]
    return EvaluationSet(plan.own[client], plan.classes)
