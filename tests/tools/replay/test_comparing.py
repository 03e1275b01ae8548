"""Two answers are compared field by field: exactly, but for what a tolerance names; times are no part of them."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import ConfigError
from schemas.header import Header
from tools.replay.comparing import Difference, compare
from tools.replay.selection import wanted_of


def vectors(*values: float) -> dict[str, np.ndarray]:
    return {"logprobs": np.array(values, np.float32)}


def test_the_first_token_that_differs_is_named() -> None:
    found = compare({"tokens": np.array([1, 2, 3])}, {"tokens": np.array([1, 5, 4])})
    assert found.differences == [Difference("tokens[1]", 2, 5)]


def test_a_vector_that_ends_early_differs_where_it_ends() -> None:
    assert compare({"tokens": np.array([1, 2])}, {"tokens": np.array([1])}).differences == [Difference("tokens[1]", 2, "(nothing)")]


def test_log_probs_may_be_rounded_otherwise_and_it_is_said_by_how_much() -> None:
    found = compare(vectors(-1.0, -2.0), vectors(-1.0, -2.00001))
    assert not found.differences
    assert found.rounded["logprobs"] == pytest.approx(1e-5, rel=0.1)
    assert compare(vectors(-1.0), vectors(-1.1)).differences


def test_a_field_on_one_side_only_is_a_difference() -> None:
    assert compare({"puts": [1]}, {"puts": []}).differences == [Difference("puts[0]", 1, "(nothing)")]


def test_an_id_says_what_it_is() -> None:
    header = Header(record="turn", fingerprint=0, pipeline="p", queue="turns", frames=(), ticket=7, attempt=2, group=3)
    assert wanted_of("7", None, None).takes(header, 0.0)
    assert wanted_of("7.2", None, None).takes(header, 0.0)
    assert not wanted_of("7.1", None, None).takes(header, 0.0)
    assert wanted_of("group:3", None, None).takes(header, 0.0)
    assert not wanted_of("7", 5.0, None).takes(header, 1.0)
    for wrong in ("seven", "group:", "shard:3", "group:3.1"):
        with pytest.raises(ConfigError, match="--only"):
            wanted_of(wrong, None, None)
