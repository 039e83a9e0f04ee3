"""The worth of sharing: a run beside two runs in which nobody says anything.

What a federation gains over local training has two sources, which accuracy does not tell apart:
what others' uploads say, and what the method does beside (a gate, another start, noise that
regularises). In a *silent run* every upload is of zeros and everything else is the run's: clients,
cohorts, steps, batches, gates, server. One has the run's noise on its uploads, and one none; the
better of both is what this architecture reaches without a word from anybody. The run's headline
less that is the *worth of sharing*. It is zero in expectation where uploads are all noise.

Nothing here leaves a client, so nothing is charged. Its noise protects nobody and comes from the
run's seed, whatever the run's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from methods import Arrays, ClientView
from platform.config.randomness import stream
from platform.experiment.evaluation import Measured, measured
from platform.experiment.simulation import Simulation
from platform.parties.profile import ClientProfile, PersonalState, first_state, view_of
from platform.parties.totality import forget, personalise, train_or_stay
from platform.protection.uploads import Prepared, Protection
from platform.rounds.documents import in_rounds
from platform.rounds.loop import aggregate_of
from platform.rounds.observing import Observer
from platform.rounds.pool import ResidentPool
from platform.wire.layout import Summed, Totals, encode_entry, entry_base
from platform.wire.transport import ClientId
from privacy import NO_STATE, NoiseSource, NoiseState, SeededNoise
from storage import PoolEntry


@dataclass(frozen=True)
class Silence:
    """What is reached where nobody says anything.

    Attributes:
        bare: With uploads of zeros.
        noised: With uploads of zeros and the run's noise, None where uploads carry none.
    """

    bare: Measured
    noised: Measured | None

    @property
    def headline(self) -> float:
        """The better of both, in the protocol's headline number."""
        both = (self.bare, self.noised)
        return max(found.headline for found in both if found is not None)

    def document(self) -> dict[str, Any]:
        """Return it as `summary.json` states it."""
        return {
            "bare": self.bare.headline,
            "noised": None if self.noised is None else self.noised.headline,
        }


