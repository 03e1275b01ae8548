"""A user's environment under a debugger: each `reset` and `step` is entered, and what they raise is looked at where it was raised.

The sessions run on a thread of their own; the debugger speaks there, and waits its turn for the terminal. Does not know the stage.
"""

from __future__ import annotations

import _thread
import bdb
import functools
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from schemas.config import EnvConfig
from stages.env.environment import Done, Environment, Observation, Task
from stages.env.settings import OpenedEnvironment, open_environment
from tools.replay.debugging import Debugger

ResultT = TypeVar("ResultT")
Opener = Callable[[EnvConfig], OpenedEnvironment]


class SteppedEnvironment:
    """One session's environment, followed by `debugger`."""

    def __init__(self, followed: Environment, debugger: Debugger) -> None:
        self._followed, self._debugger = followed, debugger

    async def reset(self, task: Task) -> Observation:
        return await self._stepped("reset", self._followed.reset(task))

    async def step(self, text: str) -> Observation | Done:
        return await self._stepped("step", self._followed.step(text))

    async def _stepped(self, what: str, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            self._debugger.enter_next_call()
            try:
                return await call
            finally:
                sys.settrace(None)
        except bdb.BdbQuit:
            self._debugger.quitted = True
            _thread.interrupt_main()
            raise
        except Exception as error:
            if not self._debugger.quitted:
                print(f"{what} raised {type(error).__name__}: {error}; this is where", file=sys.stderr)
                self._debugger.look_at(error.__traceback__)
            raise


def opener(debugged: bool) -> Opener:
    """What `Env` is to open its environment with."""
    return _opened_stepped if debugged else open_environment


def _opened_stepped(settings: EnvConfig) -> OpenedEnvironment:
    opened = open_environment(settings)
    kind, debugger = opened.environment.kind, Debugger()

    @functools.wraps(kind, updated=())
    def make(**options: Any) -> Environment:
        return SteppedEnvironment(kind(**options), debugger)

    return replace(opened, environment=replace(opened.environment, kind=make))
