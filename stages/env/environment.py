"""The protocol of environments, and how a user's environment is found by its name.

An environment is a class. The env stage makes one instance per session and speaks text with it, one line of the policy
a turn:

    task(index, purpose, seed) ─► Task ─► reset(task) ─► Observation ─► policy ─► step(text) ─► Observation ... ─► Done

Promises: nothing of user code runs but its import until `open` or `task` is called; what is wrong is said by name, with
what to do. Does not know tokens, deadlines, sessions or queues: those are the stage's.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast

from msgspec import Struct

from stages.env.errors import EnvironmentNotFound, EnvironmentOptionError, EnvironmentShapeError
from stages.service.named_code import Kind, find, source_fingerprint, told

JSON: TypeAlias = Any
"""What a JSON document can hold: None, bool, int, float, str, and lists and string-keyed dicts of those."""
Task: TypeAlias = dict[str, JSON]
"""One problem. The environment reads it, the verifier reads it; the policy sees only what `reset` says about it."""
Purpose: TypeAlias = Literal["train", "eval"]


class Observation(Struct, frozen=True):
    """What the policy reads next; its turn follows. `Observation("46\\n")`"""

    text: str


class Done(Struct, frozen=True, kw_only=True):
    """The episode is over. `Done(outcome={"answer": "41", "tool_calls": 3})`"""

    outcome: dict[str, JSON]
    """What the verifier judges; a number `tool_calls` in it is also averaged into the run's metrics."""
    text: str = ""
    """Last words to the policy; it does not answer them."""
    truncated: bool = False
    """The environment cut the episode short (too many turns): still an episode, not a failure."""


class Environment(Protocol):
    """What a user writes: one instance per session, constructed with the keyword options of `[stages.env.options]`.

    A constructor that has a `seed` parameter gets the session's seed in it: all chance comes from there. The same class
    (or its module) also has a function `task(index, purpose, seed, **options) -> Task`, pure and deterministic, whose
    eval tasks are never train tasks. An exception fails the session (`failed(env, reason)`), not the process.
    """

    async def reset(self, task: Task) -> Observation:
        """The opening text of the episode."""
        ...

    async def step(self, text: str) -> Observation | Done:
        """Answers one turn of the policy. `text` is what it sampled, stop token included; any text may come."""
        ...


@dataclass(frozen=True)
class LoadedEnvironment:
    """An environment found by name. `fingerprint` is xxh3-64 of its module's source; hello compares it."""

    path: str
    kind: Callable[..., Environment]
    source: Callable[..., Task]
    fingerprint: str

    def task(self, index: int, purpose: Purpose, seed: int, options: Mapping[str, JSON]) -> Task:
        """The `index`-th problem of a purpose: the same on every host, for ever."""
        return self.source(index, purpose, seed, **_known(self.source, options))

    def open(self, options: Mapping[str, JSON], seed: int) -> Environment:
        """A fresh instance for one session."""
        return self.kind(**_known(self.kind, {**options, "seed": seed}))

    def check_options(self, options: Mapping[str, JSON]) -> None:
        """Refuses keys that neither the class nor its task function takes, and values that they refuse.

        Raises EnvironmentOptionError. Draws one task and makes one instance, so a wrong value is found at start-up.
        """
        known = {**_parameters(self.kind), **_parameters(self.source)}
        for key in options:
            if key in _GIVEN or (key not in known and not _takes_any(known.values())):
                raise self._no_such_option(key, known)
        self._try("is made", lambda: self.open(options, 0), options)
        self._try("draws a task", lambda: self.task(0, "train", 0, options), options)

    def _no_such_option(self, key: str, known: Mapping[str, inspect.Parameter]) -> EnvironmentOptionError:
        takes = [name for name, parameter in known.items() if parameter.kind not in _OPEN_ENDED]
        allowed = sorted({*takes} - _GIVEN)
        near = difflib.get_close_matches(key, allowed, 1)
        hint = "the stage itself gives it; " if key in _GIVEN else f"did you mean {near[0]!r}? " if near else ""
        return EnvironmentOptionError(
            f"stages.env.options.{key}: {self.path} has no such option; {hint}it takes: {', '.join(allowed) or 'none'}"
        )

    def _try(self, when: str, call: Callable[[], object], options: Mapping[str, JSON]) -> None:
        try:
            call()
        except EnvironmentOptionError as error:
            raise EnvironmentOptionError(f"stages.env.options: {self.path} refuses its options: {error}") from error
        except SystemExit as error:
            raise EnvironmentOptionError(f"{self.path} calls sys.exit({error.code!r}) when it {when}") from error
        except Exception as error:  # user code may raise anything
            if options and isinstance(error, TypeError | ValueError):
                raise EnvironmentOptionError(f"stages.env.options: {self.path} refuses its options: {error}") from error
            raise EnvironmentOptionError(f"{self.path} fails when it {when}: {told(error)}") from error


_GIVEN = frozenset({"index", "purpose", "seed"})
"""Arguments that the stage fills in; never options."""
_OPEN_ENDED = frozenset({inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL})


NAMED = Kind("stages.env.environment", "stages.env", "module:Class, for example my_module:MyEnv", EnvironmentNotFound)


def load_environment(path: str) -> LoadedEnvironment:
    """Imports `module:Class`. Raises EnvironmentNotFound or EnvironmentShapeError, each saying what to do."""
    kind = find(path, NAMED)
    if not inspect.isclass(kind):
        raise EnvironmentShapeError(f"{path} is not a class; stages.env.environment names a class as module:Class")
    for method in ("reset", "step"):
        _check_method(path, kind, method)
    module = inspect.getmodule(kind)
    source = getattr(kind, "task", None) or getattr(module, "task", None)
    if not callable(source):
        raise EnvironmentShapeError(f"{path} has no task source; write `task(index, purpose, seed, **options)` as a static method")
    _check_call(path, "task", source, 3)
    return LoadedEnvironment(path, cast("Callable[..., Environment]", kind), source, source_fingerprint(kind))


def _check_method(path: str, kind: type, method: str) -> None:
    found = getattr(kind, method, None)
    if not inspect.iscoroutinefunction(found):
        fault = "has no method" if found is None else "must be async, but is a plain"
        argument = "task" if method == "reset" else "text"
        raise EnvironmentShapeError(f"{path} {fault} {method}; write `async def {method}(self, {argument})`")
    _check_call(path, method, found, 2)


def _check_call(path: str, name: str, function: Callable[..., object], arguments: int) -> None:
    """`function` can be called with that many positional arguments (self included)."""
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise EnvironmentShapeError(f"{path}: {name}{signature} cannot be called with {arguments} arguments: {error}") from error


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _known(function: Callable[..., object], options: Mapping[str, JSON]) -> dict[str, JSON]:
    """The options that `function` has a parameter for; all of them where it takes any keyword."""
    parameters = _parameters(function)
    if _takes_any(parameters.values()):
        return dict(options)
    return {key: value for key, value in options.items() if key in parameters}
