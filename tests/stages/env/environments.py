"""Environments that misbehave, each in one way, and one that listens."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from stages.env.environment import Done, Observation, Task


def task(index: int, purpose: str, seed: int) -> Task:
    """The same shape for all of this module."""
    return {"index": index, "purpose": purpose, "seed": seed}


class Echo:
    """Repeats what it hears until it hears `A`."""

    def __init__(self, *, seed: int = 0) -> None:
        self.heard: list[str] = []
        self.seed = seed

    async def reset(self, task: Task) -> Observation:
        return Observation("1+1=\n")

    async def step(self, text: str) -> Observation | Done:
        self.heard.append(text)
        if text.startswith("A"):
            return Done(outcome={"heard": self.heard, "seed": self.seed, "tool_calls": len(self.heard) - 1}, text="?")
        return Observation(text)


class Raises(Echo):
    async def step(self, text: str) -> Observation | Done:
        raise ValueError("the tool fell over")


class Exits(Echo):
    async def step(self, text: str) -> Observation | Done:
        sys.exit(3)


class CancelsItself(Echo):
    async def step(self, text: str) -> Observation | Done:
        raise asyncio.CancelledError


class Waits(Echo):
    """Never answers."""

    entered = threading.Event()

    async def step(self, text: str) -> Observation | Done:
        Waits.entered.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")


class Blocks(Echo):
    """Blocks the thread until the test lets go."""

    entered = threading.Event()
    let_go = threading.Event()

    async def step(self, text: str) -> Observation | Done:
        Blocks.entered.set()
        Blocks.let_go.wait(20)
        return Done(outcome={})


class Answers(Echo):
    """Returns what the test put here."""

    reply: Any = None

    async def step(self, text: str) -> Observation | Done:
        return Answers.reply  # type: ignore[no-any-return]


class LongWinded(Echo):
    async def step(self, text: str) -> Observation | Done:
        return Observation("9" * 50)


class Endless(Echo):
    """What it says has a letter that the tokenizer refuses, had anybody asked it."""

    async def step(self, text: str) -> Observation | Done:
        return Observation("ß" * 100_000)


class EndlessAtOnce(Echo):
    async def reset(self, task: Task) -> Observation:
        return Observation("ß" * 100_000)


class Mute(Echo):
    async def reset(self, task: Task) -> Observation:
        return Observation("")


class Foreign(Echo):
    async def reset(self, task: Task) -> Observation:
        return Observation("weiß")


class UntilEnd(Echo):
    """Its turns end with `]`."""

    stop_text = "]"
