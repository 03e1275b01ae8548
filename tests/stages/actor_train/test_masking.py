"""Which tokens are trained."""

import numpy as np
import pytest

from schemas.errors import InvariantError
from schemas.records import VersionSpan
from stages.actor_train.core.masking import NO_VERSION, only_version, trained_mask, versions_by_token

SAMPLED = np.array([0, 0, 1, 1, 0, 1, 1], bool)
SPANS = (VersionSpan(2, 4, 1), VersionSpan(5, 6, 2), VersionSpan(6, 7, 4))


def test_tokens_that_too_old_a_version_sampled_lose_their_mask() -> None:
    versions = versions_by_token(SPANS, 7)
    assert trained_mask(SAMPLED, versions, 2).tolist() == [False] * 5 + [True, True]
    assert trained_mask(SAMPLED, versions, 1).tolist() == SAMPLED.tolist()


def test_tokens_that_nobody_sampled_are_never_trained() -> None:
    versions = versions_by_token((VersionSpan(0, 7, 9),), 7)
    assert trained_mask(SAMPLED, versions, 0).tolist() == SAMPLED.tolist()


def test_positions_outside_all_spans_have_no_version() -> None:
    assert versions_by_token(SPANS, 7).tolist() == [NO_VERSION, NO_VERSION, 1, 1, NO_VERSION, 2, 4]


def test_a_sampled_token_without_a_version_is_a_broken_promise() -> None:
    with pytest.raises(InvariantError, match="token 6"):
        trained_mask(SAMPLED, versions_by_token(SPANS[:2], 7), 0)


def test_a_span_outside_the_sample_is_a_broken_promise() -> None:
    with pytest.raises(InvariantError, match=r"\[6, 9\)"):
        versions_by_token((VersionSpan(6, 9, 1),), 7)


def test_an_episode_is_of_one_version_only_if_its_cache_is_too() -> None:
    assert only_version((VersionSpan(2, 4, 3),), (VersionSpan(0, 3, 3),)) == 3
    assert only_version((VersionSpan(2, 4, 3),), (VersionSpan(0, 2, 2), VersionSpan(2, 3, 3))) is None
    assert only_version((), ()) is None
