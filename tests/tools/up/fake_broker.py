"""A broker for tests of the supervisor: answers statuses, obeys a stop, and otherwise does what it is told to.

`python fake_broker.py ENDPOINT RUN_DIRECTORY ENDING`: `wait` runs until a stop is asked for, `deaf` beyond that too;
`done` ends well after the first status, `fail` writes failure.json then, `crash` kills itself then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import zmq

from broker.lifeline import die_with_parent
from schemas.codec import decode_client_message, encode_message
from schemas.messages import Status, StatusAsked, StopAsked


def main(endpoint: str, directory: Path, ending: str) -> int:
    die_with_parent()
    print("fake broker,", *sys.argv[3:], flush=True)
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.linger = 1000
    socket.bind(endpoint)
    while True:
        sender, frame = socket.recv_multipart()
        message = decode_client_message(frame)
        if isinstance(message, StopAsked) and ending == "wait":
            return write(directory / "summary.json", {"ended": "stopped", "steps": 1}, code=0)
        if isinstance(message, StatusAsked):
            socket.send_multipart([sender, encode_message(Status(body={"phase": "training", "step": 1, "steps": 2}))])
            if ending == "done":
                return write(directory / "summary.json", {"ended": "done", "steps": 2}, code=0)
            if ending == "fail":
                return write(directory / "failure.json", {"stage": "env-0", "reason": "died", "last_lines": []}, code=1)
            if ending == "crash":
                os.kill(os.getpid(), signal.SIGKILL)


def write(file: Path, content: dict[str, object], code: int) -> int:
    file.write_text(json.dumps(content))
    zmq.Context.instance().destroy(linger=1000)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
