"""Who shares a batch, and what a batch holds."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import WireError
from stages.model.packing import columns, packed_by_length, padded, segments_of
from tests.stages.training_builders import a_sample


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(1, 600))
def test_every_sequence_is_in_one_batch_and_no_batch_is_too_large(lengths: list[int], batch_tokens: int) -> None:
    batches = packed_by_length(lengths, batch_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded_tokens = len(batch) * max(lengths[index] for index in batch)
        assert padded_tokens <= batch_tokens or len(batch) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60))
def test_neighbours_are_of_like_length(lengths: list[int]) -> None:
    order = [lengths[index] for batch in packed_by_length(lengths, 400) for index in batch]
    assert order == sorted(lengths, reverse=True)


def test_column_t_minus_1_belongs_to_token_t() -> None:
    laid = columns([np.array([9, 1, 2]), np.array([9, 5])], 4)
    assert laid.tolist() == [[1, 2, 0], [5, 0, 0]]


def test_a_batch_is_padded_on_the_right() -> None:
    samples = [a_sample(1, length=15), a_sample(2, length=12)]
    segments = [segment for sample in samples for segment in segments_of(sample)]
    batch = padded(segments, [segment.sampled for segment in segments])
    assert batch.tokens_B_T.shape == (2, 15)
    assert batch.lengths_B.tolist() == [15, 12]
    assert batch.tokens_B_T[1, :12].tolist() == samples[1].tokens.tolist()
    assert not batch.tokens_B_T[1, 12:].any()
    assert batch.wanted.sum().item() == sum(int(sample.loss_mask.sum()) for sample in samples)
    assert batch.kept is None


def test_kept_ids_follow_their_tokens_into_segments() -> None:
    plain = a_sample(1, length=16, segments=((0, 9), (9, 16)))
    counts = np.arange(1, plain.loss_mask.sum() + 1, dtype=np.int32)
    ids = np.arange(counts.sum(), dtype=np.int32)
    first, second = segments_of(msgspec.structs.replace(plain, kept_ids=ids, kept_counts=counts))
    in_first = int(plain.loss_mask[:9].sum())
    assert first.kept_counts.tolist() == counts[:in_first].tolist()
    assert second.kept_counts.tolist() == counts[in_first:].tolist()
    assert np.concatenate((first.kept_ids, second.kept_ids)).tolist() == ids.tolist()
    batch = padded([second], [second.sampled])
    assert batch.kept is not None
    column = int(np.flatnonzero(second.sampled)[0]) - 1
    width = int(second.kept_counts[0])
    assert batch.kept[0, column, :width].tolist() == second.kept_ids[:width].tolist()


def test_a_sample_that_does_not_fit_together_is_refused() -> None:
    sample = a_sample(1, length=16)
    with pytest.raises(WireError, match="kept counts"):
        segments_of(msgspec.structs.replace(sample, kept_ids=np.arange(3, dtype=np.int32), kept_counts=np.ones(3, np.int32)))
    with pytest.raises(WireError, match="outside"):
        segments_of(msgspec.structs.replace(sample, segments=((0, 17),)))
    with pytest.raises(WireError, match="token 4"):
        segments_of(msgspec.structs.replace(sample, segments=((4, 16),)))
