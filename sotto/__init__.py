"""Sotto from Python: private federated runs, secure sums, and what they give away.

    import sotto

    run = sotto.run("quickstart", rounds=3)
    run.accuracy, run.epsilon.server

    total = sotto.secure_sum({"a": [1.0, 2.0], "b": [3.0, 4.0]}, clipping_norm=10.0)

    plan = sotto.Plan("upload_noise", rounds=10, noise_multiplier=3.8)
    plan.epsilon(delta=1e-5).server

Names are loaded when they are first used, so `import sotto` is quick, and secure sums and plans
never load torch. `docs/python.md` describes each name, and says what stays as it is.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    from platform._own_packages import shadowed
except ImportError:
    raise ImportError(
        "platform: the standard library's is found before Sotto's; valid: an installed Sotto"
    ) from None

if TYPE_CHECKING:
    from sotto.data import Data, clip
    from sotto.errors import Error
    from sotto.own import averaged
    from sotto.plans import Plan, calibrate
    from sotto.plugins import plugin
    from sotto.runs import Epsilon, Round, Run, resume, run
    from sotto.studies import Study
    from sotto.sums import SecureSum, SecureSumClient, SecureSumServer, secure_sum

_MODULES = {
    **dict.fromkeys(("Data", "clip"), "data"),
    **dict.fromkeys(("Error",), "errors"),
    **dict.fromkeys(("averaged",), "own"),
    **dict.fromkeys(("Plan", "calibrate"), "plans"),
    **dict.fromkeys(("plugin",), "plugins"),
    **dict.fromkeys(("Epsilon", "Round", "Run", "resume", "run"), "runs"),
    **dict.fromkeys(("Study",), "studies"),
    **dict.fromkeys(("SecureSum", "SecureSumClient", "SecureSumServer", "secure_sum"), "sums"),
}
__all__ = [
    "Data",
    "Epsilon",
    "Error",
    "Plan",
    "Round",
    "Run",
    "SecureSum",
    "SecureSumClient",
    "SecureSumServer",
    "Study",
    "averaged",
    "calibrate",
    "clip",
    "plugin",
    "resume",
    "run",
    "secure_sum",
]


def _require_own_packages() -> None:
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if (found := shadowed(home)) is not None:
        name, other = found
        raise ImportError(
            f"{name}: {other!r} is found before Sotto's own package {name!r}; valid: another name "
            "for yours, or a path on which it comes later"
        )


_require_own_packages()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sotto' has no attribute {name!r}")
    value = getattr(import_module(f"sotto.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
