"""What a verifier is, and how a user's verifier is found by its name.

A verifier is a function, plain or async, from a finished episode to a reward: one number, or named parts that are
summed by the weights of the config (1 where it names none).

    def my_reward(episode: FinishedEpisode) -> float: ...
    async def my_reward(episode: FinishedEpisode) -> dict[str, float]: ...

A function that always gives the same parts may name them, and then a weight for another one is refused before the run:

    my_reward.parts = ("right", "brief")

Promises: what comes out of `reward_parts` is finite and named. Does not know time-outs, workers or queues: those are
the stage's; a verifier that raises or is too slow fails its record (`failed(reward, reason)`), not the process.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct

from schemas.errors import ConfigError, VerifierFailure
from stages.service.named_code import Kind, find, source_fingerprint

JSON: TypeAlias = Any
Speaker: TypeAlias = Literal["env", "policy"]
Judgement: TypeAlias = "float | Mapping[str, float]"
Verifier: TypeAlias = "Callable[[FinishedEpisode], Judgement | Awaitable[Judgement]]"

SINGLE_PART = "reward"
"""The name of the only part where a verifier returns one number."""
PARTS = "parts"
"""The attribute in which a function may name its parts."""


class FinishedEpisode(Struct, frozen=True, kw_only=True):
    """Everything a verifier may judge. Text as the environment saw it; the policy's stop tokens included."""

    task: dict[str, JSON]
    """What the task source made: `{"expression": "12+34-5", "answer": "41"}`."""
    outcome: dict[str, JSON]
    """What the environment said at the end: `{"answer": "41", "tool_calls": 2}`; empty where it had no chance to."""
    turns: list[tuple[Speaker, str]]
    """In order: `[("env", "12+34-5=\\n"), ("policy", "[12+34]\\n"), ...]`."""
    truncated: bool
    """Cut short by a deadline, a token limit or the environment; whether that deserves 0 is the verifier's to say."""


class VerifierNotFound(ConfigError):
    """`stages.reward.verifier` names a module or a function that cannot be imported."""


class VerifierShapeError(ConfigError):
    """What was found cannot be called with one finished episode, or names its parts otherwise than as a list of names."""


class WeightError(ConfigError):
    """`stages.reward.weights` weighs a part that the verifier does not give."""


@dataclass(frozen=True)
class LoadedVerifier:
    """A verifier found by name. `fingerprint` is xxh3-64 of its module's source; hello compares it between hosts."""

    path: str
    function: Verifier
    fingerprint: str
    parts: tuple[str, ...] = ()
    """Of its reward, where it names them; else they are known once it has judged."""

    def check_weights(self, weights: Mapping[str, float]) -> None:
        """Refuses a weight of a part that never comes: it would weigh nothing, in silence. Raises WeightError."""
        for name in weights if self.parts else ():
            if name not in self.parts:
                near = difflib.get_close_matches(name, self.parts, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise WeightError(f"stages.reward.weights.{name}: {self.path} gives no such part; {hint}it gives: {', '.join(self.parts)}")

    async def judge(self, episode: FinishedEpisode) -> dict[str, float]:
        """The parts of one episode's reward. Raises VerifierFailure on what is no reward; a user's exceptions pass."""
        judgement = self.function(episode)
        if inspect.isawaitable(judgement):
            judgement = await judgement
        return reward_parts(judgement)


NAMED = Kind("stages.reward.verifier", "stages.reward", "module:function, for example my_module:my_reward", VerifierNotFound)


def load_verifier(path: str) -> LoadedVerifier:
    """Imports `module:function`. Raises VerifierNotFound or VerifierShapeError, each saying what to do."""
    function = find(path, NAMED)
    if not callable(function):
        raise VerifierShapeError(f"{path} is not a function; write `def {path.partition(':')[2]}(episode): ...`")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise VerifierShapeError(f"{path} must take one argument, the finished episode: {error}") from error
    return LoadedVerifier(path, cast("Verifier", function), source_fingerprint(function), _parts_of(path, function))


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def gives(*parts: str) -> Callable[[FunctionT], FunctionT]:
    """Names the parts of a verifier: `@gives("found", "near")` is `nearness.parts = ("found", "near")`, in words that types know."""

    def name(function: FunctionT) -> FunctionT:
        setattr(function, PARTS, parts)
        return function

    return name


def _parts_of(path: str, function: object) -> tuple[str, ...]:
    parts = getattr(function, PARTS, ())
    if not isinstance(parts, tuple | list):
        return ()  # a method of that name, for example, of somebody's callable object
    if not all(isinstance(part, str) for part in parts):
        raise VerifierShapeError(f"{path}.{PARTS} is {parts!r}; it is a tuple of the names of its parts, or is left out")
    return tuple(parts)


def reward_parts(judgement: object) -> dict[str, float]:
    """The named parts of what a verifier returned. Raises VerifierFailure where a part is no finite number."""
    parts = judgement if isinstance(judgement, Mapping) else {SINGLE_PART: judgement}
    if not parts:
        raise VerifierFailure("a verifier returned no parts; return a number or at least one named part")
    return {str(name): _finite(str(name), part) for name, part in parts.items()}


def _finite(name: str, part: object) -> float:
    try:
        number = float(cast("float", part))
    except (TypeError, ValueError) as error:
        raise VerifierFailure(f"the part {name!r} of a verifier's reward is {part!r}, not a number") from error
    if not math.isfinite(number):
        raise VerifierFailure(f"the part {name!r} of a verifier's reward is {number}; rewards are finite")
    return number
