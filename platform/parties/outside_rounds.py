"""What a client answers before the first round and after the last.

None of it is a release: nothing here has noise, and nothing is charged, so nothing here may say
anything of a client's data to a coordinator that asks in bad faith, at any time and in any order.

- *Roll call*: name, public key, and the newest attempt that was answered, which are no function of
  the data; by the last a coordinator finds out that its database is an old copy.
- *Notice*: the name of the own entry in a pool that is made once, and of no other round; it is a
  keyed hash which the coordinator was given with the entry. A client that gave no entry names one
  that is nobody's.
- *Parting*: whether there was anything to do. What is personalised stays here, failures are kept
  to the client as in a round, and after it the client takes part in no round any more: its personal
  part then follows from data and experts without noise, and may never be trained on for a release.
- *Examination*: exact counts. Refused unless all clients are in the coordinator's own process.

A request that is repeated gives the same answer, so none of them is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from methods import ClientView
from platform.errors import ProtocolError
from platform.parties.expectations import (
    Expectations,
    require_broadcast,
    require_last_round_over,
    require_parting,
)
from platform.parties.personal_states import PersonalStates
from platform.parties.profile import TrainerFactory, as_sent, view_of
from platform.parties.scoring import LOCAL, mean_weights
from platform.parties.totality import personalise
from platform.wire.codec import encode_arrays
from platform.wire.envelopes import Attempt
from platform.wire.experts import Fetched, encode_experts
from platform.wire.outside_rounds import (
    Claim,
    Examination,
    Introduction,
    Parting,
    Personalised,
    PoolNotice,
    RollCall,
    Scores,
    decode_examination,
    decode_parting,
    decode_pool_notice,
    decode_roll_call,
    encode_claim,
    encode_introduction,
    encode_personalised,
    encode_scores,
)


@dataclass(frozen=True)
class OutsideRounds:
    """Answers one client's messages outside rounds.

    Attributes:
        states: The client's, with its profile and store.
        make_trainer: Its trainers.
        expected: What it may be told.
        remember: Told of a failure that does not show, and of the attempt that it happened in.
    """

    states: PersonalStates
    make_trainer: TrainerFactory
    expected: Expectations
    remember: Callable[[Attempt, str], None]

    def answer(self, kind: str, message: bytes) -> bytes:
        """Answer one message of a kind in `KINDS`.

        Raises:
            ProtocolError: If it may not be answered; nothing has changed.
        """
        if kind == "roll_call":
            return self._introduce(decode_roll_call(message))
        if kind == "pool_notice":
            return self._claim(decode_pool_notice(message))
        if kind == "parting":
            return self._part(decode_parting(message))
        return self._examine(decode_examination(message))

    def _introduce(self, call: RollCall) -> bytes:
        envelope = call.envelope
        if (envelope.round_number, envelope.attempt, envelope.committed) != (0, 0, None):
            raise ProtocolError("message: the roll is called before the first round")
        credentials, store = self.states.profile.safeguards.credentials, self.states.store
        key = b"" if credentials is None else credentials.identity.public
        known = store.sessions.newest(envelope.run_id)
        newest = None if known is None else (known.round_number, known.attempt)
        return encode_introduction(Introduction(envelope, store.identity.pseudonym, key, newest))

    def _claim(self, notice: PoolNotice) -> bytes:
        require_last_round_over(self.expected, notice.envelope)
        if self.expected.fetched is None:
            raise ProtocolError("message: no pool is made once in this run")
        # The collection is the last round; there is no choice of another.
        return encode_claim(Claim(notice.envelope, self.states.pool_handle(self.expected.rounds)))

    def _part(self, parting: Parting) -> bytes:
        require_parting(self.expected, parting)
        envelope, states = parting.envelope, self.states
        kept_as = (envelope.round_number, envelope.attempt)
        if states.is_kept(kept_as):
            return encode_personalised(Personalised(envelope, is_new=False))
        states.require_caught_up()
        states.require_known(envelope.committed)
        before = states.before_parting(envelope.committed)
        taken = parting.fetched or Fetched(before.experts, None)
        view = ClientView(parting.broadcast, taken.experts, before.personal, taken.own)
        personal = personalise(
            states.profile,
            self.make_trainer,
            as_sent(states.profile, view),
            round_number=kept_as[0],
            remember=partial(self.remember, kept_as),
        )
        run_id, store = states.profile.run.run_id, states.store
        kept, experts = encode_arrays(personal), encode_experts(taken.experts)
        with store.atomically():
            states.roll(envelope.committed)
            store.put_pending(run_id, *kept_as, personal=kept, experts=experts)
            store.roll(run_id, kept_as)
            # An attempt that is still open here is never gone on with: its releases are over.
            store.sessions.forget(run_id)
        return encode_personalised(Personalised(envelope, is_new=True))

    def _examine(self, examination: Examination) -> bytes:
        profile, states, envelope = self.states.profile, self.states, examination.envelope
        if not profile.safeguards.simulated:
            raise ProtocolError("message: nobody but the client itself measures its model")
        if not profile.measured.names.issuperset(examination.sets):
            raise ProtocolError("message: there is no such set of images")
        require_broadcast(self.expected, examination.broadcast)
        state, after = states.after(envelope.committed)
        view, method = as_sent(profile, view_of(examination.broadcast, state)), profile.method
        tallies = {name: profile.measured.tally(method, view, name) for name in examination.sets}
        weights = None
        if examination.weighs:
            weights = mean_weights(method, view, profile.measured.named(LOCAL))
        return encode_scores(Scores(envelope, tallies, weights, after))


KINDS: Final = frozenset({"roll_call", "pool_notice", "parting", "examination"})
"""Kinds of messages that are no part of a round."""
