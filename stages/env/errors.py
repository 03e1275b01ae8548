"""What can be wrong with the environment that a user names: found at start-up, before the first ticket is asked for."""

from __future__ import annotations

import math

from schemas.errors import ConfigError


class EnvironmentNotFound(ConfigError):
    """`stages.env.environment` names a module or a class that cannot be imported."""


class EnvironmentShapeError(ConfigError):
    """What was found is not an environment: a method is absent, not async, or takes other arguments."""


class EnvironmentOptionError(ConfigError):
    """A key or value under `stages.env.options` that the environment does not know."""


def whole(name: str, value: object, least: int, most: int) -> int:
    """The value of an option that counts something. Raises EnvironmentOptionError: 2.5 or true would be taken, and never be met."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise EnvironmentOptionError(f"{name} is a whole number, {least} to {most}, not {value!r}")
    return value


def number(name: str, value: object, least: float, most: float = math.inf) -> float:
    """The value of an option that measures something, nan no measure. Raises EnvironmentOptionError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise EnvironmentOptionError(f"{name} is a number, {bounds}, not {value!r}")
    return float(value)
