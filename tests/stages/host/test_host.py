"""The host agent with real child processes; only the way to the broker is a double."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.edges import Role
from schemas.messages import ClientMessage, ProcessExited, StartProcess, StopProcess, Welcome
from stages.host.stage import Command, Host, stage_command

HOUSE = Path(__file__).resolve().parents[3]
PATIENCE_S = 20.0
"""A bound, never a measure: what is waited for takes milliseconds."""
FOREVER = "import signal, time; print('up', flush=True); signal.pause()"
STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: print('deaf', flush=True));"
    "print('up', flush=True)\nwhile True: signal.pause()"
)


@dataclass
class Link:
    """Keeps what the stage says."""

    run_directory: str
    said: list[ClientMessage] = field(default_factory=list)

    def commit(self, **_: Any) -> None:
        raise AssertionError("a host commits nothing")

    def send(self, message: ClientMessage) -> None:
        self.said.append(message)


@dataclass
class Rig:
    """A started host and its link."""

    host: Host
    link: Link
    closed: bool = False

    def close(self) -> None:
        if not self.closed:
            self.host.close()
        self.closed = True

    @property
    def exits(self) -> list[ProcessExited]:
        return [message for message in self.link.said if isinstance(message, ProcessExited)]

    @property
    def running(self) -> dict[str, int]:
        return self.host.hello().running

    def log(self, name: str) -> str:
        path = Path(self.link.run_directory, "logs", f"{name}.log")
        return path.read_text() if path.exists() else ""

    def until(self, claim: Callable[[], bool]) -> None:
        """Lets the host work, whenever its descriptor wakes, until `claim` holds."""
        fd = self.host.wake_fd()
        assert fd is not None
        deadline = time.monotonic() + PATIENCE_S
        while not claim():
            assert time.monotonic() < deadline, f"waited in vain; heard {self.link.said}"
            # The logs of children wake nobody, so they are looked at again every 50 ms.
            select.select([fd], [], [], 0.05)
            self.host.work()


def running(code: str) -> Command:
    """Every process runs `code`."""

    def command(name: str, role: Role) -> Sequence[str]:
        return (sys.executable, "-c", code)

    return command


@pytest.fixture
def rig_of(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(command: Command, **config: Any) -> Rig:
        host, link = Host(command), Link(str(tmp_path))
        settings = {"backoff_s": 0.01, "backoff_max_s": 0.02, "slots": "auto", **config}
        (tmp_path / "config.json").write_text(json.dumps({"host": settings}))
        host.start(Welcome(epoch=1, next_seq=1, config={"host": settings}, run_directory=str(tmp_path)), link)
        rigs.append(Rig(host, link))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def start(rig: Rig, name: str = "env-1", slots: tuple[str, ...] = ()) -> None:
    rig.host.order(StartProcess(name=name, role=Role.ENV, slots=slots), ())


def test_a_host_offers_one_slot_for_each_core(rig_of: Callable[..., Rig]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert rig_of(running(FOREVER)).host.hello().slots == tuple(f"cpu:{core}" for core in cores)


def test_a_started_process_runs_computes_with_one_thread_and_writes_its_log(rig_of: Callable[..., Rig]) -> None:
    code = f"import os; print(os.environ['OMP_NUM_THREADS'], os.environ['TIDEMILL_PARENT_PID'], flush=True)\n{FOREVER}"
    rig = rig_of(running(code))
    start(rig)
    assert list(rig.running) == ["env-1"]
    rig.until(lambda: rig.log("env-1").splitlines() == [f"1 {os.getpid()}", "up"])


def test_a_process_is_pinned_to_its_slot(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(FOREVER))
    core = max(os.sched_getaffinity(0))
    start(rig, "env-1", slots=(f"cpu:{core}",))
    start(rig, "env-2")
    assert os.sched_getaffinity(rig.running["env-1"]) == {core}
    assert os.sched_getaffinity(rig.running["env-2"]) == os.sched_getaffinity(0)


def test_a_process_on_a_gpu_sees_that_one_alone(rig_of: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    rig = rig_of(running(f"import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n{FOREVER}"))
    start(rig, "env-1", slots=("gpu:3",))
    start(rig, "env-2")
    rig.until(lambda: rig.log("env-1").startswith("3\n") and rig.log("env-2").startswith("None\n"))


def test_a_process_that_dies_is_reported_with_its_last_lines_and_started_again(rig_of: Callable[..., Rig], tmp_path: Path) -> None:
    once = "import os\nif not os.path.exists('died'): os.mkdir('died'); 1/0\n"
    rig = rig_of(running(f"import os; os.chdir({str(tmp_path)!r})\n{once}{FOREVER}"))
    start(rig)
    first = rig.running["env-1"]
    rig.until(lambda: rig.log("env-1").endswith("up\n"))
    (exit_,) = rig.exits
    assert (exit_.name, exit_.code, exit_.final) == ("env-1", 1, False)
    assert exit_.last_lines[-1] == "ZeroDivisionError: division by zero"
    assert rig.running["env-1"] != first
    assert rig.host.stats()["restarts"] == 1


def test_a_process_that_goes_on_dying_is_given_up_and_its_last_lines_told(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running("print('the disk is on fire'); raise SystemExit(3)"), restart_limit=2)
    start(rig)
    rig.until(lambda: len(rig.exits) == 3)
    assert [(exit_.code, exit_.final, exit_.restarts) for exit_ in rig.exits] == [
        (3, False, 0), (3, False, 1), (3, True, 2)
    ]  # fmt: skip
    assert rig.exits[-1].last_lines == ("the disk is on fire",)
    assert rig.running == {}


def test_a_process_that_cannot_be_started_is_told_of_too(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(lambda name, role: ("/nowhere/python",), restart_limit=0)
    start(rig)
    assert [(exit_.code, exit_.final) for exit_ in rig.exits] == [(127, True)]


def test_a_kill_shows_as_the_signal(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(FOREVER))
    start(rig)
    os.kill(rig.running["env-1"], 9)
    rig.until(lambda: bool(rig.exits))
    assert rig.exits[0].code == -9


def test_a_stopped_process_ends_and_stays_away(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(FOREVER))
    start(rig)
    rig.host.order(StopProcess(name="env-1", grace_s=PATIENCE_S), ())
    rig.until(lambda: bool(rig.exits))
    assert (rig.exits[0].code, rig.exits[0].final) == (-15, True)
    assert rig.running == {}


def test_a_process_that_will_not_end_is_killed_after_the_grace(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(STUBBORN))
    start(rig)
    rig.until(lambda: "up" in rig.log("env-1"))
    rig.host.order(StopProcess(name="env-1", grace_s=0.05), ())
    rig.until(lambda: bool(rig.exits))
    assert (rig.exits[0].code, rig.exits[0].final) == (-9, True)


def test_a_host_is_drained_when_all_it_started_is_gone(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(FOREVER))
    start(rig, "env-1")
    start(rig, "env-2")
    assert not rig.host.drained()
    rig.host.order(StopProcess(grace_s=PATIENCE_S), ())
    rig.until(rig.host.drained)
    assert {exit_.name for exit_ in rig.exits} == {"env-1", "env-2"}


def test_what_a_host_started_ends_with_it(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of(running(FOREVER))
    start(rig)
    pid = rig.running["env-1"]
    rig.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_stage_is_tied_to_its_host_before_its_own_imports(tmp_path: Path) -> None:
    (tmp_path / "slow_stage.py").write_text(f"import os; print(os.getpid(), flush=True)\n{FOREVER}")
    code = (
        "import signal, subprocess, sys\n"
        "from broker.lifeline import child_environment\n"
        "command = [sys.executable, '-m', 'stages.service.lifeline', 'slow_stage']\n"
        "subprocess.Popen(command, env=child_environment())\n"
        "signal.pause()"
    )
    environment = {**os.environ, "PYTHONPATH": f"{HOUSE}:{tmp_path}"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pidfd = os.pidfd_open(int(host.stdout.readline()))
        host.kill()
        host.wait()
        assert select.select([pidfd], [], [], PATIENCE_S)[0]
        os.close(pidfd)


def test_stages_are_run_as_modules_of_this_installation() -> None:
    command = stage_command("ipc:///tmp/x/broker", "host-1")("actor-train-0", Role.ACTOR_TRAIN)
    assert command[-7:] == ("stages.actor_train", "--broker", "ipc:///tmp/x/broker", "--name", "actor-train-0", "--host", "host-1")
