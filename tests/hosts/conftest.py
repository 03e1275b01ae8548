"""Hosts for every test here, or the reason why there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.clocks import Clocks, compile_clocks, compiler
from tests.hosts.lan import Lan, a_lan, why_not

SEED = int(os.environ.get("TIDEMILL_HOSTS_SEED", "7"))
"""Of all chance on the lines; printed with every test, another one by the environment."""


@pytest.fixture(scope="session")
def _hosts_possible() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"no hosts in namespaces: {reason}")


@pytest.fixture
def lan(_hosts_possible: None, tmp_path: Path) -> Iterator[Lan]:
    """An empty network; what its hosts said is printed at the end, for a test that fails."""
    print(f"seed {SEED}")
    with a_lan(tmp_path, SEED) as made:
        yield made
        print(made.story())


@pytest.fixture(scope="session")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    if not compiler():
        pytest.skip("no C compiler to make clocks that disagree with")
    return compile_clocks(tmp_path_factory.mktemp("clocks"))
