"""Processes that end with the one that started them: real processes, real kills."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.lifeline import PARENT, child_environment, die_with_parent

HOUSE = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0
"""A bound, never a measure."""
CHILD = "from broker.lifeline import die_with_parent; die_with_parent(); {then}"
WAIT = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


def parent_of(child: str) -> str:
    """Code of a process that starts `child` and waits."""
    return (
        "import signal, subprocess, sys\n"
        "from broker.lifeline import child_environment, die_with_parent\n"
        "die_with_parent()\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env=child_environment())\n"
        "signal.pause()"
    )


def python(code: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, cwd=HOUSE, env=environment, stdout=subprocess.PIPE, text=True)


def ends(pid: int) -> bool:
    """Waits, within a bound, for any process to be gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE_S)[0])
    finally:
        os.close(pidfd)


def pid_from(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_kill_9_of_a_parent_ends_its_child() -> None:
    with python(parent_of(CHILD.format(then=WAIT))) as parent:
        child = pid_from(parent)
        kill(parent)
        assert ends(child)


def test_kill_9_of_a_grandparent_ends_the_whole_line() -> None:
    with python(parent_of(parent_of(CHILD.format(then=WAIT)))) as grandparent:
        grandchild = pid_from(grandparent)
        kill(grandparent)
        assert ends(grandchild)


def test_a_process_whose_parent_died_before_it_asked_exits_at_once() -> None:
    missing = {**os.environ, PARENT: "1"}  # this test is not started by process 1
    with python(CHILD.format(then="print('lives')"), missing) as orphan:
        assert orphan.stdout is not None
        assert orphan.stdout.read() == ""
        assert orphan.wait() == 137


def test_a_process_started_by_hand_is_bound_to_nobody() -> None:
    free = {key: value for key, value in os.environ.items() if key != PARENT}
    then = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
    with python(CHILD.format(then=then), free) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "0\n"


def test_asking_twice_is_asking_once() -> None:
    with python(parent_of(CHILD.format(then=f"die_with_parent(); {WAIT}"))) as parent:
        child = pid_from(parent)
        kill(parent)
        assert ends(child)


def test_processes_are_started_from_the_main_thread_only() -> None:
    caught: list[BaseException] = []
    thread = threading.Thread(target=lambda: caught.extend(_error_of(child_environment)))
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [RuntimeError]


def _error_of(call: Callable[[], object]) -> list[BaseException]:
    try:
        call()
    except RuntimeError as error:
        return [error]
    return []


def test_the_environment_handed_down_names_the_parent_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT, raising=False)
    environment = child_environment()
    assert environment[PARENT] == str(os.getpid())
    assert {environment[key] for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"1"}
    die_with_parent()  # by hand: nothing happens to this process
    assert os.environ[PARENT] == str(os.getpid())
    monkeypatch.delenv(PARENT)
