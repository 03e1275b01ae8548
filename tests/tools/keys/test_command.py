"""`tidemill keys` as a user meets it, and which keys this machine's own processes use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.keys import KeyDirectory, read_pair
from schemas.edges import Role
from schemas.errors import ConfigError
from tests.tools.test_command import tidemill
from tools.keys.local import hand_down, local_keys
from tools.up.endpoint import check_free, reachable

LOOPBACK = "tcp://127.0.0.1:5555"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("TIDEMILL_KEY", "TIDEMILL_SERVER_KEY"):
        monkeypatch.setenv(variable, "")  # set and taken back, whatever a test does to it
    monkeypatch.setenv("TIDEMILL_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_a_key_is_made_listed_and_revoked_and_its_secret_never_printed(folder: Path) -> None:
    made = tidemill("keys", "new", "worker", "--role", "env", "--role", "reward")
    keys = KeyDirectory(folder)
    pair = read_pair(keys.client_file("worker"))
    listed = tidemill("keys", "list")
    assert (made.returncode, listed.returncode) == (0, 0)
    assert "server.pub" in made.stdout
    assert listed.stdout.split() == ["worker", pair.public, "env,", "reward"]
    again = tidemill("keys", "new", "worker")
    assert again.returncode == 2
    assert again.stderr.splitlines() == ["tidemill: keys: worker is there already; revoke it first: tidemill keys revoke worker"]
    revoked = tidemill("keys", "revoke", "worker", "--directory", str(folder))
    assert revoked.returncode == 0
    assert keys.allowed() == ([], [])
    assert not any(pair.secret in result.stdout + result.stderr for result in (made, listed, again, revoked))


def test_an_unknown_role_is_refused(folder: Path) -> None:
    assert tidemill("keys", "new", "worker", "--role", "king").returncode == 2
    assert not folder.exists()


def test_up_makes_a_key_for_its_own_processes_once_and_hands_down_files_not_secrets(folder: Path) -> None:
    keys = KeyDirectory(folder)
    keys.new("other", (Role.ENV,))
    with pytest.raises(ConfigError, match="local"):
        local_keys(LOOPBACK, "")
    first, second = hand_down(LOOPBACK, ""), hand_down(LOOPBACK, "")
    assert first == second == local_keys(LOOPBACK, "")
    assert first is not None
    assert os.environ["TIDEMILL_KEY"] == str(keys.client_file("local"))
    assert os.environ["TIDEMILL_SERVER_KEY"] == keys.server().public
    assert first.pair.secret not in os.environ.values()


def test_where_no_keys_are_asked_for_none_are_handed_down(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_KEY", "/left/behind.key")
    assert hand_down("ipc:///tmp/x", "") is None
    assert "TIDEMILL_KEY" not in os.environ


def test_a_broker_on_all_addresses_is_reached_on_this_machine() -> None:
    assert reachable("tcp://*:5555") == reachable("tcp://0.0.0.0:5555") == LOOPBACK
    assert reachable("tcp://10.0.0.7:5555") == "tcp://10.0.0.7:5555"
    assert reachable("ipc:///tmp/x") == "ipc:///tmp/x"
    check_free("tcp://*:0")


def test_where_no_keys_can_be_kept_a_line_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place, why in ((file, "a file is in the way"), (file / "below", "a file is in the way"), (Path("/proc/nope"), "No such file")):
        made = tidemill("keys", "new", "worker", "--directory", str(place))
        assert made.returncode == 2
        assert made.stderr.startswith(f"tidemill: {place}: no keys can be kept here ({why}")
        assert len(made.stderr.splitlines()) == 1
