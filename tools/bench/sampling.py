"""Where a process spends its processor time: a signal every few milliseconds of it, and a note of what the main thread was doing.

Samples count by the innermost frame of our own packages (so that a library's C code counts for the line of ours that called it) and by part
of the broker. Time of the sockets' own threads comes from the kernel, by thread. Costs well under 1 % where a sample is taken every 5 ms.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

from tools.bench.processes import thread_times

EVERY_SECONDS = 0.005
OURS = ("broker.", "schemas.", "tools.bench.", "stages.")


class Samples(Struct, kw_only=True):
    """What the sampler saw. Seconds by thread are the kernel's."""

    frames: dict[str, int]
    """Samples by `module.function` of the innermost frame of ours."""
    parts: dict[str, int]
    """Samples by the part of the driver's turn that was at work: the frame below the driver's loop."""
    threads: dict[str, float]


class _Sampler:
    """Counts."""

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()

    def note(self, _: int, frame: FrameType | None) -> None:
        """The handler: walks outward from the interrupted frame."""
        innermost = part = ""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(OURS):
                name = f"{module}.{frame.f_code.co_name}"
                innermost = innermost or name
                if module != "broker.driver" and not module.startswith(("broker.__main__", "tools.bench")):
                    part = name
            frame = frame.f_back
        self.frames[innermost or "other"] += 1
        self.parts[part or innermost or "other"] += 1


def sample_until_asked(target: Path) -> None:
    """Samples this process from now on; SIGUSR2 writes `target` and ends it at once."""
    sampler = _Sampler()

    def finish(_: int, __: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        samples = Samples(frames=dict(sampler.frames), parts=dict(sampler.parts), threads=thread_times(os.getpid()))
        target.write_bytes(msgspec.json.encode(samples))
        os._exit(0)

    signal.signal(signal.SIGPROF, sampler.note)
    signal.signal(signal.SIGUSR2, finish)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, EVERY_SECONDS, EVERY_SECONDS)
