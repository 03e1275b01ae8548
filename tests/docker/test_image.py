"""What the image is, and is not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.docker.engine import Engine
from tests.docker.stack import IMAGE, Stack

pytestmark = pytest.mark.docker
BYTES_MAX = 1_500_000_000
LOOK = """
import importlib.metadata, json, os, torch
print(json.dumps({
    "user": os.getuid(), "torch": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
    "installed": importlib.metadata.version("tidemill"), "wheels": os.path.exists("/wheels"),
    "here": sorted(os.listdir("/tidemill")), "writable": os.access("/opt/venv", os.W_OK),
}))
"""


@pytest.fixture
def stack(engine: Engine, build: Mapping[str, str]) -> Stack:
    return Stack(engine, build)


def test_the_image_has_at_most_one_and_a_half_gigabytes(stack: Stack) -> None:
    size = stack.client.images.get(IMAGE).attrs["Size"]
    print(f"{size / 1e9:.2f} GB")
    assert size <= BYTES_MAX


def test_the_image_runs_as_nobody_in_particular_with_torch_for_the_cpu(stack: Stack) -> None:
    seen = json.loads(stack.client.containers.run(IMAGE, ["-c", LOOK], entrypoint="python", remove=True))
    assert seen["user"] == 1000
    assert not seen["writable"]
    assert (seen["torch"].split("+")[0], seen["cuda"], seen["threads"]) == ("2.13.0", None, 1)
    assert seen["installed"]
    assert not seen["wheels"]
    assert seen["here"] == ["compose", "runs"]