def measure_silence(
    simulation: Simulation, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> Silence | None:
    """Return what the same run reaches where nobody says anything, under the same protocol.

    None where nobody asks for it, where nothing is shared, where the pool is made once, and in a
    second phase.

    Args:
        simulation: The run.
        observer: Told of each silent round.
        documents: The run's rounds, as stored.
    """
    run, terms = simulation.run, simulation.run.terms
    if not terms.config.evaluation.worth_of_sharing or run.source_id is not None:
        return None
    if not terms.method.shared_spec() or terms.protection.collection is not None:
        return None
    held = [d for d in in_rounds(documents) if d.get("lost") is None]
    bare = _Silent(simulation=simulation, documents=held, noised=False).play(observer)
    if not terms.config.mechanism.clips_uploads:
        return Silence(bare, None)
    return Silence(bare, _Silent(simulation=simulation, documents=held, noised=True).play(observer))


@dataclass(kw_only=True)
class _Silent:
    """One silent run.

    Attributes:
        simulation: The run.
        documents: Its rounds.
        noised: Whether uploads carry noise.
        pool: All living entries.
        served: The same as they are served, None before there are any.
        states: What each client keeps, by name, where it has taken part.
        noise_states: What the noise of each client, and of the server, goes on from.
    """

    simulation: Simulation
    documents: Sequence[Mapping[str, Any]]
    noised: bool
    pool: list[PoolEntry] = field(default_factory=list)
    served: ResidentPool | None = None
    states: dict[ClientId, PersonalState] = field(default_factory=dict)
    noise_states: dict[str, NoiseState] = field(default_factory=dict)

    def play(self, observer: Observer) -> Measured:
        """Return all clients' accuracy once its rounds are over."""
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
        # Canaries have no part in what the others' uploads were worth.
        survivors = [n for n in document["survivors"] if n in self.simulation.population.clients]
        sent: dict[ClientId, Prepared] = {}
        for name in survivors:
            broadcast = terms.method.broadcast(state, name)
            self._train(name, number, broadcast)
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
        self._keep_pool(number, opened)
        return after

    def _train(self, name: ClientId, number: int, broadcast: Arrays) -> None:
        """Train what a client keeps; of methods whose clients keep nothing there is nothing.

        Nor is there of clients that nobody measures, of whom nobody hears anything.
        """
        profile, population = self._profile(name), self.simulation.population
        is_measured = name in self.simulation.learning.evaluation.measured
        if not profile.method.has_personal_state or not is_measured:
            return
        before = self.states.get(name, PersonalState(first_state(profile), ()))
        experts = self._experts(name, number)
        result = train_or_stay(
            profile,
            population.make_trainer,
            ClientView(broadcast, experts, before.personal),
            round_number=number,
            noise=self._noise("steps", name, number),
        )
        self.states[name] = PersonalState(result.personal, experts)

    def _experts(self, name: ClientId, number: int) -> tuple[Arrays, ...]:
        terms = self.simulation.run.terms
        if self.served is None:
            return ()
        rng = stream(terms.config.seed, "silent run's experts", name, number)
        (experts,) = self.served.serve([[name.encode()]], rng)
        return experts

    def _upload(
        self, protection: Protection, broadcast: Arrays, whose: tuple[ClientId, int]
    ) -> Prepared:
        """Return zeros as they leave a client, and its entry: the broadcast, as it leaves one."""
        if self.noised:
            name, noise = whose[0], self._noise("upload", *whose)
            before = self.noise_states.get(name, NO_STATE)
            prepared = protection.prepare_nothing(broadcast, noise, before)
            self.noise_states[name] = prepared.state
            return prepared
        entry = {} if protection.pool_spec is None else entry_base(broadcast, protection.pool_spec)
        return Prepared(None, np.zeros(protection.layout.protected), entry, ())

    def _sum(
        self,
        protection: Protection,
        document: Mapping[str, Any],
        sent: Sequence[Prepared],
    ) -> Summed:
        layout, sums = protection.layout, protection.sums
        if not self.noised:
            # A cohort on coins may be empty, and zero it is all the same.
            count = max(len(sent), 1)
            return layout.average(Totals(np.zeros(layout.protected), count, count))
        total = sums.add_up([one.levels for one in sent if one.levels is not None])
        noise = self._noise("sum", "server", document["round"])
        planned = self.simulation.run.terms.config.cohort_size
        before = self.noise_states.get("server", NO_STATE)
        noised = sums.noised(total, len(sent), noise, before)
        self.noise_states["server"] = noised.noise_state
        return sums.average(sums.open(noised), planned)

    def _keep_pool(self, number: int, entries: Mapping[ClientId, Arrays]) -> None:
        rules = self.simulation.run.terms.pool_rules
        if rules is None:
            return
        alive = [e for e in self.pool if e.generation > number - rules.generations]
        made = [PoolEntry(number, n.encode(), encode_entry(e)) for n, e in entries.items()]
        self.pool = [*alive, *made]
        self.served = ResidentPool(self.pool, rules)

    def _measure(self, state: Arrays) -> Measured:
        terms, plan = self.simulation.run.terms, self.simulation.learning.evaluation
        tallies = []
        for name in plan.measured:
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
            view = view_of(broadcast, PersonalState(personal, kept.experts))
            tallies.append({t: profile.measured.tally(terms.method, view, t) for t in plan.tests})
        return measured(plan.protocol, plan.tests, tallies)

    def _profile(self, name: ClientId) -> ClientProfile:
        return self.simulation.population.clients[name].profile

    def _noise(self, what: str, name: str, number: int) -> NoiseSource:
        seed = self.simulation.run.terms.config.seed
        return SeededNoise(stream(seed, "silent run", what, name, number))
