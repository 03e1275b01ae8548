"""The project's errors: one base, one subclass per boundary.

Each message says what happened, where, and what to do. An error of another type that reaches a process's error boundary
is our own bug.
"""

from __future__ import annotations


class TidemillError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(TidemillError):
    """What the user asked for cannot be run: a key, a type, a path, a value. The command line exits with code 2."""


class WireError(TidemillError):
    """A message, header or frame that does not say what the schemas allow."""


class SchemaMismatchError(WireError):
    """The two ends were built from different schemas (their locks differ)."""


class BrokerRefusedError(TidemillError):
    """The broker refused this client for good; the text is the broker's reason."""


class FencedError(BrokerRefusedError):
    """A newer process has this one's name: whoever started this one may start another."""


class JournalError(TidemillError):
    """The journal cannot be read or written as promised."""


class JournalDamagedError(JournalError):
    """Entries are lost that the state needs: no restart mends that. `acceptable`: the run can go on without them."""

    def __init__(self, text: str, *, acceptable: bool) -> None:
        super().__init__(text)
        self.acceptable = acceptable


class ModelError(TidemillError):
    """A model directory, tensor or architecture that cannot be used."""


class BlobError(TidemillError):
    """A blob could not be had, kept or served: nobody has it, no room, or what came is not what its digest says."""


class NotServedError(BlobError):
    """Nobody who could be asked has the blob so far: who may wait asks again."""


class EngineError(TidemillError):
    """A rollout engine was asked for what it cannot do."""


class EnvironmentFailure(TidemillError):
    """User code of an environment failed; the session is data (`failed(env, reason)`), not a crash."""


class VerifierFailure(TidemillError):
    """User code of a reward failed or ran out of time; the record is data, not a crash."""


class InvariantError(TidemillError):
    """A promise about our own state is broken: the process stops with its name."""
