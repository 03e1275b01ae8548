"""Which slots a machine offers, and which cores they are: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

CPU = "cpu:"


def offered_slots(wanted: Literal["auto"] | int, cores: Sequence[int]) -> tuple[str, ...]:
    """Names `cpu:<number>`, one a slot, of the cores that this process may use, in order; "auto": all of them.

    More slots than cores get the numbers after the last core, and share cores.
    """
    count = len(cores) if wanted == "auto" else wanted
    beyond = range(cores[-1] + 1, cores[-1] + 1 + max(0, count - len(cores)))
    return tuple(f"{CPU}{number}" for number in (*cores[:count], *beyond))


def cores_of(slots: Iterable[str], cores: Sequence[int]) -> tuple[int, ...]:
    """The cores to pin to, in order; none for slots that are no cores."""
    numbers = [int(slot.removeprefix(CPU)) for slot in slots if slot.startswith(CPU)]
    return tuple(sorted({number if number in cores else cores[number % len(cores)] for number in numbers}))
