"""Where a run's clients are when they are not simulated: names, classes, socket and patience."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from platform.config.bounds import Clients, Seconds
from platform.config.sections import Section

ClientName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
ClassName = Annotated[str, Field(min_length=1, max_length=200)]


class FederationConfig(Section):
    """Clients that are processes of their own, each with its own data; see `federation.clients`."""

    clients: Annotated[tuple[ClientName, ...], Field(min_length=1)]
    """The clients' names, as each client's own configuration states its name; `task.clients` is
    their number.
    """
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1)]
    """All classes, in label order. The list is public and fixed in advance; a client need not have
    images of each.
    """
    socket: str = "runs/hub.sock"
    """Path of the Unix socket at which relays reach the coordinator."""
    phase_seconds: Seconds = 60.0
    """How long a message without training may take, there and back; a client that takes longer is
    lost in that round.
    """
    training_seconds: Seconds = 900.0
    """The same where clients train or personalise."""
    joining_seconds: Seconds = 600.0
    """How long the coordinator waits at its start for all clients to be there."""
    start_with: Clients | None = None
    """How many clients must have accepted before the first round; whoever comes later joins between
    rounds and counts as lost until then. At least as many as a round needs, and not where cohorts
    are drawn in secret. Null: all.
    """
    go_on_with: Clients | None = None
    """How many clients' updates end the wait for a round's training: who is slower counts as lost
    in that round, so a cohort may be larger than what a round needs (over-selection). At least as
    many as a round needs, and not where cohorts are drawn in secret. Null: all.
    """
