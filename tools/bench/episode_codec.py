"""What a 32k-token episode costs to encode and decode: record, header and message, with and without the digest over its frames.

`encode` is the sender's part: record to frames, header, message. `decode` is the receiver's: message, header checked against the frames,
record with its arrays as views. With the digest, each of the two computes it once.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from schemas.codec import (
    Frame,
    check_header,
    decode_client_message,
    decode_record,
    encode_message,
    encode_record,
    frame_infos,
    frames_digest,
    make_header,
)  # fmt: skip
from schemas.header import Header
from schemas.lock import fingerprint_of
from schemas.messages import Commit
from schemas.records import Episode, TurnBounds, VersionSpan

TOKENS = 32_768
REPEATS = 200
ROUNDS = 15
NEW_WEIGHTS_AFTER = 6
FINGERPRINT = fingerprint_of("episode")


def an_episode(tokens: int) -> Episode:
    """An episode of ten turns, its arrays full. New weights came after the sixth; KV is kept, so it has a span for each version."""
    bounds = [int(edge) for edge in np.linspace(0, tokens, 11)]
    turns = tuple(TurnBounds(start, (start + end) // 2, end) for start, end in itertools.pairwise(bounds))
    spans = tuple(VersionSpan(turn.action, turn.end, 3 if number < NEW_WEIGHTS_AFTER else 4) for number, turn in enumerate(turns))
    kept = turns[NEW_WEIGHTS_AFTER - 1].end
    kv_spans = (VersionSpan(0, kept, 3), VersionSpan(kept, tokens, 4))
    return Episode(
        task={"question": "12 + 30", "answer": 42}, outcome={"text": "42"}, turns=turns, sample_spans=spans, kv_spans=kv_spans,
        tokens=np.arange(tokens, dtype=np.int32), loss_mask=np.ones(tokens, np.uint8), logprobs=np.zeros(tokens, np.float32),
        kept_ids=np.empty(0, np.int32), kept_counts=np.empty(0, np.int32),
    )  # fmt: skip


FIELDS: dict[str, Any] = {
    "ticket": 7, "group": 1, "member": 0, "attempt": 1, "purpose": "train", "new_tokens": TOKENS, "trainable_tokens": TOKENS // 2,
    "oldest_version": 3, "newest_version": 4,
}  # fmt: skip


def _encode(episode: Episode, *, digest: bool) -> tuple[bytes, list[Frame]]:
    frames = encode_record(episode)
    if digest:
        header = make_header(episode, frames, pipeline="bench", queue="episodes", **FIELDS)
    else:
        header = Header(record="episode", fingerprint=FINGERPRINT, pipeline="bench", queue="episodes",
                        frames=frame_infos(episode, frames), **FIELDS)  # fmt: skip
    return encode_message(Commit(epoch=1, seq=1, acks=(1,), puts=(header,))), frames


def _decode(message: bytes, frames: Sequence[Frame]) -> Episode:
    commit = decode_client_message(message)
    assert isinstance(commit, Commit)
    check_header(commit.puts[0], frames, len(message))
    return decode_record(Episode, frames)


def episode_costs(tokens: int = TOKENS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Microseconds, medians over rounds with their range."""
    episode = an_episode(tokens)
    plain, summed = _encode(episode, digest=False), _encode(episode, digest=True)
    frames = encode_record(episode)
    jobs: dict[str, Callable[[], object]] = {
        "encode_us": lambda: _encode(episode, digest=False),
        "decode_us": lambda: _decode(*plain),
        "encode_with_digest_us": lambda: _encode(episode, digest=True),
        "decode_with_digest_us": lambda: _decode(*summed),
        "record_encode_us": lambda: encode_record(episode),
        "record_decode_us": lambda: decode_record(Episode, frames),
        "digest_us": lambda: frames_digest(frames),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(_time(job))
    found: dict[str, Any] = {name: {"median": statistics.median(t), "min": min(t), "max": max(t)} for name, t in times.items()}
    # The least of many rounds, as `timeit` advises: what is above it is other processes' time.
    found["sum_us"] = min(times["encode_us"]) + min(times["decode_us"])
    found["sum_with_digest_us"] = min(times["encode_with_digest_us"]) + min(times["decode_with_digest_us"])
    found["record_alone_us"] = min(times["record_encode_us"]) + min(times["record_decode_us"])
    return {"tokens": tokens, "bytes": sum(len(frame) for frame in frames), **found}


def _time(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(REPEATS):
        job()
    return 1e6 * (time.perf_counter() - began) / REPEATS
