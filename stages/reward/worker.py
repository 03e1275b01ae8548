"""A worker process of the reward stage: runs a user's verifier where it can hang or crash without harm to anyone.

Reads requests from its standard input and answers on its standard output, which user code never sees: what that prints goes to
standard error, the stage's log. A plain verifier is asked one episode at a time; an async one judges many side by side, each
under the time limit. Promises: an exception is an answer. Ends with its input, and with its parent.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from broker.lifeline import die_with_parent
from schemas.errors import VerifierFailure
from stages.reward.verdicts import Answer, Begin, Begun, Judge, Judged, Refused, Request, framed, length_of, request_of
from stages.reward.verifier import LoadedVerifier, load_verifier

REASON_CHARACTERS = 500
"""Of an exception's text: enough to recognise it, small enough for a journal that keeps every failure."""

Say = Callable[[Answer], None]


def is_async(verifier: LoadedVerifier) -> bool:
    """Whether episodes may be judged side by side: an `async def`, or an object whose call is one."""
    function = verifier.function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def main() -> None:
    """The process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage, which then closes our input
    requests, answers = _own_pipes()

    def say(answer: Answer) -> None:
        answers.write(framed(answer))
        answers.flush()

    begin = _read(requests)
    if not isinstance(begin, Begin):
        return
    sys.path.extend(folder for folder in begin.folders if folder not in sys.path)
    verifier = load_verifier(begin.verifier)
    say(Begun())
    with asyncio.Runner() as runner:
        if is_async(verifier):
            runner.run(_side_by_side(verifier, begin.timeout_s, requests, say))
            return
        while isinstance(request := _read(requests), Judge):
            say(runner.run(_answer(verifier, request, None)))


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the stage; user code gets an empty input, and the error stream as its output."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def _read(requests: BinaryIO) -> Request | None:
    head = requests.read(4)
    return request_of(requests.read(length_of(head))) if len(head) == 4 else None


async def _side_by_side(verifier: LoadedVerifier, timeout_s: float, requests: BinaryIO, say: Say) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    judging: set[asyncio.Task[None]] = set()

    async def judge(request: Judge) -> None:
        say(await _answer(verifier, request, timeout_s))

    while True:
        try:
            head = await reader.readexactly(4)
            request = request_of(await reader.readexactly(length_of(head)))
        except asyncio.IncompleteReadError:
            return
        if isinstance(request, Judge):
            task = asyncio.create_task(judge(request))
            judging.add(task)
            task.add_done_callback(judging.discard)


async def _answer(verifier: LoadedVerifier, request: Judge, timeout_s: float | None) -> Answer:
    """The error boundary of user code. A plain verifier has no limit here: the stage ends the whole process instead."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return Judged(request.number, await verifier.judge(request.episode))
    except VerifierFailure as error:
        return Refused(request.number, str(error)[:REASON_CHARACTERS])
    except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the boundary
        if limit.expired():
            return Refused(request.number, f"the verifier took more than {timeout_s:g} s")
        return Refused(request.number, f"the verifier raised {_told(error)}")


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code again: its __str__
        text = "(its text cannot be had)"
    return f"{type(error).__name__}: {text}"[:REASON_CHARACTERS].encode(errors="replace").decode()


if __name__ == "__main__":
    main()
