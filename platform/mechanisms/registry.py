"""The mechanisms that a run may be configured with: a closed list, which an argument may extend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from methods import BrokenPlugin
from methods.plugins import Guarded, Outside, Plugins, calling
from platform.mechanisms.central_noise import CENTRAL_NOISE
from platform.mechanisms.distributed_noise import DISTRIBUTED_NOISE
from platform.mechanisms.dp_sgd import DP_SGD
from platform.mechanisms.mechanism import Mechanism, Settings
from platform.mechanisms.none import NONE
from platform.mechanisms.upload_noise import UPLOAD_NOISE
from privacy import MechanismFacts, UnknownMechanism


@dataclass(frozen=True)
class Mechanisms:
    """Mechanisms by their names.

    Attributes:
        all: The mechanisms, in the order in which sentences list them.
        plugins: Plug-ins, some of which may be mechanisms. They are imported when they are named.
    """

    all: tuple[Mechanism, ...]
    plugins: Plugins = field(default_factory=lambda: Plugins(installed=False))

    def __post_init__(self) -> None:
        """Refuse two mechanisms of one name: a ledger row could mean either."""
        names = [mechanism.name for mechanism in self.all]
        if len(set(names)) != len(names):
            raise ValueError(f"two mechanisms have one name: {', '.join(names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (*(mechanism.name for mechanism in self.all), *self._outside())

    def __iter__(self) -> Iterator[Mechanism]:
        """Yield all but the plug-ins, whose code runs only if a run names them."""
        return iter(self.all)

    def _outside(self) -> Mapping[str, Outside]:
        found = self.plugins.of("mechanism")
        for mechanism in self.all:
            if mechanism.name in found:
                raise BrokenPlugin(
                    f"privacy.mechanism: {mechanism.name!r} is a mechanism of Sotto and "
                    f"{found[mechanism.name].where}; valid is another name for the second"
                )
        return found

    def named(self, name: str) -> Mechanism:
        """Return the mechanism of this name, or `UnknownMechanism`."""
        for mechanism in self.all:
            if mechanism.name == name:
                return mechanism
        if name in self._outside():
            return _from_outside(self.plugins, name)
        raise UnknownMechanism(f"mechanism is {name!r}; valid are {', '.join(self.names)}")

    def facts_of(self, name: str) -> MechanismFacts:
        """Return the meaning of a ledger row of this name; `UnknownMechanism` has no price."""
        return self.named(name).facts

    def claims_nothing(self, name: object) -> bool:
        """Return whether this is the name of a mechanism without noise."""
        return name in self.names and not self.facts_of(str(name)).claims

    def adding(self, *mechanisms: Mechanism) -> Mechanisms:
        """Return these mechanisms and others, whose names must be new."""
        return replace(self, all=(*self.all, *mechanisms))


def _from_outside(plugins: Plugins, name: str) -> Mechanism:
    """Return the mechanism of a plug-in, whose functions name it if they fail."""
    source, found = plugins.of("mechanism")[name], plugins.load("mechanism", name).MECHANISM
    if not isinstance(found, Mechanism) or found.name != name:
        raise BrokenPlugin(
            f"privacy.mechanism: {name!r} is {source.where} and its MECHANISM is not a Mechanism "
            f"whose facts have this name; valid: MechanismFacts(name={name!r}, ...)"
        )

    def guarded(build: Callable[[Settings], Any]) -> Callable[[Settings], Any]:
        def built(settings: Settings) -> Any:
            with calling(source, build.__name__):
                return Guarded(build(settings), source)

        return built

    return replace(
        found,
        upload=guarded(found.upload),
        entry=None if found.entry is None else guarded(found.entry),
        # Steps are drawn by Opacus, which reads the numbers of a `DpSgd` and calls nothing of it.
        training=found.training,
    )


BUILT_IN = Mechanisms((NONE, DP_SGD, UPLOAD_NOISE, DISTRIBUTED_NOISE, CENTRAL_NOISE))
"""The mechanisms of this package. A configuration can name only mechanisms that are listed."""
KNOWN = Mechanisms(BUILT_IN.all, Plugins())
"""These and the mechanisms of installed packages."""
