"""A client's personal states in its own store, and how they follow the coordinator's commits."""

from __future__ import annotations

from dataclasses import dataclass

from platform.errors import ClientRestored, CoordinatorBehind, ProtocolError
from platform.parties.profile import ClientProfile, PersonalState, first_state
from platform.wire.codec import decode_arrays
from platform.wire.envelopes import Attempt
from platform.wire.experts import decode_experts, handle
from storage import ClientStore


@dataclass(frozen=True)
class PersonalStates:
    """The personal states of one client.

    Attributes:
        profile: The client.
        store: Its own.
    """

    profile: ClientProfile
    store: ClientStore

    def after(self, committed: Attempt | None) -> tuple[PersonalState, Attempt | None]:
        """Return the state that counts once `committed` is committed, and the attempt it is of.

        Both are the newest where the client has gone on from there.
        """
        run = self.profile.run
        found = self._saved(run.run_id, committed) or self._saved(run.source, committed)
        return found or (self._first(), None)

    def before_parting(self, committed: Attempt | None) -> PersonalState:
        """Return the state from which the client personalises: of the run that had the rounds."""
        found = self._saved(self.profile.run.source, committed)
        return self._first() if found is None else found[0]

    def is_kept(self, kept_as: Attempt) -> bool:
        """Return whether what was personalised is kept under that attempt."""
        kept = self.store.committed(self.profile.run.run_id)
        return kept is not None and kept[:2] == kept_as

    def require_caught_up(self) -> None:
        """Refuse to go on in a store that came back from a backup and is not caught up with.

        Raises:
            ClientRestored: If it is such a store.
        """
        since = self.store.restoring.pending_since()
        if since is not None:
            raise ClientRestored(
                f"the client takes no part: its store was restored from a backup at {since}, and "
                "it has not caught up with what it released since"
            )

    def require_known(self, committed: Attempt | None) -> None:
        """Refuse a commit of which this client's update cannot be a part.

        Raises:
            CoordinatorBehind: If the client knows of a newer one.
            ProtocolError: If it took no part in the one that is named.
        """
        run_id = self.profile.run.source
        last, pending = (slot and slot[:2] for slot in self.store.slots(run_id))
        if last is not None and last > (committed or (0, 0)):
            raise CoordinatorBehind(
                f"client {self.store.identity.pseudonym}: it knows that round {last[0]}, attempt "
                f"{last[1]} of run {run_id} is committed, and the coordinator does not; its "
                "database is older than the client's"
            )
        if committed in (last, pending):
            return
        # Of an attempt that a restored store caught up with, only the charge is left.
        if committed is None or not self.store.restoring.has_taken_over(run_id, committed):
            raise ProtocolError("message: it names a commit that this client took no part in")

    def roll(self, committed: Attempt | None) -> None:
        """Follow the coordinator's commit: personal part, own ledger and session."""
        self.follow(committed)
        sessions, run_id = self.store.sessions, self.profile.run.source
        session = sessions.newest(run_id)
        if session is not None and (session.round_number, session.attempt) == committed:
            sessions.forget(run_id)

    def follow(self, committed: Attempt | None) -> None:
        """Follow the coordinator's commit: personal part and own ledger, not the session."""
        self.store.roll(self.profile.run.source, committed)
        if committed is not None:
            self.store.release(self.profile.run.source, *committed)

    def pool_handle(self, round_number: int) -> bytes:
        """Return what this client presents as the owner of its entry of that round."""
        return handle(self.store.identity.handle_secret, self.profile.run.source, round_number)

    def _saved(
        self, run_id: str, committed: Attempt | None
    ) -> tuple[PersonalState, Attempt | None] | None:
        saved, pending = self.store.slots(run_id)
        if pending is not None and pending[:2] == committed:
            saved = pending
        if saved is None:
            return None
        state = PersonalState(decode_arrays(saved.personal), decode_experts(saved.experts))
        return state, (saved.round_number, saved.attempt)

    def _first(self) -> PersonalState:
        return PersonalState(first_state(self.profile), ())
