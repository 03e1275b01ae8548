"""What of a recording is wanted, from the words of the command line."""

import math

import pytest

from schemas.errors import ConfigError
from tools.replay.selection import wanted_of


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        (math.nan, None, "--from nan"),
        (-0.5, None, "--from -0.5"),
        (None, math.inf, "--to inf"),
        (None, math.nan, "--to nan"),
        (10.0, 5.0, "--from 10 --to 5"),
    ],
)
@pytest.mark.parametrize("only", ["", "7", "step:2"])
def test_times_that_are_no_stretch_of_a_run_are_refused(only: str, begin: float | None, end: float | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        wanted_of(only, begin, end)


def test_a_moment_is_a_stretch() -> None:
    assert wanted_of("", 5.0, 5.0).in_time(5.0)
    assert wanted_of("", 0.0, None).in_time(1e9)
