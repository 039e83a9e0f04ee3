"""The empirical audit of a run as it was planned: canaries through the code that protects clients.

Every channel on which something leaves a client is audited: the sum, the pool entry, and under
`dp_sgd` the training from which both are made. So is what comes before: how data holders answer
offers, what clients' folders on a disk change, what a client whose training fails shows of itself;
and what hostile peers see of a round. The claim is the ledger's row for the release and its price;
what is guessed from is what the real code hands on. The statistics are those of `privacy.auditing`;
the decision is taken at a family-wise error over all channels and checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from platform.bootstrap import RunPlan, Surroundings
from platform.config import RunConfig
from platform.errors import ConfigError
from platform.experiment.simulation import randomness
from platform.parties.profile import ClientProfile, RunNames, Safeguards
from platform.privacy_auditing.beginnings import audit_folders, audit_holders
from platform.privacy_auditing.hostile_rounds import (
    FailureAudit,
    FailureGame,
    audit_failures,
    audit_peers,
)
from platform.privacy_auditing.outcome import ChannelAudit, Game, Progress
from platform.privacy_auditing.records import RecordGame, audit_training
from platform.privacy_auditing.uploads import UploadGame, audit_upload
from privacy import Channel, Release, ReleaseKey

FAMILY_WISE_ERROR = 1e-6
SHARE_OF_FAILURES = 1e-3
"""What of that is for clients that fail: they are told apart by certainties, hardly by noise."""
AUDIT = "audit"


@dataclass(frozen=True)
class AuditPlan:
    """What is audited.

    Attributes:
        run: The run as it was planned; nothing of it is written anywhere.
        canaries: Guesses a channel.
        family_wise_error: Probability that a right build is refuted.
    """

    run: RunPlan
    canaries: int
    family_wise_error: float = FAMILY_WISE_ERROR


def require_claim(config: RunConfig) -> None:
    """Require a mechanism that claims something, before anything is made for its audit.

    Raises:
        ConfigError: If it claims nothing.
    """
    if not config.mechanism.facts.claims:
        raise _nothing_claimed(config)


def _nothing_claimed(config: RunConfig) -> ConfigError:
    return ConfigError(
        f"privacy.mechanism: {config.privacy.mechanism!r} with {config.method.name} claims no "
        "epsilon, so there is nothing to audit; valid: a mechanism with noise on what is released"
    )


def audit_run(plan: AuditPlan, tell: Progress) -> list[ChannelAudit]:
    """Audit every channel of a run.

    Args:
        plan: What to audit.
        tell: Told how far each channel's canaries have come.

    Returns:
        One outcome a channel; two where clients are in groups.

    Raises:
        ConfigError: If the configuration claims nothing that could be audited.
    """
    config, protection = plan.run.terms.config, plan.run.terms.protection
    charges = {row.channel: row for row in _charges(plan)}
    collecting = _collecting(plan)
    if not charges or not all(row.standard_deviation for row in charges.values()):
        raise _nothing_claimed(config)
    profile = _profile(plan)
    if protection.training is not None:
        game = RecordGame(
            run=plan.run,
            profile=profile,
            mechanism=protection.training,
            charge=charges["sum"],
            canaries=plan.canaries,
            error=plan.family_wise_error * (1.0 - SHARE_OF_FAILURES),
        )
        return [audit_training(game, tell)]
    games = tuple(_games(plan))
    error = plan.family_wise_error * (1.0 - SHARE_OF_FAILURES) / len(games)
    return [
        audit_upload(
            UploadGame(
                run=plan.run if channel == "sum" else collecting,
                profile=profile,
                channel=channel,
                # Under `same` a pool entry is the upload itself and has no row of its own.
                charge=charges[channel if channel in charges else "sum"],
                canaries=plan.canaries,
                error=error,
                apart=apart,
            ),
            tell,
        )
        for channel, apart in games
    ]


def audit_failing(plan: AuditPlan) -> FailureAudit:
    """Audit the visible behaviour of clients whose training fails, in a whole round.

    Args:
        plan: What to audit; its canaries play no part.
    """
    return audit_failures(game_of(plan))


def audit_games(plan: AuditPlan, surroundings: Surroundings) -> list[Game]:
    """Play the games without canaries: offers, folders, failures and hostile peers.

    Args:
        plan: What to audit; its canaries play no part.
        surroundings: What data holders take from outside.
    """
    return [
        audit_holders(surroundings),
        audit_folders(game_of(plan)),
        audit_failing(plan),
        audit_peers(plan.run),
    ]


def game_of(plan: AuditPlan) -> FailureGame:
    """Return the run and its first client, of whom whole rounds are played."""
    return FailureGame(plan.run, _profile(plan), plan.family_wise_error * SHARE_OF_FAILURES)


def _charges(plan: AuditPlan) -> tuple[Release, ...]:
    """Return the ledger's rows for one client in one round and the collection, not amplified."""
    protection = plan.run.terms.protection
    key = ReleaseKey(run_id=AUDIT, round_number=1, attempt=1, pseudonym=AUDIT)
    rows = protection.at(protection.clipping_norm).releases(key)
    if protection.collection is None:
        return rows
    return rows + protection.collection.releases(replace(key, round_number=2))


def _collecting(plan: AuditPlan) -> RunPlan:
    """Return the run in the state in which pool entries leave: in its collection, if any."""
    collection = plan.run.terms.protection.collection
    if collection is None:
        return plan.run
    return replace(plan.run, terms=replace(plan.run.terms, protection=collection))


def _games(plan: AuditPlan) -> Iterator[tuple[Channel, bool]]:
    """Yield each channel on which a vector leaves the client; twice for neighbours in two groups.

    Under `pool.noise: same` the pool entry is a channel as well.
    """
    if plan.run.terms.protection.layout.spec:
        yield "sum", False
    if _collecting(plan).terms.protection.pool_spec is not None:
        yield "pool", False
    grouped = plan.run.terms.protection.extras.groups is not None
    if grouped and plan.run.terms.config.relation == "replace_one":
        yield "sum", True


def _profile(plan: AuditPlan) -> ClientProfile:
    """Return the first client, with streams of the audit's own where noise comes from a seed."""
    config, learning = plan.run.terms.config, plan.run.learning
    name = min(learning.train)
    return ClientProfile(
        name=name,
        run=RunNames(AUDIT),
        method=learning.method,
        data=learning.train[name],
        # Canaries take more rounds than the run has, and no number may mean the collection.
        protection=replace(plan.run.terms.protection, collection=None, collects_at=None),
        randomness=randomness(config),
        safeguards=Safeguards(simulated=True),
    )
