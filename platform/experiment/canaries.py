"""The canaries of an audit within a simulation: real clients that do not train.

A canary goes the whole way of a client: it is invited, makes keys and shares, is charged in its own
ledger and the coordinator's, and the code that protects all clients clips its vector, puts it on
the grid, masks it and sends it. Only the training differs: the vector has ten times the clipping
norm, which clipping reduces to that norm, and its direction and side follow from the run's secret
key. A canary leaves out its share of joint noise, as a colluding client may.

The key comes from the operating system's entropy before the run has a row, and lies in the run's
folder, for its owner only. The log's first entry has the SHA-256 of the key, so that the key is
fixed from then on; the entry with the verdict has the key itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from methods import Arrays, ClientView, Examples, LocalResult, Method, Trainer
from methods.interface.defaults import OverMethod
from platform.config import RunConfig
from platform.disk.files import write_text
from platform.errors import RunStopped
from platform.rounds.run import RunTerms
from platform.wire.layout import Spec, unflatten, vector_length
from privacy.auditing import Canaries, commitment_to, new_key

KEY_FILE: Final = "canaries.key"
OVERSIZE: Final = 10.0
"""Times C, before clipping: so canaries also show a missing clip."""


@dataclass(frozen=True)
class CanaryMethod(OverMethod):
    """A method that learns nothing, and uploads the same update in every round.

    Attributes:
        update: The update.
    """

    update: Arrays = dataclasses.field(default_factory=dict)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Return the fixed update."""
        return LocalResult(self.update, None, view.personal)

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return the personal state unchanged."""
        return view.personal


def draw_key(config: RunConfig, folder: Path) -> str | None:
    """Draw a run's key and keep it in the run's folder.

    Args:
        config: The run's configuration.
        folder: The run's folder; made if missing.

    Returns:
        The commitment to the key; None for a run without canaries, which gets no key.
    """
    if config.audit is None:
        return None
    key = new_key()
    write_text(folder / KEY_FILE, key.hex() + "\n")
    return commitment_to(key)


def read_canaries(
    terms: RunTerms, folder: Path, run_id: str, commitment: str | None
) -> Canaries | None:
    """Return a run's canaries, None where it has none.

    Args:
        terms: The terms of the run.
        folder: The run's folder.
        run_id: The run.
        commitment: The commitment to the key, as the audit log has it.

    Raises:
        RunStopped: If the key is missing, or does not fit the commitment.
    """
    section, spec = terms.config.audit, terms.protection.layout.spec
    if section is None:
        return None
    try:
        key = bytes.fromhex((folder / KEY_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunStopped(
            f"run {run_id}: {KEY_FILE} in its folder is missing or no key, so its canaries cannot "
            "go on; put it back or start a new run"
        ) from error
    if commitment_to(key) != commitment:
        raise RunStopped(
            f"run {run_id}: {KEY_FILE} in its folder is not the one whose SHA-256 the run was "
            f"started with, {commitment}; put it back or start a new run"
        )
    return Canaries(
        key=key,
        number=section.canaries,
        directions=section.directions or section.canaries,
        dimension=vector_length(spec),
        relation=terms.config.relation,
    )


def methods_of(
    canaries: Canaries | None, config: RunConfig, method: Method, spec: Spec
) -> Mapping[str, Method]:
    """Return each canary's method in place of training, by name."""
    norm = config.privacy.clipping_norm
    if canaries is None or norm is None:
        return {}
    each = [
        CanaryMethod(method, unflatten(OVERSIZE * norm * canaries.upload(which), spec))
        for which in range(canaries.directions)
    ]
    # Canaries of one direction send the same update.
    return {name: each[i % len(each)] for i, name in enumerate(config.canary_names)}


NOTHING_LEARNT: Final = Examples({"labels": np.zeros(0, np.int64)})
"""A canary's data."""
