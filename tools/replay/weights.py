"""How far two versions lie apart: the first tensor that differs, by its largest difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.replay.life import Pair


def apart(pair: Pair, recorded: Path, now: Path) -> Iterator[str]:
    """Lines about the first tensor that differs; `recorded`, `now`: the folders in which both sides' versions lie."""
    assert pair.now is not None
    sides = ((recorded, pair.recorded), (now, pair.now))
    was, is_now = (place / answer.content["puts"][0]["record"]["location"] for place, answer in sides)
    digests = [{info[0]: info[3] for info in answer.content["puts"][0]["record"]["tensors"]} for answer in (pair.recorded, pair.now)]
    names = [name for name in digests[0] if digests[0][name] != digests[1].get(name)]
    if not names:
        return
    line = f"  version {was.name}: {len(names)} of {len(digests[0])} tensors differ, {names[0]} first"
    if not was.is_dir() or not is_now.is_dir():
        yield f"{line}; by how much cannot be said: {was} is gone"
        return
    from stages.model.checkpoint import read_state

    one, other = read_state(str(was))[names[0]], read_state(str(is_now))[names[0]]
    distance = (one.double() - other.double()).abs()
    yield f"{line}: by at most {distance.max().item():.3g}, in {int((distance > 0).sum())} of {distance.numel()} values"
