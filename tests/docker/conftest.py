"""One engine and one image for all tests of this folder; where there can be none, they are skipped and say why."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping

import pytest

from tests.docker.engine import CannotRunError, Engine, an_engine, wheels

BUILD_S = 1200.0
SDK = importlib.util.find_spec("docker") is not None
"""`make test-docker` installs it; every other run passes these tests over anyway."""
collect_ignore_glob = [] if SDK else ["test_*.py"]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    started = an_engine()
    try:
        running = started.__enter__()
    except CannotRunError as error:
        pytest.skip(str(error))
    try:
        yield running
    finally:
        started.__exit__(None, None, None)


@pytest.fixture(scope="session")
def build(engine: Engine) -> Mapping[str, str]:
    """Build arguments, once the image is built with them."""
    from tests.docker.stack import Stack

    image = wheels()
    arguments = {} if image == "scratch" else {"WHEELS_IMAGE": image, "TORCH_INDEX": ""}
    stack = Stack(engine, arguments)
    stack.compose("build", limit_s=BUILD_S)
    stack.client.close()
    return arguments
