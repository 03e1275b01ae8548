"""The records that queues carry, one class each; `schemas/edges.py` says which queue carries which.

Arrays are numpy vectors and travel as raw frames; their dtypes stand in `arrays`. Everything else of a record is its
body. Positions count tokens of the session from 0. `logprobs[t]` is the log-prob of token t given those before it, 0
where the policy did not sample it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

Array = np.ndarray
Json = Any
"""A JSON value: what a task, an outcome or reward parts may hold."""


def no_tokens() -> Array:
    """An empty int32 vector: the value of an absent token array."""
    return np.empty(0, np.int32)


def no_logprobs() -> Array:
    """An empty float32 vector: the value of an absent log-prob array."""
    return np.empty(0, np.float32)


class Record(Struct, frozen=True, kw_only=True):
    """Base of all records; `arrays` names the array fields, in frame order, with their dtypes."""

    arrays: ClassVar[dict[str, str]] = {}


class Sampling(Struct, frozen=True, kw_only=True):
    """How the policy's next tokens are drawn."""

    temperature: float = 1.0
    """0 picks the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    max_new_tokens: int = 64
    stop_tokens: tuple[int, ...] = ()
    """The turn ends with the first of these, which belongs to the action."""


class VersionSpan(Struct, frozen=True, array_like=True, gc=False):
    """Tokens [start, end) and the version that sampled them or computed their KV."""

    start: int
    end: int
    version: int


class Ticket(Record, frozen=True, kw_only=True, tag="ticket"):
    """Permission to play one member of one group. Example: `Ticket(task_index=7, seed=991)`."""

    task_index: int
    """Index into the environment's deterministic task source, for the header's purpose."""
    seed: int
    """Base of the session's sampling seeds; the same for every attempt."""


class Turn(Record, frozen=True, kw_only=True, tag="turn"):
    """A question to the policy: the tokens appended since the last turn, and how to sample the answer."""

    arrays: ClassVar[dict[str, str]] = {"tokens": "<i4"}
    context_digest: int
    """xxh3-64 of the session's int32 tokens before `tokens`; 0 tokens digest like the empty string."""
    sampling: Sampling
    seed: int
    tokens: Array


class Action(Record, frozen=True, kw_only=True, tag="action"):
    """The policy's answer. With top-p or top-k, `kept_ids` holds each token's kept ids end to end, `kept_counts` their number a token."""

    arrays: ClassVar[dict[str, str]] = {"tokens": "<i4", "logprobs": "<f4", "kept_ids": "<i4", "kept_counts": "<i4"}
    finish_reason: str
    """`stop` (a stop token was sampled) or `length`."""
    sample_spans: tuple[VersionSpan, ...]
    """Positions in the session; cover exactly `tokens`."""
    kv_spans: tuple[VersionSpan, ...]
    """Positions in the session; cover every position whose KV was attended."""
    near_ties: int = 0
    """Tokens whose draw fell within rounding of a neighbour's."""
    queue_seconds: float = 0.0
    """From arrival at the replica to its first token."""
    generate_seconds: float = 0.0
    tokens: Array
    logprobs: Array
    kept_ids: Array
    kept_counts: Array


class TurnBounds(Struct, frozen=True, array_like=True, gc=False):
    """One turn of an episode: the environment's tokens [start, action), the policy's tokens [action, end)."""

    start: int
    action: int
    end: int


class Episode(Record, frozen=True, kw_only=True, tag="episode"):
    """A finished session, as it was sampled. `loss_mask` is 1 on tokens that the policy sampled, else 0."""

    arrays: ClassVar[dict[str, str]] = {"tokens": "<i4", "loss_mask": "|u1", "logprobs": "<f4", "kept_ids": "<i4", "kept_counts": "<i4"}
    task: dict[str, Json]
    outcome: dict[str, Json]
    """What the environment reports at the end, for the reward."""
    turns: tuple[TurnBounds, ...]
    sample_spans: tuple[VersionSpan, ...]
    kv_spans: tuple[VersionSpan, ...]
    """KV spans that the last action attended."""
    truncated: bool = False
    near_ties: int = 0
    environment_seconds: float = 0.0
    policy_seconds: float = 0.0
    """From a turn's put to its action's arrival."""
    tokens: Array
    loss_mask: Array
    logprobs: Array
    kept_ids: Array
    kept_counts: Array


class Sample(Record, frozen=True, kw_only=True, tag="sample"):
    """An episode with its reward, and, after reference, `ref_logprobs` (empty before)."""

    arrays: ClassVar[dict[str, str]] = {
        "tokens": "<i4", "loss_mask": "|u1", "logprobs": "<f4", "ref_logprobs": "<f4", "kept_ids": "<i4", "kept_counts": "<i4",
    }  # fmt: skip
    reward: float
    reward_parts: dict[str, float]
    segments: tuple[tuple[int, int], ...]
    """Token ranges that are sequences of their own; [(0, length)] unless the context was cut."""
    sample_spans: tuple[VersionSpan, ...]
    kv_spans: tuple[VersionSpan, ...]
    truncated: bool = False
    near_ties: int = 0
    tool_calls: float | None = None
    """`outcome["tool_calls"]` where the environment reports it, None where not; shown, never trained on."""
    temperature: float = 1.0
    """Of the behaviour distribution; the trainer recomputes log-probs under it."""
    tokens: Array
    loss_mask: Array
    logprobs: Array
    ref_logprobs: Array
    kept_ids: Array
    kept_counts: Array


class TensorInfo(Struct, frozen=True, array_like=True, gc=False):
    """One tensor of a version: xxh3-64 hex over its raw bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


class BlobInfo(Struct, frozen=True, array_like=True, gc=False):
    """One file of a directory of weights; `digest` names its bytes (`stages/blobs/outline.py` says how it is made)."""

    name: str
    bytes: int
    digest: str


class BlobDelta(Struct, frozen=True, array_like=True, gc=False):
    """How one file is made from another: the blob `digest`, of `bytes` bytes, turns the file `base` into the file `result`."""

    base: str
    result: str
    digest: str
    bytes: int


class Version(Record, frozen=True, kw_only=True, tag="version"):
    """Weights that the trainer made: where they can be had, and what they must hash to."""

    lineage: int
    """Which of the trainer's histories; it rises where a resumed trainer makes a step anew with another result."""
    number: int
    """Optimizer steps taken since the starting model (version 0)."""
    digest: str
    """xxh3-64 hex over the sorted tensor digests."""
    location: str
    """Directory with `model.safetensors` and `config.json`."""
    tensors: tuple[TensorInfo, ...]


class Install(Record, frozen=True, kw_only=True, tag="install"):
    """An order to load a version, answered by a `Receipt` message."""

    lineage: int
    number: int
    digest: str
    location: str
    tensors: tuple[TensorInfo, ...]
    files: tuple[BlobInfo, ...] = ()
    """The files of `location`, for a replica that does not see that directory."""
    deltas: tuple[BlobDelta, ...] = ()
    """Newest first: how files of earlier versions become those of this one."""


RECORDS: dict[str, type[Record]] = {
    str(cls.__struct_config__.tag): cls for cls in (Ticket, Turn, Action, Episode, Sample, Version, Install)
}
"""Record types by tag."""
