from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.security.gate import Street


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street()
    yield made
    made.close()
