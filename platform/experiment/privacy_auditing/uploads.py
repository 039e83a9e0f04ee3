"""The client's game: canary updates through the code that protects an upload or a pool entry.

The adversary's view of a canary depends on the place of the noise:

- In each upload: the upload itself, as the server would see it without masks.
- In shares: the sum of the shares of all honest clients in the smallest sum that may be opened.
  Clients that collude know their own shares and subtract them.
- After the sum: the sum with the coordinator's noise, as peers and observer see it.
- In a pool entry: the entry as it is stored.

Each canary has a round of its own, so that its noise comes from the same source as in a run. The
number of shares in a sum comes from the configuration's threshold, not from the audited mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, LocalResult
from platform.config.randomness import stream
from platform.experiment.privacy_auditing.outcome import (
    ChannelAudit,
    ChannelGame,
    Progress,
    Vector,
    problems_of,
    standardise,
)
from platform.parties.identities import client_names
from platform.parties.profile import ClientProfile, noise_of
from platform.protection.sums import smallest_real_sum
from platform.protection.uploads import Prepared, Protection
from platform.rounds.attempts import coordinator_noise
from platform.wire.layout import Spec, flatten, unflatten, vector_length
from privacy import Channel, UnknownMechanism
from privacy.auditing import (
    claim_of,
    judge_client_unit,
    oversized_needed,
    play_client_unit,
    verify_distribution,
    verify_independence,
    verify_noise_variance,
)

ROOT = math.sqrt(2.0)


def block_spec(spec: Spec) -> Spec:
    """Return the arrays of one block."""
    return {n: dataclasses.replace(t, shape=t.shape[1:]) for n, t in spec.items()}


def groups_of(spec: Spec) -> int:
    """Return the number of groups, K."""
    return next(iter(spec.values())).shape[0]


def placed(vector: Vector, spec: Spec, group: int) -> Vector:
    """Return a whole vector that holds this vector in the block of one group."""
    arrays = {name: np.zeros(tensor.shape) for name, tensor in spec.items()}
    for name, part in unflatten(vector, block_spec(spec)).items():
        arrays[name][group] = part
    return flatten(arrays, spec)


def block(seen: Vector, spec: Spec, group: int) -> Vector:
    """Return a group's block of a vector; coordinates behind the blocks are ignored."""
    offset, found = 0, {}
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        found[name] = seen[offset : offset + size].reshape(spec[name].shape)[group]
        offset += size
    return flatten(found, block_spec(spec))


def group_of(update: Arrays, groups: int) -> int:
    """Return the block that an update is in; the first if it is zero."""
    for group in range(groups):
        if any(array[group].any() for array in update.values()):
            return group
    return 0


def lifted(vector: Vector, width: int, length: int) -> Vector:
    """Return a vector inside cones of this width, sqrt(2) times as long; that of -v is across.

    Rows become (|v|, v); with width 1, the vector is split into its two signs.
    """
    if width == 1:
        halves = np.concatenate([np.maximum(vector, 0.0), np.maximum(-vector, 0.0)])
        return np.append(ROOT * halves, np.zeros(length - halves.size))
    rows = vector.reshape(-1, width - 1)
    return np.column_stack([np.linalg.norm(rows, axis=1), rows]).ravel()


def lowered(seen: Vector, width: int) -> Vector:
    """Return the vector that was lifted, with noise as large on each coordinate."""
    if width == 1:
        half = seen.size // 2
        return np.asarray((seen[:half] - seen[half : 2 * half]) / ROOT)
    return np.asarray(seen.reshape(-1, width)[:, 1:].ravel())


def side_of(vector: Vector) -> float:
    """Return 1 or -1; a vector and its opposite have different signs."""
    fixed = np.random.default_rng(0).standard_normal(vector.size)
    return 1.0 if float(fixed @ vector) >= 0.0 else -1.0


def with_count(moved: Vector, canary: Vector, counts: float, weight: float) -> Vector:
    """Return a difference of blocks, (d,), with the counts' difference added along the canary.

    The weights 1 and `weight` (movement of the counts over that of the difference) are normalised,
    so the noise along the canary stays that of one coordinate.
    """
    unit = canary / (float(np.linalg.norm(canary)) or 1.0)
    along = float(unit @ moved)
    together = (along + weight * counts) / math.hypot(1.0, weight)
    return np.asarray(moved + (together - along) * unit)


NOISE_VECTORS = 20
"""Number of zero releases whose noise is tested directly."""

EXAMPLES = 7
"""Number of examples of each client; under a mechanism, this number must not matter."""


