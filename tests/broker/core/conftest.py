"""Every mill that a test makes is folded anew from its journal when the test is over."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.core.mill import Mill


@pytest.fixture
def a_mill() -> Iterator[Callable[..., Mill]]:
    """Makes mills: `a_mill("env-1", schedule__members=4)` with these clients up."""
    made: list[Mill] = []

    def make(*names: str, **overrides: Any) -> Mill:
        mill = Mill(**overrides)
        made.append(mill)
        return mill.up(*names)

    yield make
    for mill in made:
        mill.check_fold()
