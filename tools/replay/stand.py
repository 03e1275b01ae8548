"""Where a stage is played in this process: its own code on a link to the recording.

Promises: the stage is called as the service loop calls it, from one thread; its answers come out as they would leave on the wire. With a
debugger every handler call is entered.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from schemas.codec import Frame, decode_client_message, encode_message, encode_record, make_header
from schemas.errors import WireError
from schemas.messages import BrokerMessage, ClientMessage, Commit, Deliver, Failure, Welcome
from stages.service.stage import Delivery, Put, Stage
from tools.replay.debugging import Debugger

Said = tuple[ClientMessage, tuple[Frame, ...]]


class Playable(Protocol):
    """A stage that is being played, wherever it runs."""

    user_code: dict[str, str]

    def give(self, order: BrokerMessage, frames: Sequence[Frame]) -> None: ...
    def take(self) -> list[Said]: ...
    def work(self) -> bool: ...
    def close(self) -> None: ...


class ReplayLink:
    """See stages.service.stage.Link."""

    def __init__(self, run_directory: str, pipeline: str) -> None:
        self._run_directory = run_directory
        self._pipeline = pipeline
        self.said: list[Said] = []

    @property
    def run_directory(self) -> str:
        return self._run_directory

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[Failure] = ()) -> None:
        headers, frames = [], []
        for put in puts:
            parts = encode_record(put.record)
            headers.append(make_header(put.record, parts, pipeline=self._pipeline, queue=put.queue, **put.fields))
            frames += [bytes(part) for part in parts]
        self.said.append((Commit(acks=tuple(acks), puts=tuple(headers), fails=tuple(fails)), tuple(frames)))

    def send(self, message: ClientMessage) -> None:
        self.said.append((decode_client_message(encode_message(message)), ()))


class Stand:
    """One stage, from its start to its end. `patience_s`: how long an answer that comes from another thread or process is waited for."""

    def __init__(self, stage: Stage, welcome: Welcome, *, debugger: Debugger | None = None, patience_s: float = 60.0) -> None:
        self._stage = stage
        self._debugger = debugger
        self._patience_s = patience_s
        self._link = ReplayLink(welcome.run_directory, welcome.config["pipeline"]["name"])
        stage.start(welcome, self._link)
        self.user_code = stage.hello().user_code
        self._wake = stage.wake_fd()

    def give(self, order: BrokerMessage, frames: Sequence[Frame]) -> None:
        """A recorded order."""
        if not isinstance(order, Deliver):
            self._call(self._stage.order, order, frames)
            return
        context = tuple(np.frombuffer(frame, np.int32) for frame in frames[: order.context])
        try:
            delivery = Delivery(lease=order.lease, header=order.header, frames=tuple(frames[order.context :]), delivery=order.delivery,
                                held_tokens=order.held_tokens, context=context)  # fmt: skip
            self._call(self._stage.deliver, delivery)
        except (WireError, ValueError) as error:
            self._link.commit(fails=[Failure(lease=order.lease, boundary="wire", reason=str(error)[:200])])

    def take(self) -> list[Said]:
        """What was said since the last call."""
        said, self._link.said = self._link.said, []
        return said

    def work(self) -> bool:
        """One piece of work; False where nothing can come any more of itself."""
        before = len(self._link.said)
        if self._stage.work() or len(self._link.said) > before:
            return True
        if self._wake is None or self._stage.drained():
            return False
        return self._wait(self._wake)

    def _wait(self, descriptor: int) -> bool:
        until = time.monotonic() + self._patience_s
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while time.monotonic() < until:
            ready = poll.poll(100)
            self._stage.work()
            if ready or self._link.said:
                return True
        return False

    def _call(self, handler: Callable[..., None], *arguments: Any) -> None:
        if self._debugger is None:
            handler(*arguments)
        else:
            self._debugger.runcall(handler, *arguments)

    def close(self) -> None:
        self._stage.close()
