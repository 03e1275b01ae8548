"""Which slots a machine offers, and which cores they are: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from schemas.errors import ConfigError

CPU = "cpu:"
GPU = "gpu:"
SLOTS_MAX = 4096
"""More than any machine has of either, and a bound for a mistyped range."""
RANGE = re.compile(r"(cpu|gpu):(\d{1,5})(?:-(\d{1,5}))?")


def offered_slots(wanted: Literal["auto"] | int, cores: Sequence[int]) -> tuple[str, ...]:
    """Names `cpu:<number>`, one a slot, of the cores that this process may use, in order; "auto": all of them.

    More slots than cores get the numbers after the last core, and share cores.
    """
    count = len(cores) if wanted == "auto" else wanted
    beyond = range(cores[-1] + 1, cores[-1] + 1 + max(0, count - len(cores)))
    return tuple(f"{CPU}{number}" for number in (*cores[:count], *beyond))


def slots_named(text: str, cores: Sequence[int], gpus: Sequence[int] = ()) -> tuple[str, ...]:
    """`cpu:0-1`, `gpu:0-7`, `cpu:0,cpu:3`, or "auto": each GPU, where there is none each core. Raises ConfigError."""
    if text == "auto":
        return tuple(f"{GPU}{number}" for number in gpus) or offered_slots("auto", cores)
    found: dict[str, None] = {}
    for part in text.split(","):
        found.update(dict.fromkeys(_slots_of(part.strip(), text)))
    return tuple(found)


def _slots_of(part: str, text: str) -> list[str]:
    match = RANGE.fullmatch(part)
    if match is None:
        raise ConfigError(f'--slots {text}: {part!r} is no slot; write "auto", cpu:0-1, gpu:0-7, or several with commas')
    kind, first, last = match[1], int(match[2]), int(match[3] or match[2])
    if not first <= last < first + SLOTS_MAX:
        raise ConfigError(f"--slots {text}: {part!r} is no range of at most {SLOTS_MAX} slots; write the lower number first")
    return [f"{kind}:{number}" for number in range(first, last + 1)]


def check_they_are_here(text: str, cores: Sequence[int], gpus: Sequence[int]) -> None:
    """Raises ConfigError where `text` is no list of slots, or names a core or GPU that this process may not use."""
    here = {*(f"{CPU}{number}" for number in cores), *(f"{GPU}{number}" for number in gpus)}
    missing = [slot for slot in slots_named(text, cores, gpus) if slot not in here]
    if missing:
        has = f"the cores {_ranges(cores)} and " + (f"the GPUs {_ranges(gpus)}" if gpus else "no GPU")
        raise ConfigError(f"--slots {text}: this machine has no {missing[0]}; what may be used here: {has}")


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, each)) for each in ranges)


def cores_of(slots: Iterable[str], cores: Sequence[int]) -> tuple[int, ...]:
    """The cores to pin to, in order; none for slots that are no cores."""
    numbers = [int(slot.removeprefix(CPU)) for slot in slots if slot.startswith(CPU)]
    return tuple(sorted({number if number in cores else cores[number % len(cores)] for number in numbers}))


def gpus_of(slots: Iterable[str]) -> tuple[int, ...]:
    """The GPUs that a process may see; none where its slots are none."""
    return tuple(sorted({int(slot.removeprefix(GPU)) for slot in slots if slot.startswith(GPU)}))
