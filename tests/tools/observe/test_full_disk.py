"""A full disk is named where the broker has not met it yet: a trainer's checkpoint does not fit long before an entry of the journal."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.diagnosis import Finding, Severity
from tools.observe.doctor import full_disk

MIB = 1 << 20


def test_a_disk_without_room_is_the_first_finding_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3 * MIB, f_frsize=1))
    (found,) = full_disk(tmp_path, ())
    assert (found.rule, found.severity) == ("disk_full", Severity.STALL)
    assert f"3 MiB are left where {tmp_path}" in found.what
    assert full_disk(tmp_path, (Finding(rule="disk_full", severity=Severity.STALL, what="said by the broker"),)) == ()
    assert full_disk(None, ()) == ()


def test_a_disk_with_room_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3000 * MIB, f_frsize=1))
    assert full_disk(tmp_path, ()) == ()
