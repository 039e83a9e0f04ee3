"""What `audit-privacy --json` wrote, read back for a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from platform.errors import ConfigError
from platform.reports.empirical import AuditedClaim, SeenChannel

Word = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _Seen(BaseModel):
    """One channel; what else it says is not shown."""

    model_config = ConfigDict(strict=True)

    channel: Literal["sum", "pool", "training"]
    mechanism: Word
    unit: Literal["client", "record"]
    epsilon_lower_bound_95: NotNegative
    claimed_epsilon: NotNegative
    delta: Share
    canaries: Annotated[int, Field(ge=1)]
    power: Share
    passed: bool


class _Game(BaseModel):
    """What was seen of offers, folders, clients that fail, and hostile peers."""

    model_config = ConfigDict(strict=True)

    channel: Literal["offers", "folders", "failures", "peers"]
    passed: bool


_FILE: TypeAdapter[list[_Seen | _Game]] = TypeAdapter(list[_Seen | _Game])


def read_audit(path: Path) -> tuple[SeenChannel, ...]:
    """Return what an audit saw.

    Raises:
        ConfigError: If the file is not there, or is none that `audit-privacy --json` writes.
    """
    try:
        found = _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--audit: {str(path)!r} cannot be read ({error.strerror}); {_VALID}"
        ) from error
    except ValidationError as error:
        raise ConfigError(f"--audit: {str(path)!r} is not valid; {_VALID}") from error
    channels = [one for one in found if isinstance(one, _Seen)]
    if not channels:
        raise ConfigError(f"--audit: {str(path)!r} is of no channel; {_VALID}")
    # What tells folders apart, or data sets by their failures, does so on every channel alike.
    alike = all(one.passed for one in found if isinstance(one, _Game))
    return tuple(_seen(one, passed=one.passed and alike) for one in channels)


def _seen(one: _Seen, *, passed: bool) -> SeenChannel:
    claim = AuditedClaim(
        mechanism=one.mechanism, unit=one.unit, epsilon=one.claimed_epsilon, delta=one.delta
    )
    return SeenChannel(
        channel=one.channel,
        claim=claim,
        lower_bound=one.epsilon_lower_bound_95,
        canaries=one.canaries,
        power=one.power,
        passed=passed,
    )


_VALID = "valid is what `audit-privacy CONFIG --json` prints"
