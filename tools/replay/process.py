"""A stage played in a process of its own, by a broker that only knows the recording: the protocol of a live run, over ipc.

Owns the child, its socket and its log. Promises: the child is `python -m stages.X` (rollout: the same stage on a paced engine), sees one
hello answered and its numbers acknowledged, and ends with this process. It says that no answer comes once the child is gone, idle, or
silent for too long.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq
from msgspec.structs import replace

from broker.lifeline import child_environment
from schemas.codec import Frame, decode_client_message, encode_message
from schemas.edges import Role
from schemas.messages import BrokerMessage, ClientMessage, Committed, Drain, Drained, Heartbeat, Hello, Numbered, Welcome
from tools.replay.errors import ReplayError
from tools.replay.lookahead import Part
from tools.replay.stand import Said

START_S = 120.0
"""Until a stage is ready: torch is imported, a model read."""
SILENCE_S = 120.0
"""Without a heartbeat: the stage hangs."""
HEARTBEAT_S = 0.5
IDLE_HEARTBEATS = 4
"""So many in a row, and no answer: a stage whose own thread does the work has none to give."""
END_S = 10.0
RECORDED = "TIDEMILL_REPLAY_RECORDED"
"""Tells a paced rollout where the recorded turns stand: a `Part`, as JSON."""
LOG_LINES = 8


class ProcessStand:
    """See tools.replay.stand.Playable. Raises ReplayError where the stage ends or does not get ready."""

    def __init__(self, role: Role, welcome: Welcome, name: str, recorded: Part) -> None:
        self._welcome = replace(welcome, heartbeat_s=HEARTBEAT_S)
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-"))
        self._waits_for_user_code = role in (Role.ENV, Role.REWARD)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        endpoint = f"ipc://{self._folder}/replay"
        self._socket.bind(endpoint)
        module = "tools.replay.paced" if role is Role.ROLLOUT else f"stages.{role.replace('-', '_')}"
        command = [sys.executable, "-P", "-m", "stages.service.lifeline", module, "--broker", endpoint, "--name", name]
        with (self._folder / "log").open("wb") as log:
            environment = {**child_environment(), RECORDED: msgspec.json.encode(recorded).decode()}
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self._identity = b""
        self._ready = False
        self._is_drained = False
        self._quiet = 0
        self._said: list[Said] = []
        self.user_code: dict[str, str] = {}
        self._await_ready()

    def _await_ready(self) -> None:
        until = time.monotonic() + START_S
        while not self._ready:
            if not self._receive(0.2) and (self._child.poll() is not None or time.monotonic() > until):
                lines = self._last_lines()
                self.close()
                raise ReplayError(f"the stage did not get ready; its last lines:\n{lines}")

    @property
    def pid(self) -> int:
        """Of the stage."""
        return self._child.pid

    def give(self, order: BrokerMessage, frames: Sequence[Frame]) -> None:
        self._quiet = 0
        self._socket.send_multipart([self._identity, encode_message(order), *frames])

    def take(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    def work(self) -> bool:
        """Waits for an answer; False where none can be expected."""
        heard_at = time.monotonic()
        while not self._said:
            if self._receive(0.2):
                heard_at = time.monotonic()
                if not self._waits_for_user_code and self._quiet >= IDLE_HEARTBEATS:
                    return False
            elif self._child.poll() is not None:
                raise ReplayError(f"the stage ended with code {self._child.returncode}; its last lines:\n{self._last_lines()}")
            if time.monotonic() - heard_at > SILENCE_S or (self._waits_for_user_code and self._quiet * HEARTBEAT_S > SILENCE_S):
                return False
        return True

    def _receive(self, timeout_s: float) -> bool:
        if not self._socket.poll(int(timeout_s * 1000)):
            return False
        while self._socket.poll(0):
            identity, head, *frames = self._socket.recv_multipart()
            self._take_in(identity, decode_client_message(head), tuple(frames))
        return True

    def _take_in(self, identity: bytes, message: ClientMessage, frames: tuple[bytes, ...]) -> None:
        if isinstance(message, Hello):
            self._identity, self._ready = identity, message.ready
            self.user_code = message.user_code
            self._socket.send_multipart([identity, encode_message(self._welcome)])
        elif isinstance(message, Heartbeat):
            self._quiet += 1
        elif isinstance(message, Numbered):
            self._quiet = 0
            self._socket.send_multipart([identity, encode_message(Committed(seq=message.seq))])
            self._is_drained = self._is_drained or isinstance(message, Drained)
            self._said.append((message, frames))

    def close(self) -> None:
        """Sends the stage home; ends it where it does not go."""
        if self._child.poll() is None and self._ready:
            self._socket.send_multipart([self._identity, encode_message(Drain(reason="the recording is over"))])
            until = time.monotonic() + END_S
            while not self._is_drained and self._child.poll() is None and time.monotonic() < until:
                self._receive(0.1)
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _last_lines(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])
