"""A real sshd on loopback, of this user alone: own port, keys and folder; and the ssh command that reaches it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from tests.tools.up.two_ends import MARK

PATIENCE_S = 20.0
SSHD = next((found for name in ("sshd", "/usr/sbin/sshd") if (found := shutil.which(name))), "")
PRIVILEGE_FOLDER = Path("/run/sshd")
"""sshd that is started by root wants it."""


def why_not() -> str:
    """Why no sshd can be run here; empty where one can."""
    if not SSHD or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "no sshd or ssh here (Debian: openssh-server)"
    if os.geteuid() == 0:
        try:
            PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            return f"{PRIVILEGE_FOLDER} cannot be made"
    return ""


@dataclass
class Sshd:
    """One running daemon."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def ssh(self) -> str:
        """The command that knows its port, its key and ours."""
        return f"ssh -F {self.folder / 'ssh_config'}"

    def cut(self) -> None:
        """Ends every session at once, and goes on listening."""
        for pid in self.sessions():
            os.kill(pid, 9)

    def sessions(self) -> list[int]:
        """Processes that serve a connection each."""
        return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    """In `folder`, which is this test's own."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copyfile(folder / "user_key.pub", folder / "authorized_keys")
    port = _free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"SetEnv {MARK}={folder}\n"
        f"PidFile {folder}/sshd.pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  User {getuser()}\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
    )
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-f", str(folder / "sshd_config"), "-D", "-e"], stdout=log, stderr=log)
    daemon = Sshd(folder, port, process)
    try:
        _wait_for(daemon)
        yield daemon
    finally:
        daemon.cut()
        process.terminate()
        process.wait(PATIENCE_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(daemon: Sshd) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert daemon.process.poll() is None, (daemon.folder / "sshd.log").read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", daemon.port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("sshd does not listen")
