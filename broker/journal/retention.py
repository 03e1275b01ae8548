"""Which segments may go when the journal is over its quota: pure.

A segment may go once the older of the kept checkpoints lies behind it and none of them needs a record in it. Oldest
first, and only as many as needed; one that is held stays, and those behind it may go all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.journal.checkpoint import Checkpoint


def droppable(sizes: Mapping[int, int], total: int, quota: int, kept: Sequence[Checkpoint]) -> list[int]:
    """Segments to remove, oldest first.

    `sizes`: bytes by segment, without the one in hand; `total`: bytes of the whole journal.
    """
    if not kept:
        return []
    behind = min(checkpoint.position.segment for checkpoint in kept)
    held = frozenset().union(*(checkpoint.segments for checkpoint in kept))
    going = []
    for segment in sorted(sizes):
        if total <= quota or segment >= behind:
            break
        if segment not in held:
            going.append(segment)
            total -= sizes[segment]
    return going
