"""The hosts of these tests are hosts: apart in files, processes, clocks and network, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.hosts.clocks import Clocks
from tests.hosts.lan import Lan
from tests.hosts.laws import QUEUE_S, Direction, Law
from tests.hosts.machine import HOUSE
from tests.skeleton.waiting import until

GREET = """
import socket, sys
with socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2])) as line:
    line.sendall(b"hello")
    line.shutdown(socket.SHUT_WR)
    sys.exit(0 if line.recv(10) == b"" else 1)
"""
LISTEN = """
import socket
server = socket.create_server(("", 7))
print("bound", flush=True)
while True:
    line, _ = server.accept()
    line.settimeout(1.0)
    try:
        print(line.recv(10), flush=True)
    except TimeoutError:
        pass
    line.close()
"""
TELL_TIME = """
import threading, time
began = time.monotonic()
threading.Event().wait(0.1)
print(time.time(), time.monotonic() - began)
"""
TELL_PID_AND_WAIT = """
import sys, time
from pathlib import Path
from tests.hosts.lan import a_lan
with a_lan(Path(sys.argv[1]), 1) as lan:
    host = lan.host("one")
    print(host.start("sleeper", "sleep", "1000").pid, lan.host("two").pid, lan._switch.pid, flush=True)
    time.sleep(1000)
"""


def greeted(lan: Lan, sender: str, listener: str, patience_s: float = 20.0) -> bool:
    answer = lan.hosts[sender].call(sys.executable, "-c", GREET, lan.hosts[listener].address, str(patience_s))
    return answer.returncode == 0


def a_listener(lan: Lan, name: str) -> None:
    listener = lan.host(name).start("listener", sys.executable, "-c", LISTEN)
    until(lambda: "bound" in listener.log.read_text(), "the listener binds", listener.story)


def test_a_line_delays_in_order_loses_its_share_and_repeats_itself_from_its_seed() -> None:
    law = Law(delay_s=0.02, jitter_s=0.005, loss=0.1)
    one, again = Direction(Random(3), law), Direction(Random(3), law)
    fates = [one.due(100, now / 1000) for now in range(2000)]
    assert fates == [again.due(100, now / 1000) for now in range(2000)]
    arrivals = [at for at in fates if at is not None]
    assert arrivals == sorted(arrivals)
    assert 0.07 < one.lost / 2000 < 0.13
    assert all(0.0149 < at - now / 1000 < 0.04 for now, at in enumerate(fates) if at is not None)


def test_a_line_of_limited_rate_spaces_frames_and_drops_what_its_queue_cannot_hold() -> None:
    line = Direction(Random(0), Law(bytes_per_s=1000.0))
    assert [line.due(100, 0.0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    fates = [line.due(100, 0.0) for _ in range(10)]
    assert fates[-1] is None
    assert max(at for at in fates if at is not None) <= QUEUE_S + 0.2


def test_hosts_share_no_file_no_process_no_name_and_no_clock(lan: Lan) -> None:
    one, two = lan.host("one"), lan.host("two", hidden=("compose",))
    one.call("sh", "-c", "echo mine > /tmp/file; echo mine > /dev/shm/file")
    assert two.call("ls", "/tmp/file", "/dev/shm/file").stdout == ""
    assert one.call("ls", "/tmp/file", "/dev/shm/file").stdout.split() == ["/dev/shm/file", "/tmp/file"]
    assert one.inside("/tmp/file").read_text() == "mine\n"
    assert one.call("touch", str(HOUSE / "file")).returncode != 0
    assert one.call("ls", str(HOUSE / "compose")).stdout != ""
    assert two.call("ls", str(HOUSE / "compose")).stdout == ""
    sleeper = one.start("sleeper", "sleep", "1000")
    assert [process.pid for process in one.living()] == [sleeper.pid]
    assert two.living() == []
    clock = "import socket, time; print(socket.gethostname(), int(time.monotonic()))"
    (first, ahead), (second, further) = (host.call(sys.executable, "-c", clock).stdout.split() for host in (one, two))
    assert (first, second) == ("one", "two")
    assert int(further) - int(ahead) > 5000


def test_a_cut_line_passes_nothing_in_the_directions_that_are_cut_and_heals(lan: Lan) -> None:
    a_listener(lan, "one")
    lan.host("two")
    lan.law("two", Law(delay_s=0.005, jitter_s=0.002, loss=0.01))
    assert greeted(lan, "two", "one")
    for way in ({}, {"outward": False}, {"inward": False}):
        lan.cut("two", **way)
        assert not greeted(lan, "two", "one", 0.5)
    lost = lan.counts("two")
    assert lost["inward_lost"] > 0
    assert lost["outward_lost"] > 0
    lan.heal("two")
    assert greeted(lan, "two", "one")


def test_a_host_that_dies_takes_all_its_processes_with_it_and_says_no_goodbye(lan: Lan) -> None:
    a_listener(lan, "one")
    two = lan.host("two")
    two.start("shell", "sh", "-c", "setsid sleep 1000 & sleep 1000")
    until(lambda: len(two.living()) == 3, "all three run", two.story)
    processes = two.living()
    heard = lan.counts("one")["inward_passed_bytes"]
    lan.kill("two")
    assert two.living() == []
    assert not any(process.is_running() for process in processes)
    assert lan.counts("one")["inward_passed_bytes"] == heard


def test_nothing_is_left_when_a_test_is_killed(lan: Lan, tmp_path: Path) -> None:
    """Neither processes nor devices nor namespaces, and the machine itself is never touched."""
    devices = set(os.listdir("/sys/class/net"))
    command = (sys.executable, "-c", TELL_PID_AND_WAIT, str(tmp_path / "other"))
    with subprocess.Popen(command, cwd=HOUSE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        pids = [int(pid) for pid in victim.stdout.readline().split()]
        assert len(pids) == 3
        assert set(os.listdir("/sys/class/net")) == devices
        victim.send_signal(signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all of the killed test's processes end", lambda: pids)


def test_a_clock_can_be_off_by_ten_minutes_for_one_process_alone(lan: Lan, clocks: Clocks) -> None:
    host = lan.host("one")
    clock = (sys.executable, "-c", TELL_TIME)
    shifts: tuple[dict[str, str], ...] = (clocks.off_by(600, host.world), {}, clocks.off_by(-600, host.world))
    (ahead, first), (right, second), (behind, third) = (map(float, host.call(*clock, environment=shift).stdout.split()) for shift in shifts)
    assert ahead - right > 500
    assert right - behind > 500
    assert max(first, second, third) < 60.0
