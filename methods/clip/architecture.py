"""What a model computes with its weights, as far as its modules tell."""

from __future__ import annotations

from torch import nn

Setting = bool | int | float | str


def architecture_of(model: nn.Module) -> list[tuple[str, str, str, dict[str, Setting]]]:
    """Return a description of a model that differs if what it computes with equal weights does.

    Weights alone do not tell: GELU or its quick approximation, the number of heads and how tokens
    are pooled leave no trace in them.

    Args:
        model: Any module.

    Returns:
        Of each module its path, type, what it says of itself, and its plain settings by name.
    """
    return [
        (path, type(module).__qualname__, module.extra_repr(), _settings(module))
        for path, module in model.named_modules()
    ]


def _settings(module: nn.Module) -> dict[str, Setting]:
    # Not what loading and running change, and what is not in the forward pass.
    passing = {"training", "grad_checkpointing"}
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, Setting) and name not in passing and not name.startswith("__")
    }
