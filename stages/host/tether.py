"""A host agent at the end of a line from the head: `python -m stages.host.tether`, started there by ssh or another command.

Reads one line of JSON, the agent's orders, from standard input, and then whatever is sent to show that the head is still there. Promises:
once that input ends, is silent for `SILENCE_S`, or this process is told to end, the agent and all that it started are gone; what the agent
says goes to standard output. Keys come in by this input, never by arguments, and are written for this user alone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from broker.keys import KEY_VARIABLE, SERVER_KEY_VARIABLE
from broker.lifeline import child_environment, die_with_parent
from stages.host.quarters import default_directory

PULSE_S = 5.0
"""How often the head says that it is there."""
SILENCE_S = 120.0
"""A head unheard of for so long is gone, or cannot be told from one that is: a partition of a minute is no reason to end."""
GRACE_S = 2.0
"""For the agent, which gives its stages 0.7 s."""
LINE_MAX = 65_536
"""Bytes of the orders at most."""
EXIT_BAD_INPUT = 2


class Orders(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the head wants run here."""

    broker: str
    name: str
    slots: str
    directory: str = ""
    roles: tuple[str, ...] = ()
    blobs: str = ""
    path: tuple[str, ...] = ()
    """Folders with user code."""
    key: str = ""
    """The text of the host's key file, a secret; empty where keys are not asked for."""
    server_key: str = ""

    def __repr__(self) -> str:  # one that finds its way into a log tells no secret
        return f"Orders(name={self.name!r}, broker={self.broker!r})"


def main() -> None:
    """Ends with the agent's exit code."""
    die_with_parent()
    ending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: ending.append(caught))
    line = _first_line()
    try:
        orders = msgspec.json.decode(line, type=Orders)
        command, environment = prepared(orders)
    except (msgspec.MsgspecError, OSError) as error:
        print(f"tidemill host: cannot do what the head asks: {error}", flush=True)
        sys.exit(EXIT_BAD_INPUT)
    agent = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stdout, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    _while_tied(agent, ending)
    sys.exit(_ended(agent))


def prepared(orders: Orders) -> tuple[list[str], dict[str, str]]:
    """The agent's command and environment; its keys are on disk. Raises OSError where the directory cannot be used."""
    base = Path(orders.directory).expanduser() if orders.directory else default_directory(orders.name)
    command = [sys.executable, "-P", "-m", "stages.host", "--broker", orders.broker, "--name", orders.name, "--slots", orders.slots]
    command += ["--directory", str(base.absolute())]
    command += ["--roles", ",".join(orders.roles)] if orders.roles else []
    command += ["--blobs", orders.blobs] if orders.blobs else []
    environment = dict(child_environment())
    if orders.path:
        folders = [str(Path(folder).expanduser()) for folder in orders.path]
        environment["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [environment.get("PYTHONPATH")])])
    for variable in (KEY_VARIABLE, SERVER_KEY_VARIABLE):
        environment.pop(variable, None)
    if orders.key:
        environment |= {KEY_VARIABLE: str(_written(base, orders.name, orders.key)), SERVER_KEY_VARIABLE: orders.server_key}
    return command, environment


def _written(base: Path, name: str, text: str) -> Path:
    """The key's file: whole, in a folder and with a mode for this user alone."""
    folder = base.absolute() / "keys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, file = folder / f".{name}.{os.getpid()}", folder / f"{name}.key"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(text)
    new.replace(file)
    return file


def _first_line() -> bytes:
    """Read byte by byte: what follows is read without a buffer."""
    line = bytearray()
    while len(line) < LINE_MAX and (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _while_tied(agent: subprocess.Popen[bytes], ending: list[int]) -> None:
    """Returns once the agent has ended, or is to end."""
    agents_end = os.pidfd_open(agent.pid)
    heard = time.monotonic()
    while not ending:
        readable, _, _ = select.select([0, agents_end], [], [], 1.0)
        if agents_end in readable:
            break
        if 0 in readable:
            heard = time.monotonic()
            if not os.read(0, 4096):
                break
        if time.monotonic() - heard > SILENCE_S:
            print(f"tidemill host: the head was silent for {SILENCE_S:g} s: this host ends", flush=True)
            break
    os.close(agents_end)


def _ended(agent: subprocess.Popen[bytes]) -> int:
    """Ends the agent where it still is; its code, as a shell shows it."""
    if agent.poll() is None:
        agent.terminate()
        try:
            agent.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            agent.kill()
    code = agent.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
