"""After the last release: clients personalise, with a pool that was made once where there is one.

What they make of it never leaves them. It is kept in the client's own store under an attempt of its
own, one past the last round, and what an interrupted finish has done stays done.
"""

from __future__ import annotations

from collections.abc import Iterator

from methods import Arrays
from platform.rounds.asking import Question, ask_all
from platform.rounds.pool import FixedPool, fixed_pool
from platform.rounds.progress import Progress
from platform.rounds.run import Run
from platform.wire.codec import Envelope
from platform.wire.outside_rounds import (
    Parting,
    PoolNotice,
    decode_claim,
    decode_personalised,
    encode_parting,
    encode_pool_notice,
)
from platform.wire.transport import ClientId


def personalise(run: Run, progress: Progress) -> float | None:
    """Let every client personalise, and keep the result in its own store.

    Args:
        run: The run.
        progress: After its last round.

    Returns:
        Seconds that it took; None where an interrupted finish had done a part of it before.

    Raises:
        ClientsSilent: If a client cannot be heard.
    """
    started, left = run.clock(), run.roll.left
    claims = _claims(run, progress) if run.terms.fetches_at_end else {}
    questions = _partings(run, progress, claims)
    done = ask_all(run.transport, "personalise", questions, decode_personalised, left=left)
    is_whole = all([answer.is_new for _, answer in done])
    return run.clock() - started if is_whole else None


def pool_gone(run: Run, progress: Progress) -> str | None:
    """Return why clients personalised without experts, None where they had some, or need none."""
    pool = _pool(run)
    if progress.uncollected is not None or pool is None or pool.experts or not run.roll.left:
        return progress.uncollected
    return "a client that had given an entry has left, and all entries went with its own"


def _claims(run: Run, progress: Progress) -> dict[ClientId, bytes]:
    """Return the name that each client gives its own entry."""
    envelopes = {client: _envelope(run, progress, client) for client in run.roll.present}
    notices = (Question(c, e, encode_pool_notice(PoolNotice(e))) for c, e in envelopes.items())
    answers = ask_all(run.transport, "claim", notices, decode_claim, left=run.roll.left)
    return {client: claim.handle for client, claim in answers}


def _partings(run: Run, progress: Progress, claims: dict[ClientId, bytes]) -> Iterator[Question]:
    pool, gone = _pool(run), len(run.roll.left)
    for client in run.roll.present:
        if len(run.roll.left) > gone:
            # All entries went with those of whoever has left meanwhile.
            pool, gone = _pool(run), len(run.roll.left)
        broadcast: Arrays = run.terms.method.broadcast(progress.state, client)
        envelope = _envelope(run, progress, client)
        fetched = None if pool is None else pool.fetch(claims.get(client, b""))
        yield Question(client, envelope, encode_parting(Parting(envelope, broadcast, fetched)))


def _envelope(run: Run, progress: Progress, client: ClientId) -> Envelope:
    return Envelope(run.run_id, *run.terms.final_attempt, progress.committed.get(client))


def _pool(run: Run) -> FixedPool | None:
    """Return what all clients fetch after the last round, where the pool is made once."""
    rules, number = run.terms.pool_rules, run.terms.protection.collects_at
    if rules is None or number is None or not run.terms.fetches_at_end:
        return None
    with run.records.read() as uow:
        return fixed_pool(uow.pool.entries(run.source), number, rules.minimum)
