"""A record whose vectors differ in length is refused at the door, before anybody trips over it."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from broker.core.lengths import uneven
from schemas import messages as wire
from schemas.header import FrameInfo
from schemas.records import RECORDS
from tests.broker.core.mill import ALL, Mill, a_header, whose

TOKENS = 5


def frames(record: str, **lengths: int) -> tuple[FrameInfo, ...]:
    """A body and the record's arrays: as many entries as tokens, but for those named and the kept ids."""
    usual = {"kept_ids": 0, "kept_counts": 0}
    arrays = RECORDS[record].arrays
    sizes = {name: lengths.get(name, usual.get(name, TOKENS)) for name in arrays}
    items = {name: int(dtype[-1]) for name, dtype in arrays.items()}
    infos = (FrameInfo(arrays[name], (size,), size * items[name]) for name, size in sizes.items())
    return (FrameInfo("msgpack", (9,), 9), *infos)


@pytest.mark.parametrize(
    ("queue", "record", "vector"),
    [
        ("actions", "action", "logprobs"),
        ("episodes", "episode", "loss_mask"),
        ("episodes", "episode", "logprobs"),
        ("scored", "sample", "loss_mask"),
        ("scored", "sample", "logprobs"),
        ("samples", "sample", "loss_mask"),
        ("samples", "sample", "logprobs"),
        ("samples", "sample", "ref_logprobs"),
    ],
)
def test_each_vector_of_a_record_has_one_entry_a_token(queue: str, record: str, vector: str) -> None:
    assert uneven(replace(a_header(queue), frames=frames(record))) is None
    for wrong in (0, TOKENS - 1, TOKENS + 1):
        found = uneven(replace(a_header(queue), frames=frames(record, **{vector: wrong})))
        assert found == f"a record of {queue!r} with {wrong} {vector} for {TOKENS} tokens"


def test_before_reference_a_sample_may_be_without_reference_log_probs() -> None:
    assert uneven(replace(a_header("scored"), frames=frames("sample", ref_logprobs=0))) is None


def test_a_sample_without_reference_log_probs_is_refused_and_the_good_one_still_taken(a_mill: Callable[..., Mill]) -> None:
    mill = a_mill(*ALL)
    mill.score(mill.play(mill.held("env-1", "tickets")[0]), 1.0)
    mill.score(mill.play(mill.held("env-1", "tickets")[0]), 0.0)
    held = mill.held("reference-1", "scored")[0]
    put = a_header("samples", **whose(held.header), reward=held.header.reward, trainable_tokens=3)
    mill.commit("reference-1", acks=[held.lease], puts=[replace(put, frames=frames("sample", ref_logprobs=0))])
    assert mill.last("reference-1", wire.Refuse).reason == "bad_commit"
    mill.commit("reference-1", acks=[held.lease], puts=[replace(put, frames=frames("sample"))])
    assert mill.last("reference-1", wire.Committed).seq == mill.seqs["reference-1"]
