"""The thread on which all sessions of a process run: one asyncio loop, and the two queues between it and the stage's thread.

    stage thread                         playground thread
    start, answer, stop ─ inbox ─ take ► one coroutine per session
    take  ◄── outbox, wake_fd ────────── Asked | Finished | Failed

Both ways whatever has gathered is handed over at once: each hand-over costs a change of the interpreter's lock, 2 ms where both
threads are busy.

Owns: the thread, its loop, the wake-up descriptor. Promises: calls never block; what a session said before it was stopped may
still come out of `take`, nothing after. Code of an environment that blocks its thread blocks every session; `blocked_s` tells.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from stages.env.session import Answer, Opening, Said, Session, SessionKey

CLOSE_S = 2.0
"""How long `close` waits for the sessions to unwind; a thread that user code blocks is left to die with the process."""

MakeSession = Callable[[Opening, Callable[[Said], None]], Session]


class Playground:
    """Runs sessions made by `make_session`. All methods are for the stage's thread."""

    def __init__(self, make_session: MakeSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._make_session = make_session
        self._clock = clock
        self._inbox: list[Callable[[], None]] = []
        self._outbox: queue.SimpleQueue[Said | BaseException] = queue.SimpleQueue()
        self._waking = False
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sessions: dict[SessionKey, tuple[Session, asyncio.Task[None]]] = {}
        self._loop = asyncio.new_event_loop()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="playground", daemon=True)
        self._thread.start()

    def start(self, opening: Opening) -> None:
        """Begins a session, with the next `take`."""
        self._inbox.append(partial(self._start, opening))

    def answer(self, key: SessionKey, answer: Answer) -> None:
        """Hands an action to a session, with the next `take`; one that is gone misses it."""
        self._inbox.append(partial(self._answer, key, answer))

    def stop(self, key: SessionKey) -> None:
        """Cancels a session, with the next `take`; it says nothing more after that."""
        self._inbox.append(partial(self._stop, key))

    def take(self) -> list[Said]:
        """Hands over what has gathered, and returns all that sessions said since the last call.

        A fault of ours on the loop is raised here.
        """
        if self._inbox:
            calls, self._inbox = self._inbox, []
            self._loop.call_soon_threadsafe(_call_all, calls)
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        said: list[Said] = []
        while True:
            try:
                item = self._outbox.get_nowait()
            except queue.Empty:
                return said
            if isinstance(item, BaseException):
                raise item
            said.append(item)

    def blocked_s(self) -> float:
        """Seconds for which the loop has not answered; 0 while it does. Each call asks anew once the last was answered."""
        now = self._clock()
        asked_at = self._asked_at  # read once: the loop's thread clears it
        if asked_at is None:
            self._asked_at = asked_at = now
            self._loop.call_soon_threadsafe(self._pong)
        return now - asked_at

    def blocker(self) -> str:
        """Name of the session that runs at this moment; empty between two."""
        task = asyncio.current_task(self._loop)
        return task.get_name() if task is not None else ""

    def close(self) -> None:
        """Cancels all sessions and ends the thread, unless user code blocks it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            os.close(self.wake_fd)

    def _pong(self) -> None:
        self._asked_at = None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _start(self, opening: Opening) -> None:
        session = self._make_session(opening, partial(self._say, opening.key))
        ticket, attempt = opening.key
        task = self._loop.create_task(session.play(), name=f"ticket {ticket} (attempt {attempt})")
        self._sessions[opening.key] = (session, task)
        task.add_done_callback(partial(self._ended, opening.key))

    def _answer(self, key: SessionKey, answer: Answer) -> None:
        if key in self._sessions:
            self._sessions[key][0].answer(answer)

    def _stop(self, key: SessionKey) -> None:
        if key in self._sessions:
            self._sessions.pop(key)[1].cancel()

    def _say(self, key: SessionKey, said: Said) -> None:
        if key in self._sessions:
            self._post(said)

    def _ended(self, key: SessionKey, task: asyncio.Task[None]) -> None:
        self._sessions.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._post(error)

    def _post(self, item: Said | BaseException) -> None:
        self._outbox.put(item)
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        os.eventfd_write(self.wake_fd, 1)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
