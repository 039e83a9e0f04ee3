"""The comparisons at the end of a run: with local twins, new clients, and silent runs.

*Local twins* show the accuracy of a client without the federation. Method, seeds, number of steps
and per-sample clip are the same; there are no experts and no other client's updates. A twin uploads
nothing, so it has no noise on uploads; under `dp_sgd` each step has the same noise. A twin is a
federation of one: the client's own update is the aggregate. The difference of the final accuracies
is the *gain over local*.

*New clients* never took part. Each gets the last broadcast, starts its personal part as every
client does, gets no experts, and personalises on its own images. Nothing of this leaves the client:
it is in no cohort, no ledger and no population, and its state is thrown away after measuring.

*Silent runs* show the *worth of sharing*. A federation's gain over local training has two sources,
which accuracy does not tell apart: the content of the other clients' uploads, and other effects of
the method (a gate, another start, noise that regularises). In a silent run every upload is of zeros
and everything else is the run's: clients, cohorts, steps, batches, gates, server. One silent run
has the run's noise on its uploads, the other has no noise. The worth of sharing is the run's
headline less the better of both; it is zero in expectation if uploads are all noise. Nothing here
leaves a client, so nothing is charged. The noise protects no client and comes from the run's seed,
also if the run's own noise comes from the operating system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from methods import Aggregate, Arrays, ClientView, Groups
from platform.config.randomness import stream
from platform.experiment.evaluation import Measured, measured, over_clients
from platform.experiment.simulation import Simulation
from platform.parties.profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    first_state,
    noise_of,
    view_of,
)
from platform.parties.scoring import LOCAL, CommonScores
from platform.parties.totality import forget, personalise, train_or_stay
from platform.protection.uploads import Prepared, Protection
from platform.rounds.documents import in_rounds
from platform.rounds.loop import aggregate_of
from platform.rounds.observing import Observer
from platform.rounds.pool import ResidentPool
from platform.wire.codec import encode_arrays
from platform.wire.layout import Summed, Totals, entry_base
from platform.wire.outside_rounds import Tally
from platform.wire.transport import AHEAD, ClientId
from privacy import NO_STATE, NoiseSource, NoiseState, SeededNoise
from privacy.training import together
from storage import PoolEntry


def measure_twins(
    simulation: Simulation, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> Measured | None:
    """Return the measured clients' accuracy after the same training alone, under the same protocol.

    None without `evaluation.local_twins`: twins cost as much training as the run.
    """
    terms, plan = simulation.run.terms, simulation.learning.evaluation
    if not terms.config.evaluation.local_twins:
        return None
    start, tallies = terms.initial_state(), []
    for position, some in _at_once(plan.measured):
        profiles = [simulation.population.clients[name].profile for name in some]
        observer.preparing("local twins", position, len(plan.measured))
        twins = [
            partial(
                train_twin,
                profile,
                simulation.population.make_trainer,
                start,
                [d["round"] for d in in_rounds(documents) if profile.name in d["survivors"]],
                final_round=terms.final_attempt[0],
            )
            for profile in profiles
        ]
        for profile, twin in zip(profiles, together(twins), strict=True):
            view, measured_on = view_of(*twin), profile.measured
            tallies.append({t: measured_on.tally(terms.method, view, t) for t in plan.tests})
    observer.preparing("local twins", 1, 1)
    return measured(plan.protocol, plan.tests, tallies)


def train_twin(
    profile: ClientProfile,
    make_trainer: TrainerFactory,
    server_state: Arrays,
    rounds: Sequence[int],
    *,
    final_round: int,
) -> tuple[Arrays, PersonalState]:
    """Train one client alone; return the server's broadcast to the twin, and its personal state.

    `rounds` are those in which the client took part, ascending; their batches are the same.
    `final_round` fixes the batches of `personalise`.
    """
    method, state = profile.method, server_state
    personal = first_state(profile)
    for round_number in rounds:
        broadcast = method.broadcast(state, profile.name)
        result = train_or_stay(
            profile,
            make_trainer,
            ClientView(broadcast, personal=personal),
            round_number=round_number,
            noise=noise_of(profile, round_number, "twin's noise"),
        )
        grouping, size = profile.protection.extras.groups, float(profile.data.num_examples)
        groups = None
        if grouping is not None:
            # The client is all of its group, and its update the whole of the sum.
            alone = np.zeros(grouping.number)
            if result.group is not None:
                alone[result.group] = size = 1.0
            groups = Groups(alone, floor=1.0)
        aggregate = Aggregate(
            result.update,
            size,
            cohort_size=1,
            population=1,
            individual={profile.name: result.update},
            groups=groups,
        )
        coins = profile.randomness.initialisation
        rng = stream(coins, "twin's server", profile.name, round_number)
        state = method.server_update(state, aggregate, (), rng)
        personal = result.personal
    broadcast = method.broadcast(state, profile.name)
    view = ClientView(broadcast, personal=personal)
    personal = personalise(profile, make_trainer, view, round_number=final_round, remember=forget)
    return broadcast, PersonalState(personal, ())


def measure_newcomers(simulation: Simulation, state: Arrays) -> dict[str, Any] | None:
    """Return accuracy of new clients on their own test images, before and after they personalise.

    The server state is that after the last round. None without new clients.
    """
    plan, terms = simulation.learning.evaluation, simulation.run.terms
    if not plan.new_clients:
        return None
    # The server does not know these clients, so it has no message for them by name.
    broadcast = simulation.learning.method.broadcast(state, None)
    like = next(iter(simulation.population.clients.values())).profile
    shared, make_trainer = CommonScores(), simulation.population.make_trainer
    counted: list[tuple[Tally, Tally]] = []
    for name, client in plan.new_clients.items():
        measured_on = plan.sets_of(name, shared)
        profile = dataclasses.replace(like, name=name, data=client.train, measured=measured_on)
        untrained = ClientView(broadcast, (), first_state(profile))
        number = terms.training_rounds[-1] + 1
        personal = personalise(
            profile, make_trainer, untrained, round_number=number, remember=forget
        )
        trained = ClientView(broadcast, (), personal)
        before, after = (
            measured_on.tally(profile.method, view, LOCAL) for view in (untrained, trained)
        )
        counted.append((before, after))
    first, last = (over_clients(list(tallies)).document() for tallies in zip(*counted, strict=True))
    return {"clients": len(plan.new_clients), "before": first, "after": last}


def measure_silence(
    simulation: Simulation, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> dict[str, Measured | None] | None:
    """Return the accuracies of silent runs.

    `bare` is without noise; `noised` is None where uploads carry no noise. The result is None
    without `evaluation.worth_of_sharing`, where clients share nothing, where the pool is made once,
    and in a second phase.
    """
    run, terms = simulation.run, simulation.run.terms
    if not terms.config.evaluation.worth_of_sharing or run.source_id is not None:
        return None
    if not terms.method.shared_spec() or terms.protection.collection is not None:
        return None
    held = [d for d in in_rounds(documents) if d.get("lost") is None]
    found: dict[str, Measured | None] = {"bare": None, "noised": None}
    for name in found if terms.config.mechanism.clips_uploads else ("bare",):
        found[name] = _Silent(simulation, held, noised=name == "noised").play(observer)
    return found


class _Silent:
    """One silent run; with `noised` its uploads carry noise."""

    def __init__(
        self, simulation: Simulation, documents: Sequence[Mapping[str, Any]], *, noised: bool
    ) -> None:
        self.simulation, self.documents, self.noised = simulation, documents, noised
        # All living entries of the pool, and the same as they are served.
        self.pool: list[PoolEntry] = []
        self.served: ResidentPool | None = None
        # The state of each client that has taken part, and of each client's and the server's noise.
        self.states: dict[ClientId, PersonalState] = {}
        self.noise_states: dict[str, NoiseState] = {}

    def play(self, observer: Observer) -> Measured:
        """Return all clients' accuracy after its rounds."""
        terms, what = self.simulation.run.terms, "silent run" + (", noised" if self.noised else "")
        state, norm = terms.initial_state(), terms.protection.clipping_norm
        for position, document in enumerate(self.documents):
            observer.preparing(what, position, len(self.documents))
            protection = terms.protection.in_round(document["round"]).at(norm)
            state = self._round(document, protection, state)
            norm = document["next_clipping_norm"]
        observer.preparing(what, 1, 1)
        return self._measure(state)

    def _round(self, document: Mapping[str, Any], protection: Protection, state: Arrays) -> Arrays:
        terms, number = self.simulation.run.terms, document["round"]
        # Canaries do not count for the worth of the others' uploads.
        survivors = [n for n in document["survivors"] if n in self.simulation.population.clients]
        sent: dict[ClientId, Prepared] = {}
        for _, some in _at_once(survivors):
            broadcasts = {name: terms.method.broadcast(state, name) for name in some}
            together([partial(self._train, n, number, of) for n, of in broadcasts.items()])
            for name, broadcast in broadcasts.items():
                sent[name] = self._upload(protection, broadcast, (name, number))
        summed = self._sum(protection, document, list(sent.values()))
        base = terms.method.broadcast(state)
        opened = {n: protection.open_entry(p.entry, base) for n, p in sent.items() if p.entry}
        length = protection.layout.coordinates
        shown = {name: prepared.vector[:length] for name, prepared in sent.items()}
        aggregate = aggregate_of(
            terms,
            summed,
            len(survivors),
            None if protection.masked or protection.mechanism.facts.is_bare_to_server else shown,
            groups=protection.sums.group_reading(summed),
        )
        rng = stream(terms.config.seed, "server", number)
        after = terms.method.server_update(state, aggregate, list(opened.values()), rng)
        if (rules := terms.pool_rules) is not None:
            alive = [e for e in self.pool if e.generation > number - rules.generations]
            made = [PoolEntry(number, n.encode(), encode_arrays(e)) for n, e in opened.items()]
            self.pool = [*alive, *made]
            self.served = ResidentPool(self.pool, rules)
        return after

    def _train(self, name: ClientId, number: int, broadcast: Arrays) -> None:
        """Train a client's personal part, if it has such a part and is measured."""
        profile, population = self._profile(name), self.simulation.population
        is_measured = name in self.simulation.learning.evaluation.measured
        if not profile.method.has_personal_state or not is_measured:
            return
        before = self.states.get(name, PersonalState(first_state(profile), ()))
        experts: tuple[Arrays, ...] = ()
        if self.served is not None:
            seed = self.simulation.run.terms.config.seed
            rng = stream(seed, "silent run's experts", name, number)
            (experts,) = self.served.serve([[name.encode()]], rng)
        result = train_or_stay(
            profile,
            population.make_trainer,
            ClientView(broadcast, experts, before.personal),
            round_number=number,
            noise=self._noise("steps", name, number),
        )
        self.states[name] = PersonalState(result.personal, experts)

    def _upload(
        self, protection: Protection, broadcast: Arrays, whose: tuple[ClientId, int]
    ) -> Prepared:
        """Return zeros as a client would send them, with the broadcast as its pool entry."""
        if self.noised:
            name, noise = whose[0], self._noise("upload", *whose)
            before = self.noise_states.get(name, NO_STATE)
            prepared = protection.prepare_nothing(broadcast, noise, before)
            self.noise_states[name] = prepared.state
            return prepared
        entry = {} if protection.pool_spec is None else entry_base(broadcast, protection.pool_spec)
        return Prepared(None, np.zeros(protection.layout.protected), entry, ())

    def _sum(
        self, protection: Protection, document: Mapping[str, Any], sent: Sequence[Prepared]
    ) -> Summed:
        layout, sums = protection.layout, protection.sums
        if not self.noised:
            # A Poisson cohort may be empty, and its mean is zero too.
            count = max(len(sent), 1)
            return layout.average(Totals(np.zeros(layout.protected), count, count))
        total = sums.add_up([one.levels for one in sent if one.levels is not None])
        noise = self._noise("sum", "server", document["round"])
        planned = self.simulation.run.terms.config.cohort_size
        before = self.noise_states.get("server", NO_STATE)
        noised = sums.noised(total, len(sent), noise, before)
        self.noise_states["server"] = noised.noise_state
        return sums.average(sums.open(noised), planned)

    def _measure(self, state: Arrays) -> Measured:
        terms, plan = self.simulation.run.terms, self.simulation.learning.evaluation

        def view_at_the_end(name: ClientId) -> ClientView:
            profile = self._profile(name)
            kept = self.states.get(name, PersonalState(first_state(profile), ()))
            broadcast = terms.method.broadcast(state, name)
            personal = personalise(
                profile,
                self.simulation.population.make_trainer,
                view_of(broadcast, kept),
                round_number=terms.final_attempt[0],
                remember=forget,
            )
            return view_of(broadcast, PersonalState(personal, kept.experts))

        tallies = []
        for _, some in _at_once(plan.measured):
            views = together([partial(view_at_the_end, name) for name in some])
            for name, view in zip(some, views, strict=True):
                measured_on = self._profile(name).measured
                tallies.append({t: measured_on.tally(terms.method, view, t) for t in plan.tests})
        return measured(plan.protocol, plan.tests, tallies)

    def _profile(self, name: ClientId) -> ClientProfile:
        return self.simulation.population.clients[name].profile

    def _noise(self, what: str, name: str, number: int) -> NoiseSource:
        seed = self.simulation.run.terms.config.seed
        return SeededNoise(stream(seed, "silent run", what, name, number))


def _at_once(names: Sequence[ClientId]) -> Iterator[tuple[int, Sequence[ClientId]]]:
    """Yield as many clients as train side by side, each time with the number before them."""
    for start in range(0, len(names), AHEAD):
        yield start, names[start : start + AHEAD]
