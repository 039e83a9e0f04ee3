"""What private experts need, and what they cannot be combined with: `pool.kind: groups`.

Each rule gives one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from platform.config.schema import PoolConfig, RunSections

KEYS_OF = {
    "entries": ("noise", "clipping_norm", "minimum", "generations"),
    "groups": ("experts", "count_ratio", "floor", "empty"),
}
"""Keys of `pool` that mean something under one kind only."""


def group_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions between `pool.kind` and all else."""
    kind = config.pool.kind
    for other, names in KEYS_OF.items():
        if other == kind:
            continue
        for name in names:
            value = getattr(config.pool, name)
            default = PoolConfig.model_fields[name].default
            if value != default:
                shown = "null" if default is None else default
                yield (
                    f"pool.{name}: {value} has no meaning with pool.kind = {kind}; valid: {shown}, "
                    f"or pool.kind: {other}"
                )
    if kind == "groups":
        yield from _experts(config)
        yield from _secret(config)


def _experts(config: RunSections) -> Iterator[str]:
    experts, clients = config.pool.experts, config.task.clients
    if experts is None:
        yield f"pool.experts: is needed with pool.kind = groups; valid: 2 to {clients}"
    elif not 2 <= experts <= clients:
        yield (
            f"pool.experts: {experts} is not valid; valid: 2 to task.clients = {clients}, as a "
            "group has at least one client"
        )
    elif config.pool.empty == "split" and experts < 3:
        yield (
            f"pool.empty: split needs pool.experts of at least 3, and it is {experts}, of which "
            "none can have more than twice an even share of the clients; valid: keep"
        )


def _secret(config: RunSections) -> Iterator[str]:
    """Yield where a client's choice would be seen, or not be covered by noise."""
    mechanism = config.mechanism
    valid = [m.name for m in config.mechanisms if not (m.facts.claims and m.facts.noises_alone)]
    named = ", ".join(sorted(valid))
    if mechanism.facts.is_in_steps:
        yield (
            f"privacy.mechanism: {mechanism.name} noises training steps, and not which expert a "
            f"client picks, which pool.kind = groups would show; valid: {named}"
        )
    elif mechanism.facts.claims and mechanism.facts.noises_alone:
        yield (
            f"privacy.mechanism: {mechanism.name} noises each upload for itself, which drowns "
            f"pool.kind = groups, where only sums are ever seen; valid: {named}"
        )
    if not config.secure_aggregation.enabled:
        yield (
            "secure_aggregation.enabled: false would show the coordinator which expert each "
            "client picks; pool.kind = groups needs true"
        )
    if config.pool.count_ratio is not None and not mechanism.facts.claims:
        yield (
            f"pool.count_ratio: {config.pool.count_ratio} has no meaning under privacy.mechanism = "
            f"{mechanism.name}, which clips nothing; valid: null"
        )
