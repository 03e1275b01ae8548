"""Where the broker listens: real sockets."""

import os
import socket
import stat
from pathlib import Path

import pytest

from broker.transport import Transport
from schemas.errors import ConfigError
from tools.up.endpoint import broker_endpoint, check_free


def test_without_an_endpoint_a_private_folder_is_made_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with broker_endpoint("") as endpoint:
        folder = Path(endpoint.removeprefix("ipc://")).parent
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_runtime_folder_with_a_long_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with broker_endpoint("") as endpoint:
        assert endpoint.startswith("ipc:///tmp/tidemill-")


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot be listened at"):
            check_free(endpoint)
    check_free(endpoint)


def test_a_socket_that_another_process_listens_at_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        with pytest.raises(ConfigError, match="another process listens there"):
            check_free(f"ipc://{path}")
    assert os.path.exists(path)
    check_free(f"ipc://{path}")  # what a dead process left behind


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="no socket"):
        check_free(f"ipc://{path}")
    with pytest.raises(ConfigError, match="no socket"):
        Transport(f"ipc://{path}", 1 << 20)
    assert path.read_text() == "mine"


def test_a_socket_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_free(f"ipc://{tmp_path}/nowhere/s")
