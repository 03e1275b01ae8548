"""What can be wrong with the environment that a user names: found at start-up, before the first ticket is asked for."""

from __future__ import annotations

from schemas.errors import ConfigError


class EnvironmentNotFound(ConfigError):
    """`stages.env.environment` names a module or a class that cannot be imported."""


class EnvironmentShapeError(ConfigError):
    """What was found is not an environment: a method is absent, not async, or takes other arguments."""


class EnvironmentOptionError(ConfigError):
    """A key or value under `stages.env.options` that the environment does not know."""
