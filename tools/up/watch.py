"""What `tidemill up` does about the broker, the hosts and signals: pure.

| | |
|---|---|
| consumes | exits of the broker, of this machine's host and of the lines to others, signals to `tidemill up`, the time |
| produces | `Start`, `AskStop`, `Finish` |
| waits for | the broker's end after a stop; the time of a restart |
| unblocked by | `STOP_PATIENCE_S`, a second signal |

The broker's exit code says how the run ended: 0 well, 1 it failed and wrote why, 2 bad input. Anything else, and a 1
without a word, is a crash, mended by a restart: the journal makes that safe.

A line to another machine that is cut (ssh ends with 255) is made again for as long as the run lasts: the broker sees to it that the run
goes on, or says why it cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct, structs

from stages.host.core import EXIT_BAD_INPUT
from stages.host.restarts import RestartPolicy

BROKER = "broker"
HOST = "host"
EXIT_FAILED = 1
"""The broker's exit code for a run that failed; Python's too for an error that nobody caught."""
LINE_CUT = 255
"""How ssh ends where it cannot connect, or is cut off."""
WITHOUT_LIMIT = 1_000_000_000
STOP_PATIENCE_S = 4.2
"""After a Ctrl-C the broker and the stages usually end within 2 s; all processes are to be gone within 5 s."""


BAD_INPUT = {
    EXIT_BAD_INPUT: "cannot run what it was given",
    126: "cannot be started there: its python may not be executed",
    127: "cannot be started there: no such python; name one that has Tidemill by `python` in the hosts file",
}
"""Exit codes of a line to a host, as a shell gives them, after which another try would end the same."""


class Outcome(StrEnum):
    """How `tidemill up` ends."""

    ENDED = "ended"
    """The run reached its steps."""
    STOPPED = "stopped"
    """A signal ended it, and its ledger closed."""
    CUT_OFF = "cut off"
    """A signal ended it before its ledger closed: it can be resumed."""
    FAILED = "failed"


class Start(Struct, frozen=True):
    """Start this process, for the first time or again."""

    name: str


class AskStop(Struct, frozen=True):
    """Ask the broker to end the run."""


class Finish(Struct, frozen=True):
    """Nothing more to wait for: end all processes.

    `blamed` and `reason`: who failed and how, where the broker did not say.
    """

    outcome: Outcome
    blamed: str = ""
    reason: str = ""


Order = Start | AskStop | Finish


class Watch:
    """The state of one `tidemill up`."""

    def __init__(self, policy: RestartPolicy, hosts: Sequence[str] = (HOST,), remote: Collection[str] = ()) -> None:
        """`remote`: those of `hosts` that are lines to other machines."""
        self._policy, self._patient = policy, structs.replace(policy, limit=WITHOUT_LIMIT)
        self._hosts, self._remote = hosts, remote
        self._restarts: dict[str, list[float]] = {name: [] for name in (BROKER, *hosts)}
        self._due: dict[str, float] = {}
        self._stop_deadline: float | None = None
        self.ending = False
        """Set from the broker's status: the run is about to end, so the host may go."""

    @property
    def stopping(self) -> bool:
        """True after the first signal."""
        return self._stop_deadline is not None

    def begin(self) -> list[Order]:
        """All at once: a host waits for the broker's socket by itself."""
        return [Start(BROKER), *map(Start, self._hosts)]

    def exited(self, name: str, code: int, now: float, *, explained: bool = False) -> list[Order]:
        """A process ended; `explained`: the broker has written why the run failed."""
        return self._broker_exited(code, now, explained) if name == BROKER else self._host_exited(name, code, now)

    def signalled(self, now: float, broker_answers: bool) -> list[Order]:
        """SIGINT, SIGTERM or SIGHUP: the first asks for an end, the second does not wait for it."""
        if self.stopping or not broker_answers or BROKER in self._due:
            return [Finish(Outcome.CUT_OFF)]
        self._stop_deadline = now + STOP_PATIENCE_S
        return [AskStop()]

    def wake(self, now: float) -> list[Order]:
        """What has become due."""
        if self._stop_deadline is not None and now >= self._stop_deadline:
            return [Finish(Outcome.CUT_OFF)]
        due = [name for name, at in self._due.items() if at <= now]
        for name in due:
            del self._due[name]
            self._restarts[name].append(now)
        return [Start(name) for name in due]

    def next_wake(self) -> float | None:
        """When `wake` has something to do."""
        times = [*self._due.values(), *([] if self._stop_deadline is None else [self._stop_deadline])]
        return min(times, default=None)

    def _broker_exited(self, code: int, now: float, explained: bool) -> list[Order]:
        if code == 0:
            return [Finish(Outcome.STOPPED if self.stopping else Outcome.ENDED)]
        if code == EXIT_FAILED and explained:
            return [Finish(Outcome.FAILED)]
        if code == EXIT_BAD_INPUT:
            return [Finish(Outcome.FAILED, BROKER, "cannot run what it was given")]
        return [Finish(Outcome.CUT_OFF)] if self.stopping else self._restart(BROKER, code, now)

    def _host_exited(self, name: str, code: int, now: float) -> list[Order]:
        if self.stopping or (self.ending and code == 0):
            return []
        if code in BAD_INPUT if name in self._remote else code == EXIT_BAD_INPUT:
            return [Finish(Outcome.FAILED, name, BAD_INPUT.get(code, BAD_INPUT[EXIT_BAD_INPUT]))]
        return self._restart(name, code, now)

    def _restart(self, name: str, code: int, now: float) -> list[Order]:
        history = self._restarts[name]
        cut = name in self._remote and code == LINE_CUT
        delay = (self._patient if cut else self._policy).decide(history, now)
        if delay is None:
            return [Finish(Outcome.FAILED, name, f"ended {how(code)} after {len(history)} restarts and is given up")]
        self._due[name] = now + delay
        return []


def how(code: int) -> str:
    """An exit code in words."""
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
