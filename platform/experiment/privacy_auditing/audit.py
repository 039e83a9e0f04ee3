"""The empirical audit of a planned run: it sends canaries through the code that protects clients.

The audit covers every channel on which a vector leaves a client: the sum, the pool entry, and under
`dp_sgd` the training behind both. Further games look at data holders' answers to offers, at changed
folders, at clients whose training fails, and at hostile peers. The claim is the ledger's row for a
release and its price. The audit guesses from the output of the real code, by the statistics of
`privacy.auditing`, and decides at a family-wise error over all channels and checks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from platform.config import RunConfig
from platform.errors import ConfigError
from platform.experiment.planning import RunPlan, Surroundings
from platform.experiment.privacy_auditing.beginnings import audit_folders, audit_holders
from platform.experiment.privacy_auditing.hostile_rounds import (
    FailureAudit,
    FailureGame,
    audit_failures,
    audit_peers,
)
from platform.experiment.privacy_auditing.outcome import ChannelAudit, Game, Progress
from platform.experiment.privacy_auditing.records import RecordGame, audit_training
from platform.experiment.privacy_auditing.uploads import UploadGame, audit_upload
from platform.experiment.simulation import randomness
from platform.parties.profile import ClientProfile, RunNames, Safeguards
from privacy import Channel, ReleaseKey

FAMILY_WISE_ERROR = 1e-6
SHARE_OF_FAILURES = 1e-3
"""Share of the error for clients that fail: certain facts tell them apart, hardly ever noise."""
AUDIT = "audit"


@dataclass(frozen=True)
class AuditPlan:
    """The plan of an audit: the run, of which it stores nothing, and the guesses on each channel.

    The family-wise error is the probability that the audit refutes a correct build.
    """

    run: RunPlan
    canaries: int
    family_wise_error: float = FAMILY_WISE_ERROR


def require_claim(config: RunConfig) -> None:
    """Require a mechanism that claims an epsilon."""
    if not config.mechanism.facts.claims:
        raise _nothing_claimed(config)


def _nothing_claimed(config: RunConfig) -> ConfigError:
    return ConfigError(
        f"privacy.mechanism: {config.privacy.mechanism!r} with {config.method.name} claims no "
        "epsilon, so there is nothing to audit; valid: a mechanism with noise on what is released"
    )


def audit_run(plan: AuditPlan, tell: Progress) -> list[ChannelAudit]:
    """Audit every channel of a run; return one outcome a channel, two if clients are in groups."""
    config, protection = plan.run.terms.config, plan.run.terms.protection
    # One client's ledger rows of one round and the collection, without amplification.
    key = ReleaseKey(run_id=AUDIT, round_number=1, attempt=1, pseudonym=AUDIT)
    rows, collecting = protection.at(protection.clipping_norm).releases(key), plan.run
    if protection.collection is not None:
        rows += protection.collection.releases(replace(key, round_number=2))
        # The run at the time when pool entries leave a client.
        terms = replace(plan.run.terms, protection=protection.collection)
        collecting = replace(plan.run, terms=terms)
    charges = {row.channel: row for row in rows}
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
    # Each channel, and whether neighbours are in two groups on it.
    games: list[tuple[Channel, bool]] = []
    if protection.layout.spec:
        games.append(("sum", False))
    # Under `pool.noise: same` the pool entry is a channel as well.
    if collecting.terms.protection.pool_spec is not None:
        games.append(("pool", False))
    if protection.extras.groups is not None and config.relation == "replace_one":
        games.append(("sum", True))
    error = plan.family_wise_error * (1.0 - SHARE_OF_FAILURES) / len(games)
    return [
        audit_upload(
            UploadGame(
                run=plan.run if channel == "sum" else collecting,
                profile=profile,
                channel=channel,
                # Under `same` a pool entry is the upload itself, so it has no own row.
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
    """Audit the visible behaviour of clients whose training fails, without canaries."""
    return audit_failures(game_of(plan))


def audit_games(plan: AuditPlan, surroundings: Surroundings) -> list[Game]:
    """Play the games without canaries: offers, folders, failures and hostile peers."""
    return [
        audit_holders(surroundings),
        audit_folders(game_of(plan)),
        audit_failing(plan),
        audit_peers(plan.run),
    ]


def game_of(plan: AuditPlan) -> FailureGame:
    """Return the run and its first client, for the games that play whole rounds."""
    return FailureGame(plan.run, _profile(plan), plan.family_wise_error * SHARE_OF_FAILURES)


def _profile(plan: AuditPlan) -> ClientProfile:
    """Return the first client; if noise comes from a seed, the audit has its own streams."""
    config, learning = plan.run.terms.config, plan.run.learning
    name = min(learning.train)
    return ClientProfile(
        name=name,
        run=RunNames(AUDIT),
        method=learning.method,
        data=learning.train[name],
        # The audit plays more rounds than the run has, and no round is the collection.
        protection=replace(plan.run.terms.protection, collection=None, collects_at=None),
        randomness=randomness(config),
        safeguards=Safeguards(simulated=True),
    )
