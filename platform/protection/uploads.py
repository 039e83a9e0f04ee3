"""A client's protection of its update and its pool entry.

The mechanism fixes the order: clip the whole difference as one vector, add noise, and put it on the
grid that is masked and summed. A pool entry travels as the difference to the broadcast too. Under
`same` it is the identical noised vector and no second release. Under `independent` the client adds
all of the entry's own noise, and the entry has its own charge. Under `dp_sgd` the training steps
are noised and charged, so update and entry are sent without more noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, LocalResult
from platform.errors import ProtocolError
from platform.mechanisms import EntryNoise
from platform.protection.extras import Extras, around, require_one_block
from platform.protection.sums import SecureTerms, SumProtection, protect
from platform.wire.layout import (
    LARGEST_COORDINATE,
    Spec,
    UploadLayout,
    entry_base,
    flatten,
    level_type,
    require_same,
    require_spec,
    unflatten,
    vector_length,
)
from privacy import (
    NO_STATE,
    Channel,
    ClientMechanism,
    CohortSampling,
    DpSgd,
    Grid,
    NoiseSource,
    NoiseState,
    ProtectedUpload,
    Release,
    ReleaseKey,
    grid_of,
    release_of_upload,
    reserved,
)


@dataclass(frozen=True)
class Prepared:
    """The protected results of one attempt, which may leave the client.

    Attributes:
        levels: The protected update as integers, before weights; None where it travels exactly.
        vector: The protected update as numbers.
        entry: The pool entry as it is sent, empty without one.
        channels: The channels of these releases.
        state: The state from which the noise of the client's next attempt continues, empty if it
            is drawn afresh. It never leaves the client.
    """

    levels: NDArray[np.uint64] | None
    vector: NDArray[np.float64]
    entry: Arrays
    channels: tuple[Channel, ...]
    state: NoiseState = field(default_factory=dict, repr=False, kw_only=True)


LEVELS = "levels"


@dataclass(frozen=True, kw_only=True)
class EntryProtection:
    """The protection of a pool entry.

    Attributes:
        noise: Whether it carries the sum's noise or its own.
        mechanism: The entry's own mechanism, whose noise must be on the client. None if the entry
            has the mechanism of the sum.
    """

    spec: Spec
    noise: EntryNoise
    mechanism: ClientMechanism | None = None

    def around(self, clipping_norm: float) -> EntryProtection:
        """Return the same around another norm."""
        if self.mechanism is None:
            return self
        return dataclasses.replace(self, mechanism=around(self.mechanism, clipping_norm))


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How one round, or the collection of a pool, protects everything that leaves a client.

    Attributes:
        sums: The protection of the vector that is summed, and of the sum.
        entries: The protection of a pool entry, None without a pool.
        training: Noise in local steps; then uploads and entries are only carried.
        charged: Whether a round has a charge; false if it only sends values that were released
            before, as noised steps.
        collection: The protection of the round in which a pool is made once, before all others or
            after them; None without such a pool.
        collects_at: Number of that round: 1 before all others.
    """

    sums: SumProtection
    entries: EntryProtection | None = None
    training: DpSgd | None = None
    charged: bool = True
    collection: Protection | None = None
    collects_at: int | None = None

    @property
    def mechanism(self) -> ClientMechanism:
        """The mechanism of the vector that is summed."""
        return self.sums.mechanism

    @property
    def layout(self) -> UploadLayout:
        """Layout of that vector."""
        return self.sums.layout

    @property
    def masked(self) -> bool:
        """Whether the sum is taken under secure aggregation."""
        return self.sums.masked

    @property
    def terms(self) -> SecureTerms | None:
        """The terms of the secure sum, None without masks."""
        return self.sums.terms

    @property
    def extras(self) -> Extras:
        """The coordinates that are clipped and noised beside the update."""
        return self.sums.extras

    @property
    def clipping_norm(self) -> float | None:
        """C of the round in messages to clients, under adaptive clipping only."""
        return None if self.extras.adaptive is None else self.extras.clipping_norm

    @property
    def pool_spec(self) -> Spec | None:
        """The arrays of a pool entry, None without a pool."""
        return None if self.entries is None else self.entries.spec

    @property
    def has_client_noise(self) -> bool:
        """Whether a client's vector for the sum carries fresh noise of its own in each attempt."""
        return self.training is not None or self.mechanism.client_deviation > 0.0

    @property
    def keeps_state(self) -> bool:
        """Whether a client's noise depends on noise that it drew before."""
        return any(one.facts.keeps_state for one in (self.mechanism, self.entry_mechanism))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The releases of one client in one round."""
        if not self.charged:
            return ()
        sums: tuple[Channel, ...] = ("sum",) if self.layout.spec else ()
        if self.training is not None:
            # One row for the training covers all results of it, at once or in the collection.
            hands_on = self.pool_spec is not None or self.collection is not None
            return ("sum",) if sums or hands_on else ()
        # Without a sum there is no noise that an entry could share.
        if self.entries is not None and (self.entries.noise == "independent" or not sums):
            return (*sums, "pool")
        return sums

    @property
    def releases_anything(self) -> bool:
        """Whether a client releases anything in the run, in a round or in the collection."""
        return bool(self.channels or (self.collection and self.collection.channels))

    @property
    def has_own_entry_noise(self) -> bool:
        """Whether a pool entry has noise of its own; else the sum's, or there is no pool."""
        return self.entries is not None and self.entries.noise == "independent"

    @property
    def noises_entry(self) -> bool:
        """Whether a pool entry travels as a noised difference; else as it is."""
        return self.entry_mechanism.clipping_norm is not None

    @property
    def entry_mechanism(self) -> ClientMechanism:
        """The mechanism of a pool entry."""
        own = None if self.entries is None else self.entries.mechanism
        return self.mechanism if own is None else own

    @property
    def first_round(self) -> int:
        """Number of the first round that trains: 2 where the pool is made before it."""
        return 2 if self.collects_at == 1 else 1

    def last_round(self, rounds: int) -> int:
        """Return the last round's number, with the collection, for so many training rounds."""
        return rounds if self.collects_at is None else rounds + 1

    def in_round(self, round_number: int) -> Protection:
        """Return the protection of this round: the collection's in its round, else this one."""
        if self.collection is None or self.collects_at is None:
            return self
        if round_number == self.collects_at:
            return self.collection
        if round_number > self.collects_at > 1:
            raise ProtocolError("message: the pool is made already, and nothing is sent after it")
        return self

    def at(self, clipping_norm: float | None) -> Protection:
        """Return the protection of a round with this clipping norm; refuse one out of place."""
        if (clipping_norm is None) != (self.extras.adaptive is None):
            raise ProtocolError("message: a clipping norm must be given exactly where it adapts")
        if clipping_norm is None:
            return self
        if not 1.0 / LARGEST_COORDINATE < clipping_norm < LARGEST_COORDINATE:
            raise ProtocolError("message: the clipping norm is not a length")
        entries = None if self.entries is None else self.entries.around(clipping_norm)
        return dataclasses.replace(self, sums=self.sums.around(clipping_norm), entries=entries)

    def prepare(
        self,
        result: LocalResult,
        broadcast: Arrays,
        noise: NoiseSource,
        validation: float | None = None,
        *,
        state: NoiseState = NO_STATE,
    ) -> Prepared:
        """Protect one client's result.

        It must have the arrays that the method announced and, with groups, be zero outside the
        block of the client's group.
        The accuracy is there if it travels with the update. `state` is the state that the client's
        last attempt of the run left, in any round. Under mechanism `none`, `RunStopped` names the
        tensor of a coordinate that does not fit.
        """
        spec = self.layout.spec
        vector = flatten(result.update, spec)
        if self.sums.exact:
            return Prepared(None, vector, self._exact_entry(result), self.channels)
        groups, group = self.extras.groups, result.group
        if groups is not None:
            require_one_block(result.update, group, groups.number)
        appended = self.extras.append(vector, validation, group)
        carried = self.sums.carry(appended, noise, _of("sum", state))
        entry, left = self._protect_entry(result, broadcast, carried, noise, state=state)
        values = self.sums.grid().dequantise(carried.levels)
        return Prepared(carried.levels, values, entry, self.channels, state=left)

    def prepare_nothing(
        self, broadcast: Arrays, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> Prepared:
        """Protect the zero vector with its extras: the upload of a failed round.

        Zero lies in every ball, so noise and charge are the usual ones. The entry is the broadcast.
        """
        zero, spec = np.zeros(self.layout.protected), self.pool_spec
        base = {} if spec is None else unflatten(flatten(entry_base(broadcast, spec), spec), spec)
        if self.sums.exact:
            return Prepared(None, zero, base, self.channels)
        carried = self.sums.carry(zero, noise, _of("sum", state))
        entry: Arrays = base
        left = _named("sum", carried.state)
        if spec and self.noises_entry:
            nothing = np.zeros(vector_length(spec))
            entry, left = self._noised_entry(nothing, carried, noise, state)
        values = self.sums.grid().dequantise(carried.levels)
        return Prepared(carried.levels, values, entry, self.channels, state=left)

    def verify_entry(self, entry: Arrays) -> None:
        """Check a pool entry as it arrived, before the coordinator keeps anything of its round."""
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            require_spec(entry, spec)
            vector = flatten(entry, spec)
            # Sums must be finite as float32, the type of states.
            if vector.size and float(np.abs(vector).max()) > LARGEST_COORDINATE:
                raise ProtocolError("message: a coordinate is too large for its type")
        if (LEVELS in entry) is not self.noises_entry:
            raise ProtocolError("message: the pool entry is not protected as this run asks")
        if LEVELS not in entry:
            return
        levels, grid = entry[LEVELS], self._entry_grid()
        if levels.shape != (vector_length(spec),) or levels.dtype != level_type(grid):
            raise ProtocolError("message: the pool entry has another length or type")
        if levels.size and int(levels.max()) > grid.largest_level:
            raise ProtocolError(f"message: a level of the pool entry is above {grid.largest_level}")

    def open_entry(self, entry: Arrays, broadcast: Arrays) -> dict[str, NDArray[np.float32]]:
        """Return a client's pool entry in absolute terms."""
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            return unflatten(flatten(entry, spec), spec)
        values = self._entry_grid().dequantise(entry[LEVELS])
        return unflatten(values + flatten(entry_base(broadcast, spec), spec), spec)

    def releases(
        self, key: ReleaseKey, cohort: CohortSampling | None = None
    ) -> tuple[Release, ...]:
        """Return one client's ledger rows for an attempt, reserved.

        Each channel gets a row. `cohort` says how the round's clients were drawn, if that may
        amplify.
        """
        found: list[Release] = []
        for channel in self.channels:
            own = dataclasses.replace(key, channel=channel)
            if self.training is not None:
                # All sent values are computed from the noised steps, so these have the only row.
                found.append(reserved(own, self.training.facts, self.training.protected()))
            elif channel == "pool":
                # The entry's owner adds its noise, and the draw does not hide the owner.
                dimension = vector_length(self.pool_spec or {})
                found.append(release_of_upload(self.entry_mechanism, dimension, own))
            else:
                protected = self.layout.protected
                found.append(release_of_upload(self.mechanism, protected, own, cohort))
        return tuple(found)

    def _exact_entry(self, result: LocalResult) -> Arrays:
        if self.pool_spec is None or result.pool_entry is None:
            return {}
        return unflatten(flatten(result.pool_entry, self.pool_spec), self.pool_spec)

    def _entry_grid(self) -> Grid:
        if self._shares_noise and self.layout.spec:
            return self.sums.grid()
        dimension = max(vector_length(self.pool_spec or {}), 1)
        return grid_of(self.entry_mechanism, dimension, bits=self.sums.bits, clients=1)

    @property
    def _shares_noise(self) -> bool:
        return self.entries is not None and self.entries.noise == "same"

    def _protect_entry(
        self,
        result: LocalResult,
        broadcast: Arrays,
        carried: ProtectedUpload,
        noise: NoiseSource,
        *,
        state: NoiseState,
    ) -> tuple[Arrays, NoiseState]:
        if self.pool_spec is None or not self.noises_entry:
            return self._exact_entry(result), _named("sum", carried.state)
        entry, base = result.pool_entry or {}, entry_base(broadcast, self.pool_spec)
        require_spec(entry, self.pool_spec)
        difference = {name: entry[name] - base[name] for name in self.pool_spec}
        if self._shares_noise:
            require_same(result.update, difference)
        return self._noised_entry(flatten(difference, self.pool_spec), carried, noise, state)

    def _noised_entry(
        self,
        difference: NDArray[np.float64],
        carried: ProtectedUpload,
        noise: NoiseSource,
        state: NoiseState,
    ) -> tuple[Arrays, NoiseState]:
        """Return a noised entry, and the state that sum and entry leave."""
        grid, left = self._entry_grid(), _named("sum", carried.state)
        if not self._shares_noise:
            mechanism, spec = self.entry_mechanism, self.pool_spec or {}
            own = _of("pool", state)
            carried = protect(difference, mechanism, grid, noise=noise, state=own, spec=spec)
            left = {**left, **_named("pool", carried.state)}
        return {LEVELS: carried.levels.astype(level_type(grid))}, left


def _of(channel: Channel, state: NoiseState) -> NoiseState:
    """Return the part of a client's state that belongs to one channel's noise."""
    start = f"{channel}/"
    return {n.removeprefix(start): a for n, a in state.items() if n.startswith(start)}


def _named(channel: Channel, state: NoiseState) -> NoiseState:
    return {f"{channel}/{name}": array for name, array in state.items()}
