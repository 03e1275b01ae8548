"""The one error boundary around a user's environment: whatever its code does becomes text, a task or EnvironmentFailure.

Promises: no exception of user code passes it (SystemExit included); what comes back has the promised types and can travel.
Knows the deadline of one call, and counts the seconds spent. Does not know tokens or turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from schemas.errors import EnvironmentFailure
from stages.env.environment import Done, Environment, LoadedEnvironment, Observation, Purpose

REASON_CHARACTERS = 500
"""Of an exception's text: enough to recognise it, small enough for a journal that keeps every failure."""

ResultT = TypeVar("ResultT")


class UserCode:
    """One session's environment. `seconds` counts what its calls took."""

    def __init__(self, loaded: LoadedEnvironment, options: Mapping[str, Any], deadline_s: float) -> None:
        self._loaded = loaded
        self._options = options
        self._deadline_s = deadline_s
        self._environment: Environment | None = None
        self.seconds = 0.0

    def open(self, index: int, purpose: Purpose, task_seed: int, environment_seed: int) -> dict[str, Any]:
        """Draws the task, makes the instance. Raises EnvironmentFailure."""
        with self._boundary("task"):
            task = self._loaded.task(index, purpose, task_seed, self._options)
            self._environment = self._loaded.open(self._options, environment_seed)
        return as_json(task, "task")

    async def reset(self, task: dict[str, Any]) -> Observation:
        """Raises EnvironmentFailure."""
        environment = self._opened()
        said = await self._limited("reset", lambda: environment.reset(task))
        if not isinstance(said, Observation):
            raise EnvironmentFailure(f"reset returned {type(said).__name__}, not an Observation")
        return Observation(checked_text(said.text, "reset"))

    async def step(self, text: str) -> Observation | Done:
        """Raises EnvironmentFailure."""
        environment = self._opened()
        said = await self._limited("step", lambda: environment.step(text))
        if isinstance(said, Observation):
            return Observation(checked_text(said.text, "step"))
        if not isinstance(said, Done):
            raise EnvironmentFailure(f"step returned {type(said).__name__}, not an Observation or Done")
        outcome, last_words = as_json(said.outcome, "outcome"), checked_text(said.text, "step")
        return Done(outcome=outcome, text=last_words, truncated=bool(said.truncated))

    def _opened(self) -> Environment:
        assert self._environment is not None, "open() comes first"
        return self._environment

    async def _limited(self, what: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        with self._boundary(what):
            try:
                async with asyncio.timeout(self._deadline_s) as limit:
                    return await call()
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise EnvironmentFailure(f"turn deadline: {what} took more than {self._deadline_s:g} s") from error

    @contextmanager
    def _boundary(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except EnvironmentFailure:
            raise
        except asyncio.CancelledError as error:
            if _cancelled_from_outside():
                raise
            raise EnvironmentFailure(f"{what} raised CancelledError: it awaited a task that was cancelled") from error
        # SystemExit and KeyboardInterrupt, raised by user code in a coroutine, would end the whole loop.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise EnvironmentFailure(f"{what} raised {told(error)}") from error
        finally:
            self.seconds += time.monotonic() - started


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def told(error: BaseException) -> str:
    """Type and text of an exception, cut to REASON_CHARACTERS; an exception whose text raises has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code again: its __str__
        text = "(its text cannot be had)"
    return f"{type(error).__name__}: {text}"[:REASON_CHARACTERS]


def checked_text(text: object, what: str) -> str:
    """`text` where it is text that can be encoded as UTF-8; else raises EnvironmentFailure."""
    if not isinstance(text, str):
        raise EnvironmentFailure(f"{what} gave a text of type {type(text).__name__}, not str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFailure(f"{what} gave a text that is not Unicode: {error}") from error
    return text


def as_json(value: object, what: str) -> dict[str, Any]:
    """`value` as a plain JSON object that a record can carry. Raises EnvironmentFailure where it is none."""
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        msgspec.msgpack.encode(plain)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EnvironmentFailure(f"the {what} holds what JSON cannot: {error}") from error
    if not isinstance(plain, dict):
        raise EnvironmentFailure(f"the {what} is of type {type(value).__name__}, not a dict")
    return plain
