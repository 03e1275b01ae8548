"""Keys on disk: private, whole, and never told."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq

from broker.keys import KeyDirectory, client_keys, directory_for, read_pair, read_server_key
from schemas.edges import Role
from schemas.errors import ConfigError


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyDirectory:
    monkeypatch.delenv("TIDEMILL_KEY", raising=False)
    monkeypatch.delenv("TIDEMILL_SERVER_KEY", raising=False)
    monkeypatch.delenv("TIDEMILL_KEYS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = KeyDirectory(tmp_path / "keys")
    made.new("env-machine", (Role.ENV, Role.REWARD))
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_private_from_their_first_byte_on(keys: KeyDirectory) -> None:
    before = os.umask(0)
    try:
        keys.new("other", (Role.ENV,))
    finally:
        os.umask(before)
    assert {mode(keys.path / "server.key"), mode(keys.client_file("env-machine")), mode(keys.client_file("other"))} == {0o600}
    assert {mode(keys.path), mode(keys.path / "clients"), mode(keys.path / "allowed")} == {0o700}


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_could_read_is_refused_with_the_way_to_mend_it(keys: KeyDirectory, bits: int) -> None:
    for file, reading in ((keys.client_file("env-machine"), client_keys), (keys.path / "server.key", None)):
        file.chmod(bits)
        with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
            reading(str(file), "x" * 40) if reading else keys.server()


def test_a_folder_that_others_may_write_in_is_refused(keys: KeyDirectory) -> None:
    (keys.path / "allowed").chmod(0o777)
    with pytest.raises(ConfigError, match="let themselves in"):
        keys.check()


def test_a_key_has_its_roles_and_belongs_to_its_secret(keys: KeyDirectory) -> None:
    ((entry,), wrong) = keys.allowed()
    assert (entry.name, entry.roles, wrong) == ("env-machine", (Role.ENV, Role.REWARD), [])
    assert zmq.curve_public(read_pair(keys.client_file("env-machine")).secret.encode()).decode() == entry.public


def test_a_name_is_never_written_over(keys: KeyDirectory) -> None:
    before = keys.client_file("env-machine").read_bytes()
    with pytest.raises(ConfigError, match="revoke it first"):
        keys.new("env-machine", (Role.ENV,))
    (keys.path / "allowed" / "env-machine.pub").unlink()
    with pytest.raises(ConfigError, match="not written over"):
        keys.new("env-machine", (Role.ENV,))
    assert keys.client_file("env-machine").read_bytes() == before


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "-x", "x" * 65, "x\n"])
def test_a_name_cannot_leave_the_folder(keys: KeyDirectory, name: str) -> None:
    for act in (lambda: keys.new(name, (Role.ENV,)), lambda: keys.revoke(name)):
        with pytest.raises(ConfigError):
            act()
    assert sorted(file.name for file in keys.path.rglob("*.key")) == ["env-machine.key", "server.key"]


def test_a_revoked_key_is_off_the_list_its_secret_gone_and_its_name_free(keys: KeyDirectory) -> None:
    old = keys.allowed()[0][0].public
    keys.revoke("env-machine")
    assert keys.allowed() == ([], [])
    assert not keys.client_file("env-machine").exists()
    assert keys.new("env-machine", (Role.ENV,)).public != old


def test_a_damaged_entry_allows_nobody_and_the_others_still_come_in(keys: KeyDirectory) -> None:
    keys.new("good", (Role.ENV,))
    text = (keys.path / "allowed" / "good.pub").read_text()
    (keys.path / "allowed" / "env-machine.pub").write_text('public = "short"\nroles = ["env"]\n')
    (keys.path / "allowed" / "root.pub").write_text('roles = ["emperor"]\n')
    (keys.path / "allowed" / "twin.pub").write_text(text)
    entries, wrong = keys.allowed()
    assert [entry.name for entry in entries] == ["good"]
    assert len(wrong) == 3


def test_a_failed_write_leaves_nothing_behind(keys: KeyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.new("later", (Role.ENV,))
    monkeypatch.undo()
    assert [file for file in keys.path.rglob("*") if "later" in file.name] == []


def test_no_error_and_no_repr_tells_a_secret(keys: KeyDirectory) -> None:
    pair = read_pair(keys.client_file("env-machine"))
    assert pair.secret not in repr(pair)
    assert pair.secret not in repr(client_keys(str(keys.client_file("env-machine")), "x" * 40))
    keys.client_file("env-machine").write_text(f'public = "{pair.public}"\nsecret = "{pair.secret[::-1]}"\nmore = "{pair.secret}"\n')
    told = []
    for act in (lambda: read_pair(keys.client_file("env-machine")), lambda: client_keys(pair.secret, "x" * 40)):
        with pytest.raises(ConfigError) as caught:
            act()
        told.append(str(caught.value))
    assert not any(pair.secret in text or pair.secret[::-1] in text for text in told)


def test_one_key_without_the_other_says_which_is_missing(keys: KeyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_keys() is None
    with pytest.raises(ConfigError, match="--server-key"):
        client_keys(str(keys.client_file("env-machine")))
    with pytest.raises(ConfigError, match="--key"):
        client_keys("", str(keys.path / "server.pub"))
    monkeypatch.setenv("TIDEMILL_KEY", str(keys.client_file("env-machine")))
    monkeypatch.setenv("TIDEMILL_SERVER_KEY", str(keys.path / "server.pub"))
    found = client_keys()
    assert found is not None
    assert found.server == keys.server().public == read_server_key(found.server)


@pytest.mark.parametrize("address", ["10.0.0.7", "0.0.0.0", "*", "[::]", "example.org", "eth0", "127.0.0.1.example.org"])
def test_a_routable_address_without_keys_is_refused(address: str, tmp_path: Path, keys: KeyDirectory) -> None:
    with pytest.raises(ConfigError, match="tidemill keys new"):
        directory_for(f"tcp://{address}:5555", "")
    found = directory_for(f"tcp://{address}:5555", str(keys.path))
    assert found is not None
    assert found.path == keys.path


def test_loopback_and_ipc_ask_for_keys_only_where_they_are_named(keys: KeyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert directory_for("tcp://127.0.0.1:5555", "") is None
    assert directory_for("tcp://127.0.0.1:5555", str(keys.path)) is not None
    with pytest.raises(ConfigError, match="no keys in"):
        directory_for("tcp://127.0.0.1:5555", str(keys.path / "nowhere"))
    monkeypatch.setenv("TIDEMILL_KEYS", str(keys.path))
    assert directory_for("tcp://127.0.0.1:5555", "") is not None
    assert directory_for("ipc:///tmp/x", "") is None


def test_what_is_no_secret_key_file_is_named_for_what_it_is_and_its_mode_left_alone(keys: KeyDirectory) -> None:
    for file, kind in ((keys.path, "is a folder"), (keys.path / "server.pub", "a public key"), (Path("/dev/null"), "is no file")):
        with pytest.raises(ConfigError, match=kind) as said:
            client_keys(str(file), str(keys.path / "server.pub"))
        assert "name the file with the secret key" in str(said.value)
        assert "chmod" not in str(said.value)