@dataclass(frozen=True, kw_only=True)
class UploadGame(ChannelGame):
    """The sum or pool under audit.

    Attributes:
        apart: Whether a canary and its neighbour are in two groups, as private experts can be.
    """

    channel: Channel
    apart: bool = False

    @property
    def name(self) -> str:
        """The channel, and whether neighbours are in two groups."""
        return f"{self.channel}, two groups" if self.apart else self.channel

    @property
    def dimension(self) -> int:
        """Number of a canary's coordinates, before it is put into cones and a block."""
        length, width = self.length, self.cone
        if width is None:
            return length
        return length // 2 if width == 1 else length // width * (width - 1)

    @property
    def length(self) -> int:
        """Number of an update's coordinates; if clients are in groups, those of one block."""
        return vector_length(block_spec(self.spec) if self.in_groups else self.spec)

    @property
    def cone(self) -> int | None:
        """Width of the cones of which the charge makes use, None without."""
        cones = getattr(self.protection.mechanism, "cones", None)
        return None if cones is None or self.channel != "sum" else int(cones.width)

    @property
    def in_groups(self) -> bool:
        """Whether the update lies in one of several blocks."""
        return self.channel == "sum" and self.protection.extras.groups is not None

    @property
    def protection(self) -> Protection:
        """The protection of a round; if clipping adapts, with the first round's norm."""
        return self.run.terms.protection.at(self.run.terms.protection.clipping_norm)

    @property
    def spec(self) -> Spec:
        """The arrays of the vector that is sent."""
        if self.channel == "sum":
            return self.protection.layout.spec
        return self.protection.pool_spec or {}

    @property
    def clipping_norm(self) -> float:
        """C of the pool entry, or of the update without the flag."""
        if self.channel == "pool" and self.protection.has_own_entry_noise:
            return self.charge.clipping_norm
        adapted, norm = self.protection.clipping_norm, self.run.terms.config.privacy.clipping_norm
        return adapted or norm or self.charge.clipping_norm

    @property
    def flags(self) -> Vector:
        """Largest absolute values of flag and metric behind the vector; empty without them."""
        bare = self.channel != "sum"
        return np.array(() if bare else self.protection.extras.bounds(self.clipping_norm))

    @property
    def bounds(self) -> Vector:
        """The coordinates appended to zeros, which fit and are in the first group."""
        extras = self.protection.extras
        if not self.in_groups or extras.groups is None:
            return self.flags
        first = np.eye(extras.groups.number)[0]
        return np.append(self.flags, extras.count_bound * first)

    @property
    def parts(self) -> tuple[float, float]:
        """C, and the bound b of the counts."""
        return self.clipping_norm, self.protection.extras.count_bound

    @property
    def norm(self) -> float:
        """Half of the distance between a canary and its opposite, without flags."""
        if self.apart:
            return math.hypot(*self.parts) / ROOT
        return self.clipping_norm if self.cone is None else self.clipping_norm / ROOT

    @property
    def flag(self) -> float | None:
        """Length of the flags, whose sign differs in a neighbour; None without flags."""
        if self.apart:
            return None
        return float(np.linalg.norm(self.flags)) if self.flags.size else None


def audit_upload(game: UploadGame, tell: Progress) -> ChannelAudit:
    """Play the game on one channel and test its noise."""
    config = game.run.terms.config
    claim = claim_of(game.charge, config.privacy.target_delta, config.privacy.accountant)
    # The statistics share the channel's error evenly with the direct tests.
    error, rounds = game.error / 2.0, count(1)
    oversized = oversized_needed(game.norm / game.charge.standard_deviation, error, game.canaries)

    def release(vector: Vector) -> Vector:
        number = next(rounds)
        seen = _released(game, vector, number)
        tell(game.channel, number, game.canaries + oversized)
        return seen

    scores = play_client_unit(
        release,
        clipping_norm=game.norm,
        dimension=game.dimension,
        canaries=game.canaries,
        oversized=oversized,
        relation=config.relation,
        rng=stream(config.seed, "audit", game.name),
        flag=game.flag,
    )
    return ChannelAudit(
        channel=game.name,
        mechanism=config.privacy.mechanism,
        result=judge_client_unit(scores, claim, family_wise_error=error),
        scores=standardise(
            scores.scores, threshold=scores.threshold, distance=scores.distance, mu=claim.mu
        ),
        included=scores.included,
        problems=_noise_problems(game, rounds, error / 3.0),
    )


def _released(game: UploadGame, vector: Vector, number: int) -> Vector:
    """Return the adversary's view of a canary: its own coordinates, and its flag."""
    width = game.cone
    sent = vector if width is None else lifted(vector, width, game.length)
    if not game.in_groups:
        seen = _seen(game, sent, number)
        return _folded(game, seen) if width is None else lowered(seen, width)
    spec, first = game.spec, number % groups_of(game.spec)
    if not game.apart:
        seen = _seen(game, placed(sent, spec, first), number)
        own = block(seen, spec, first)
        return _folded(game, seen, own) if width is None else lowered(own, width)
    # The canary is in one group; its opposite is the same update in another group.
    second, side, (norm, count) = (first + 1) % groups_of(spec), side_of(vector), game.parts
    here = first if side > 0.0 else second
    canary = side * vector
    if width is not None:
        canary = lifted(canary, width, game.length) / ROOT
    seen = _seen(game, placed(canary * (norm / game.norm), spec, here), number)
    numbers = seen[seen.size - groups_of(spec) :]
    moved = (block(seen, spec, first) - block(seen, spec, second)) / ROOT
    counts = (numbers[first] - numbers[second]) / ROOT
    told = with_count(moved, canary, counts, weight=count / norm)
    if width is None:
        return told
    along = float(told @ canary) / float(np.linalg.norm(canary))
    return side * vector * (along / float(np.linalg.norm(vector)))


