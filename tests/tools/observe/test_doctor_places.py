"""The doctor looks at processes of its own machine only: a number means nothing on another."""

import pytest

from broker.diagnosis.scene import Finding, Severity
from stages.service.place import this_place
from tools.observe.doctor import with_process
from tools.observe.silence import ProcessLook

FOUND = Finding(rule="silent", severity=Severity.STALL, what="env-0 is silent for 5 s", subject="env-0")


@pytest.mark.parametrize(("place", "told"), [(this_place(), True), ("", True), ("0123456789abcdef", False)])
def test_a_process_elsewhere_is_not_looked_for_here(place: str, told: bool) -> None:
    body = {"processes": [{"name": "env-0", "pid": 41, "state": "suspect", "place": place}]}
    said = with_process(FOUND, body, lambda pid, name: ProcessLook.STOPPED)
    assert ("is stopped" in said.what) is told
