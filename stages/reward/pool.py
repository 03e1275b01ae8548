"""The worker processes of one reward process: who judges what, since when, and what becomes of those that hang or die.

    submit ─► line ─► worker ─► Judged | Refused ─► take
                        └─ past its limit, or dead: killed, replaced; what it was at is Refused

Owns the workers and the line before them. Promises: every episode that is submitted gets one answer, unless cancelled; a worker
has at most `depth` episodes; one that cannot even import the verifier stops the stage, with its name.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.errors import ConfigError
from stages.reward.process import WorkerProcess
from stages.reward.verdicts import Answer, Begin, Begun, Judge, Judged, Refused

BEGIN_S = 60.0
"""How long a worker may take to import a verifier: some import a whole framework."""
BLOCKED_S = 1.0
"""What an async worker gets beyond the limit, which it enforces itself, before it is taken for blocked."""

Verdict = Judged | Refused


@dataclass
class Worker:
    """A worker and what it is at: episodes by number, with the time they were sent."""

    process: WorkerProcess
    since: float
    begun: bool = False
    judging: dict[int, tuple[Judge, float]] = field(default_factory=dict)


class WorkerPool:
    """`size` workers that run `begin.verifier`; `depth` 1 for a plain one. `clock` gives monotonic seconds."""

    def __init__(self, begin: Begin, size: int, depth: int, clock: Callable[[], float]) -> None:
        self._begin, self._depth, self._clock = begin, depth, clock
        self._limit_s = begin.timeout_s + (BLOCKED_S if depth > 1 else 0.0)
        self._line: deque[Judge] = deque()
        self._ready: list[Verdict] = []
        self._epoll = select.epoll()
        self._workers = [self._started() for _ in range(size)]
        self.busy_seconds = 0.0

    def fileno(self) -> int:
        """Readable when `take` should be called."""
        return self._epoll.fileno()

    def submit(self, request: Judge) -> None:
        self._line.append(request)
        self._feed()

    def cancel(self, number: int) -> None:
        """Forgets an episode that waits; one that is being judged runs to its end, and its answer is for the caller to ignore."""
        self._line = deque(request for request in self._line if request.number != number)

    def take(self) -> list[Verdict]:
        """All answers since the last call. Raises ConfigError where a worker cannot begin."""
        for index, worker in enumerate(self._workers):
            worker.process.flush()
            for answer in worker.process.take():
                self._answered(worker, answer)
            reason = self._why_replace(worker)
            if reason:
                self._workers[index] = self._replaced(worker, reason)
        self._feed()
        verdicts, self._ready = self._ready, []
        return verdicts

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.process.kill()
        self._epoll.close()

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def _started(self) -> Worker:
        process = WorkerProcess()
        self._epoll.register(process.answers_fd, select.EPOLLIN)
        process.send(self._begin)
        return Worker(process, self._clock())

    def _feed(self) -> None:
        """Hands waiting episodes to the least busy workers."""
        while self._line:
            free = [worker for worker in self._workers if worker.begun and len(worker.judging) < self._depth]
            if not free:
                return
            worker, request = min(free, key=lambda worker: len(worker.judging)), self._line.popleft()
            worker.judging[request.number] = (request, self._clock())
            worker.process.send(request)

    def _answered(self, worker: Worker, answer: Answer) -> None:
        if isinstance(answer, Begun):
            worker.begun = True
            return
        _, sent_at = worker.judging.pop(answer.number)
        self.busy_seconds += self._clock() - sent_at
        self._ready.append(answer)

    def _why_replace(self, worker: Worker) -> str:
        """Why this worker has to go; empty while all is well."""
        status = worker.process.ended()
        if status is not None:
            return f"the verifier ended its worker process with status {status}"
        now = self._clock()
        if not worker.begun:
            return f"it was not imported within {BEGIN_S:g} s" if now - worker.since > BEGIN_S else ""
        if any(now - sent_at > self._limit_s for _, sent_at in worker.judging.values()):
            return f"the verifier took more than {self._begin.timeout_s:g} s"
        return ""

    def _replaced(self, worker: Worker, reason: str) -> Worker:
        """Ends a worker and starts another. Episodes within their limit, beside one that is past it, go back to the line."""
        ended, now = worker.process.ended() is not None, self._clock()
        self._epoll.unregister(worker.process.answers_fd)
        worker.process.kill()
        if not worker.begun:
            raise ConfigError(f"stages.reward.verifier: {self._begin.verifier}: {reason}; its output is in this process's log")
        for request, sent_at in reversed(worker.judging.values()):
            if ended or now - sent_at > self._limit_s:
                self._ready.append(Refused(request.number, reason))
            else:
                self._line.appendleft(request)
        return self._started()
