"""One blob on its way: what to ask next, and of whom. Pure; the fetcher carries out what this orders.

```
  begin ─► ask outline ─outlined─► ask chunks, `window` at a time ─► done
               │  ▲                    │ silence, a cut, `absent`, damaged chunks
               │  └── next source ◄────┘   what has arrived stays
               └─ every source failed `PASSES_MAX` times in a row without a new chunk ─► gave up, with each one's reason
```

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| answers, cuts, the time | `Open`, `AskOutline`, `Ask`, `Done`, `GaveUp` | an answer of the current source | its answer, or `patience_s` |

Promises: at most `window` questions are open; a chunk counts once it was checked; no source is asked while another one answers; a broken
source costs `patience_s` at most. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct

PASSES_MAX = 4
"""Rounds through all sources without a single new chunk."""
PAUSE_S = 1.0
"""Between two such rounds: a server that starts, or that has not yet heard of our key, is there a moment later."""
READING_MAX_S = 1800.0
"""A source may read a file through for its digest so long: at 100 MB a second, 180 GB."""
DAMAGED_MAX = 3
"""Damaged chunks from one source before it is left: one may be an accident of the line, that many are a broken disk."""


class Open(Struct, frozen=True):
    """Connect to this source (an index), leave the one before."""

    source: int


class AskOutline(Struct, frozen=True):
    """Ask the current source for the outline."""


class Ask(Struct, frozen=True):
    """Ask the current source for a chunk."""

    index: int


class Done(Struct, frozen=True):
    """Every chunk is there and was checked."""


class GaveUp(Struct, frozen=True):
    """No source could deliver; `reason` names each and what was wrong with it."""

    reason: str


Act = Open | AskOutline | Ask | Done | GaveUp


class Transfer:
    """See the module. `sources` are names for people."""

    def __init__(self, sources: tuple[str, ...], window: int, patience_s: float) -> None:
        self._names = sources
        self._window = window
        self._patience_s = patience_s
        self._at = -1
        self._outlined = False
        self._waiting: deque[int] = deque()
        self._open: set[int] = set()
        self._missing: set[int] = set()
        self._damaged = 0
        self._reasons: dict[int, str] = {}
        self._failures = 0
        self._opened_at = 0.0
        self._deadline: float | None = None
        self._resume_at: float | None = None
        self.over = False

    @property
    def source(self) -> int:
        """Of the one that is asked now; -1 between sources."""
        return self._at if self._resume_at is None else -1

    @property
    def asked(self) -> int:
        """Chunks asked for and not answered: the sender's credit."""
        return len(self._open)

    @property
    def missing(self) -> int:
        """Chunks still to come; 0 before the outline."""
        return len(self._missing)

    def begin(self, now: float) -> list[Act]:
        """The first orders."""
        if not self._names:
            return self._give_up("no host serves blobs in this run: start `tidemill host` on the machine that holds the files")
        return self._try(0, now)

    def outlined(self, missing: Iterable[int], now: float) -> list[Act]:
        """The outline came, and was checked; `missing`: the chunks that are not here yet."""
        if self.over or self._outlined or self.source < 0:
            return []
        self._outlined, self._missing = True, set(missing)
        self._waiting = deque(sorted(self._missing))
        return self._ask_more(now)

    def arrived(self, index: int, now: float, *, whole: bool) -> list[Act]:
        """A chunk came from the current source; `whole`: it is what the outline says."""
        if self.over or self.source < 0 or index not in self._open:
            return []
        self._open.discard(index)
        if not whole:
            return self._damage(index, now)
        self._missing.discard(index)
        self._failures = 0
        return self._ask_more(now)

    def reading(self, now: float) -> None:
        """The current source says that it is still reading the file through for its digest."""
        if not self.over and self.source >= 0 and not self._outlined and now < self._opened_at + READING_MAX_S:
            self._deadline = now + self._patience_s

    def failed(self, reason: str, now: float) -> list[Act]:
        """The current source is cut off, has not got it, or answers nonsense."""
        if self.over or self.source < 0:
            return []
        self._reasons[self._at] = reason
        self._failures += 1
        self._outlined, self._open, self._waiting, self._damaged = False, set(), deque(), 0
        if self._failures >= PASSES_MAX * len(self._names):
            return self._give_up("; ".join(f"{self._names[at]}: {why}" for at, why in sorted(self._reasons.items())))
        following = (self._at + 1) % len(self._names)
        if self._failures % len(self._names):
            return self._try(following, now)
        self._at, self._resume_at, self._deadline = following, now + PAUSE_S, None
        return []

    def wake(self, now: float) -> list[Act]:
        """What has become due: the end of patience, or of a pause."""
        if self._resume_at is not None and now >= self._resume_at:
            return self._try(self._at, now)
        if self._deadline is not None and now >= self._deadline:
            return self.failed(f"silent for {self._patience_s:.0f} s", now)
        return []

    def next_wake(self) -> float | None:
        """When `wake` has something to do; None once it is over."""
        return None if self.over else self._resume_at if self._resume_at is not None else self._deadline

    def _try(self, source: int, now: float) -> list[Act]:
        self._at, self._resume_at, self._deadline = source, None, now + self._patience_s
        self._opened_at = now
        return [Open(source), AskOutline()]

    def _ask_more(self, now: float) -> list[Act]:
        if not self._missing:
            self.over = True
            return [Done()]
        self._deadline = now + self._patience_s
        acts: list[Act] = []
        while self._waiting and len(self._open) < self._window:
            index = self._waiting.popleft()
            self._open.add(index)
            acts.append(Ask(index))
        return acts

    def _damage(self, index: int, now: float) -> list[Act]:
        self._damaged += 1
        if self._damaged >= DAMAGED_MAX:
            return self.failed(f"{self._damaged} chunks came damaged", now)
        self._waiting.appendleft(index)
        return self._ask_more(now)

    def _give_up(self, reason: str) -> list[Act]:
        self.over, self._deadline, self._resume_at = True, None, None
        return [GaveUp(reason)]
