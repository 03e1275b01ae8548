"""One specimen of every message that a client may send: what fuzzers start from."""

from __future__ import annotations

import numpy as np

from schemas.codec import encode_record, make_header
from schemas.edges import Role
from schemas.messages import (
    Bye,
    CheckpointSaved,
    ClientMessage,
    Commit,
    Credit,
    DeadAsked,
    DeadRetry,
    Drained,
    Failure,
    GrantAsked,
    GrantReleased,
    Heartbeat,
    InstallFailed,
    ProcessExited,
    Receipt,
    StatusAsked,
    StopAsked,
    Voted,
)
from schemas.records import Install, Record, Sampling, Ticket, Turn, Version
from tests.broker.edge_doubles import a_hello

A_TURN = Turn(context_digest=1, sampling=Sampling(), seed=2, tokens=np.array([5, 6], np.int32))
RECORD_SPECIMENS: tuple[Record, ...] = (
    A_TURN,
    Version(lineage=0, number=1, digest="0a", location="nowhere", tensors=()),
    Install(lineage=0, number=1, digest="0a", location="nowhere", tensors=()),
    Ticket(task_index=3, seed=4),
)
_HEADER = make_header(A_TURN, encode_record(A_TURN), pipeline="skeleton", queue="turns", ticket=1, group=1, member=0, attempt=1, turn=0)

CLIENT_MESSAGES: tuple[ClientMessage, ...] = (
    a_hello(Role.ENV, "stranger", windows={"tickets": 2}, holds=(1, 2), sessions=((1, 1),), running={"env-0": 7}, user_code={"a:b": "c"}),
    Heartbeat(stats={"a": 1.0}, waiting="on the broker"),
    Credit(epoch=1, seq=1, queue="episodes", window=3),
    Commit(epoch=1, seq=2, acks=(1,), puts=(_HEADER,), fails=(Failure(lease=2, boundary="env", reason="why"),)),
    Voted(epoch=1, seq=3, step=1, ok=True, metrics={"loss": 0.5}),
    CheckpointSaved(epoch=1, seq=4, step=1),
    Receipt(epoch=1, seq=5, lineage=0, number=1, digest="0a"),
    InstallFailed(epoch=1, seq=6, number=1, reason="why"),
    GrantAsked(epoch=1, seq=7, slots=("cpu:0",)),
    GrantReleased(epoch=1, seq=8, grant=1),
    Drained(epoch=1, seq=9),
    ProcessExited(epoch=1, seq=10, name="env-0", code=-9, last_lines=("killed",)),
    StatusAsked(),
    DeadAsked(id=1),
    DeadRetry(id=1),
    Bye(reason="done"),
    StopAsked(reason="enough"),
)
