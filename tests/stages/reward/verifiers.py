"""Verifiers: two good ones, and some that misbehave, each in one way."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from stages.reward.verifier import FinishedEpisode


def parts(episode: FinishedEpisode) -> dict[str, float]:
    """Right or not, and the number of turns."""
    print("what a verifier prints does not disturb the stage")
    said = [text for speaker, text in episode.turns if speaker == "policy"]
    return {"right": float(said[-1] == "A2\n"), "turns": float(len(said))}


async def slow_first(episode: FinishedEpisode) -> float:
    """Odd ones are held back until an even one has come: they end only if they run side by side."""
    if episode.task["index"] % 2:
        await _came.wait()
    else:
        _came.set()
    return 1.0


_came = asyncio.Event()


async def never(episode: FinishedEpisode) -> float:
    await asyncio.Event().wait()
    return 0.0


async def hangs_asynchronously(episode: FinishedEpisode) -> float:
    if episode.task["index"]:
        return 0.5
    return hangs(episode)


def hangs(episode: FinishedEpisode) -> float:
    if episode.task["index"]:
        return 0.5
    while True:
        time.sleep(3600)


def bad(episode: FinishedEpisode) -> Any:
    """What `task["do"]` says."""
    deeds: dict[str, Callable[[], Any]] = {
        "raise": lambda: 1 / 0,
        "exit": lambda: sys.exit(3),
        "die": lambda: os._exit(7),
        "nan": lambda: float("nan"),
        "infinite": lambda: {"a": float("inf")},
        "word": lambda: "good",
        "none": lambda: None,
        "huge": lambda: {"a": 1e308, "b": 1e308},
        "good": lambda: 0.25,
    }
    return deeds[episode.task["do"]]()


if "stages.reward.worker" in getattr(sys.modules.get("__main__"), "__file__", "").replace("/", "."):

    def not_in_workers() -> None:
        """Shadows the verifier of this name in worker processes only: it takes no episode there."""

else:

    def not_in_workers(episode: FinishedEpisode) -> float:  # type: ignore[misc]
        return 1.0
