"""The only place that joins methods, privacy, storage and the run.

It builds, and if necessary refuses, everything before it writes anything.
"""

from platform.bootstrap.planning import (
    RunPlan,
    Surroundings,
    create_run,
    plan_run,
    plan_terms,
    reopen_run,
    stored_config,
)

__all__ = [
    "RunPlan",
    "Surroundings",
    "create_run",
    "plan_run",
    "plan_terms",
    "reopen_run",
    "stored_config",
]
