"""Whether the vectors of a record are of one length, read from its header alone.

Pure. Promises: what passes has one mask bit, one log-prob and, where reference has been, one reference log-prob a token. A consumer would
only find out after it had taken the record, and again after each of its restarts. A header without frames is not judged here: the edge
refuses it (`schemas/codec.py`).
"""

from __future__ import annotations

from schemas.header import Header
from schemas.records import RECORDS

PER_TOKEN: dict[str, tuple[str, ...]] = {
    "actions": ("logprobs",),
    "episodes": ("loss_mask", "logprobs"),
    "scored": ("loss_mask", "logprobs"),
    "samples": ("loss_mask", "logprobs", "ref_logprobs"),
}
"""Arrays that hold one entry a token, by queue."""


def uneven(header: Header) -> str | None:
    """What is wrong with the lengths of a record's vectors; None where nothing is."""
    vectors = PER_TOKEN.get(header.queue)
    if vectors is None or not header.frames:
        return None
    shapes = (frame.shape for frame in header.frames[1:])
    lengths = {name: shape[0] if shape else 0 for name, shape in zip(RECORDS[header.record].arrays, shapes, strict=False)}
    tokens = lengths.get("tokens", 0)
    for name in vectors:
        if lengths.get(name, 0) != tokens:
            return f"a record of {header.queue!r} with {lengths.get(name, 0)} {name} for {tokens} tokens"
    return None