def _folded(game: UploadGame, seen: Vector, own: Vector | None = None) -> Vector:
    """Replace the appended coordinates by one: their part along the flags.

    Canaries and their neighbours are farthest apart in this direction.
    """
    length = vector_length(game.spec)
    own = seen[:length] if own is None else own
    if game.flag is None:
        return own
    flags = seen[length : length + game.flags.size]
    return np.append(own, flags @ game.flags / game.flag)


def _noise_problems(game: UploadGame, rounds: Iterator[int], alpha: float) -> tuple[str, ...]:
    """Return faults of the noise itself: a wrong variance, a wrong law, or noise that repeats."""
    nothing, deviation = np.zeros(vector_length(game.spec)), game.charge.standard_deviation
    # A zero release fits, so its appended coordinates have their largest values.
    offset = np.append(nothing, game.bounds)
    protection, seen, others = game.protection, list[Vector](), list[Vector]()
    is_separate = game.channel == "pool" and protection.has_own_entry_noise
    for number in (next(rounds) for _ in range(NOISE_VECTORS)):
        if not is_separate or protection.mechanism.facts.is_bare_to_server:
            seen.append(_seen(game, nothing, number))
            continue
        # The client's part of the sum too, as their noise must differ.
        prepared = _prepare(game, game.profile, nothing, number)
        seen.append(_opened(game, prepared))
        other = prepared.vector[: nothing.size]
        others += [other] if other.size == nothing.size else []
    samples = np.stack([own - offset for own in seen])
    rows = [*samples, *others]
    return problems_of(
        (
            partial(verify_noise_variance, samples.ravel(), deviation, alpha),
            partial(verify_distribution, samples.ravel(), deviation, alpha),
            partial(verify_independence, np.stack(rows), alpha),
        )
    )


def _seen(game: UploadGame, vector: Vector, round_number: int) -> Vector:
    """Return the adversary's view of one client that sends a vector in a round of its own."""
    protection = game.protection
    if game.channel == "pool":
        return _opened(game, _prepare(game, game.profile, vector, round_number))
    facts = protection.mechanism.facts
    if facts.is_shared_out or facts.is_bare_to_server:
        config, clients = game.run.terms.config, 2
        if facts.is_shared_out:
            clients = smallest_real_sum(config) - config.secure_aggregation.corrupt
        sums, layout = game.protection.sums, game.protection.layout
        names = client_names(clients)
        updates = [vector] + [np.zeros(vector.size)] * (clients - 1)
        everybody = [dataclasses.replace(game.profile, name=name) for name in names]
        sent = [
            _prepare(game, one, update, round_number)
            for one, update in zip(everybody, updates, strict=True)
        ]
        levels = [layout.weigh(one.levels, EXAMPLES) for one in sent if one.levels is not None]
        noise = coordinator_noise(game.run.terms.config, round_number, 1)
        found = sums.open(sums.noised(sums.add_up(levels), clients, noise)).sums
        # The updates of the other clients fit, so their flags are known.
        own = found.size - game.bounds.size
        return np.asarray(found - np.append(np.zeros(own), (clients - 1) * game.bounds))
    if not facts.noises_alone:
        # At any other place, the audit would judge the wrong noise.
        raise UnknownMechanism(f"the audit does not know who can see the noise of {facts.name}")
    return _prepare(game, game.profile, vector, round_number).vector


def _opened(game: UploadGame, prepared: Prepared) -> Vector:
    broadcast = _zeros(game.protection.layout.spec)
    return flatten(game.protection.open_entry(prepared.entry, broadcast), game.spec)


def _prepare(
    game: UploadGame, profile: ClientProfile, vector: Vector, round_number: int
) -> Prepared:
    """Return one client's part in one round, with the vector on the audited channel."""
    protection = game.protection
    update, entry = _zeros(protection.layout.spec), _zeros(protection.pool_spec or {})
    arrays = unflatten(vector, game.spec)
    if game.channel == "sum" or not protection.has_own_entry_noise:
        update = arrays
    if game.channel == "pool" or set(update) == set(entry):
        # Under `same` the entry must be the update itself.
        entry = arrays
    result = LocalResult(
        update,
        entry if protection.pool_spec is not None else None,
        {},
        group=group_of(update, groups_of(game.spec)) if game.in_groups else None,
    )
    # A canary fits and its neighbour does not, so the accuracies differ as the flags do.
    fits = float(np.linalg.norm(vector)) <= game.clipping_norm
    return protection.prepare(
        result,
        _zeros(protection.layout.spec),
        noise_of(profile, round_number),
        validation=1.0 if fits else 0.0,
    )


def _zeros(spec: Spec) -> dict[str, NDArray[np.float32]]:
    return {name: np.zeros(tensor.shape, np.float32) for name, tensor in spec.items()}
