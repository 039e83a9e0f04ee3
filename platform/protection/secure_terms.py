"""The terms of a run's secure aggregation: graph and thresholds, computed once, known to all.

Coordinator and clients compute these terms from the configuration. A client refuses an invitation
with other terms: a lower threshold, a smaller sum, a thinner graph or a missing signature never
reaches the protocol.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from platform.config import RunConfig
from platform.errors import ConfigError
from privacy import CalibrationError
from privacy.secure_aggregation import RoundParameters, plan
from privacy.secure_aggregation.parameters import active_threshold


@dataclass(frozen=True, kw_only=True)
class SecureTerms:
    """The terms of every masked sum of a run.

    Attributes:
        clients: Size of a cohort.
        active: Whether the server may lie.
        threshold: Shares that rebuild a secret.
        smallest_sum: Fewest vectors that a sum may hold.
        corrupt: Clients that may collude with the server.
        degree: Neighbours of a client, 0 for the complete graph.
    """

    clients: int
    active: bool
    threshold: int
    smallest_sum: int
    corrupt: int
    degree: int = 0


def smallest_real_sum(config: RunConfig) -> int:
    """Return the fewest vectors of a sum that are not an audit's canaries."""
    return secure_terms(config).smallest_sum - config.canaries


def terms_of_others(config: RunConfig) -> SecureTerms:
    """Return the terms of a run's sums for clients that are not an audit's canaries."""
    terms, canaries = terms_of_sums(config), config.canaries
    return dataclasses.replace(
        terms,
        clients=terms.clients - canaries,
        threshold=terms.threshold - canaries,
        smallest_sum=terms.smallest_sum - canaries,
        corrupt=terms.corrupt - canaries,
    )


def secure_terms(config: RunConfig) -> SecureTerms:
    """Return the terms of a run whose sums are masked; `ConfigError` if no graph withstands it."""
    terms = terms_of_sums(config)
    if terms.active and config.secure_aggregation.enrolment is None:
        raise ConfigError(
            "secure_aggregation.enrolment: is missing; adversary = active needs the file that "
            "says whose keys are whose, as keys that only the server vouches for prove nothing "
            "against it"
        )
    return terms


def terms_of_sums(config: RunConfig) -> SecureTerms:
    """Return the terms of a run whose sums are masked, without a check of the enrolment.

    An audit's canaries count as clients that collude: the terms hold for the others as if the
    canaries were not there, so each number is larger by their number.
    """
    return _regular(config) or _complete(config)


def _complete(config: RunConfig) -> SecureTerms:
    section, clients = config.secure_aggregation, config.cohort_size
    canaries = config.canaries
    active = section.adversary == "active"
    threshold = config.threshold
    least = active_threshold(clients, section.corrupt)
    if active and threshold < least:
        raise ConfigError(
            f"secure_aggregation.threshold: {threshold} of {clients} does not withstand an active "
            f"adversary with secure_aggregation.corrupt = {section.corrupt}; valid: {least} to "
            f"{clients}"
        )
    return SecureTerms(
        clients=clients + canaries,
        active=active,
        threshold=threshold + canaries,
        smallest_sum=max(threshold, config.cohort.minimum) + canaries,
        corrupt=section.corrupt + canaries,
    )


def _regular(config: RunConfig) -> SecureTerms | None:
    """Return the k-regular graph if it is configured, or cheaper; None for the complete graph."""
    section, clients = config.secure_aggregation, config.cohort_size
    if section.adversary == "active" and section.graph == "k_regular":
        raise ConfigError(
            "secure_aggregation.graph: k_regular does not withstand an active adversary; valid: "
            "auto, complete"
        )
    asked = section.graph == "k_regular"
    if section.adversary == "active" or section.graph == "complete" or config.canaries:
        return None
    if section.threshold is not None:
        if asked:
            raise ConfigError(
                f"secure_aggregation.threshold: {section.threshold} is computed from the graph "
                "under graph = k_regular; leave it out"
            )
        return None
    try:
        found = plan(
            clients,
            # Half a client less, rounded up, gives the whole number even if the division rounds.
            corrupt_rate=max(section.corrupt - 0.5, 0.0) / clients,
            dropout_rate=max(section.tolerated_dropout_rate, config.cohort.dropout_rate),
            graph="k_regular" if asked else "auto",
        )
    except CalibrationError as error:
        if asked:
            raise ConfigError(f"secure_aggregation.graph: {error}") from error
        return None
    if not found.degree:
        return None
    smallest = max(found.smallest_sum, config.cohort.minimum)
    _require_enough(config, smallest)
    return SecureTerms(
        clients=clients,
        active=False,
        threshold=found.threshold,
        smallest_sum=smallest,
        corrupt=found.corrupt,
        degree=found.degree,
    )


def _require_enough(config: RunConfig, smallest: int) -> None:
    """Refuse a federation that would go on with fewer clients than the graph's sums need."""
    section = config.federation
    if section is None:
        return
    for field, enough in (("start_with", section.start_with), ("go_on_with", section.go_on_with)):
        if enough is not None and enough < smallest:
            raise ConfigError(
                f"federation.{field}: {enough} clients are fewer than the sum on this graph may be "
                f"of; valid: null, or {smallest} at least (see "
                "secure_aggregation.tolerated_dropout_rate)"
            )


def meets(parameters: RoundParameters, terms: SecureTerms) -> bool:
    """Return whether a round has the run's terms."""
    offered = SecureTerms(
        clients=len(parameters.clients),
        active=parameters.is_active,
        threshold=parameters.threshold,
        smallest_sum=parameters.smallest_sum,
        corrupt=parameters.corrupt,
        degree=parameters.degree,
    )
    return offered == terms
