"""`tidemill up`'s supervisor with real processes: a small broker that only answers, and a host that only waits."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stages.host.restarts import RestartPolicy
from tools.up.directory import CONFIG
from tools.up.snapshot import Snapshot
from tools.up.supervisor import RUN_DIRECTORY, Commands, Supervisor, commands
from tools.up.watch import Finish, Outcome, Watch
from tools.up.ways import Way

HOUSE = Path(__file__).resolve().parents[3]
FAKE_BROKER = Path(__file__).with_name("fake_broker.py")
HOST = "from broker.lifeline import die_with_parent; import signal; die_with_parent(); print('host', flush=True); signal.pause()"
PATIENCE_S = 20.0
"""A bound, never a measure."""


@dataclass
class Watcher:
    """A view that remembers, and acts when it sees the run."""

    act: Callable[[dict[str, int]], None] = lambda own: None
    notes: list[str] = field(default_factory=list)
    pids: dict[str, set[int]] = field(default_factory=lambda: {"broker": set(), "host": set()})
    seen: list[Snapshot] = field(default_factory=list)

    def show(self, snapshot: Snapshot, own: dict[str, int]) -> None:
        for name, pid in own.items():
            self.pids[name].add(pid)
        self.seen.append(snapshot)
        self.act(own)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...


@dataclass
class Rig:
    """A run directory and a socket for one supervised run."""

    directory: Path
    endpoint: str

    def __post_init__(self) -> None:
        (self.directory / CONFIG).write_text("{}")

    def commands(self, ending: str, host: str = HOST) -> Commands:
        broker = [sys.executable, str(FAKE_BROKER), self.endpoint, str(self.directory), ending]
        return Commands(broker=broker, hosts={"host": Way([sys.executable, "-c", host])})

    def run(self, ending: str, watcher: Watcher, limit: int = 2, host: str = HOST) -> Finish:
        watch = Watch(RestartPolicy(limit=limit, first_s=0.01, most_s=0.02))
        return Supervisor(self.directory, self.endpoint, self.commands(ending, host), watch, watcher).run()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.chdir(HOUSE)
    monkeypatch.setenv("PYTHONPATH", str(HOUSE))
    with tempfile.TemporaryDirectory(prefix="tidemill-", dir="/tmp") as folder:  # a socket's path must be short
        yield Rig(tmp_path, f"ipc://{folder}/broker")


def gone(pid: int) -> bool:
    """Waits, within a bound, for any process to be gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE_S)[0])
    finally:
        os.close(pidfd)


def assert_nothing_is_left(watcher: Watcher) -> None:
    for pid in watcher.pids["broker"] | watcher.pids["host"]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def interrupt(own: dict[str, int]) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_ends_leaves_no_process(rig: Rig) -> None:
    watcher = Watcher()
    assert rig.run("done", watcher) == Finish(Outcome.ENDED)
    assert watcher.seen[0].step == 1
    assert_nothing_is_left(watcher)


def test_a_run_that_fails_is_not_tried_again(rig: Rig) -> None:
    watcher = Watcher()
    assert rig.run("fail", watcher) == Finish(Outcome.FAILED)
    assert len(watcher.pids["broker"]) == 1
    assert_nothing_is_left(watcher)


def test_ctrl_c_asks_the_broker_to_end_the_run(rig: Rig) -> None:
    watcher = Watcher(act=interrupt)
    assert rig.run("wait", watcher) == Finish(Outcome.STOPPED)
    assert_nothing_is_left(watcher)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_a_broker_that_does_not_listen(rig: Rig) -> None:
    watcher = Watcher(act=interrupt)  # at each status, so again at the next
    assert rig.run("deaf", watcher) == Finish(Outcome.CUT_OFF)
    assert_nothing_is_left(watcher)


def test_a_broker_that_is_killed_is_started_again_and_the_run_goes_on(rig: Rig) -> None:
    def kill_first(own: dict[str, int]) -> None:
        if len(watcher.pids["broker"]) == 1:
            os.kill(own["broker"], signal.SIGKILL)
        else:
            interrupt(own)

    watcher = Watcher(act=kill_first)
    assert rig.run("wait", watcher) == Finish(Outcome.STOPPED)
    assert len(watcher.pids["broker"]) == 2
    assert "broker ended by signal 9 (fake broker, wait); it is started again" in watcher.notes
    assert_nothing_is_left(watcher)


def test_what_a_broker_is_told_of_one_start_is_not_told_again(rig: Rig) -> None:
    what = commands(rig.directory, rig.endpoint, accept_loss=True)
    assert what.broker[-1] == "--no-accept-loss"
    assert what.broker_first == ("--accept-loss",)
    plain = rig.commands("crash")
    watch = Watch(RestartPolicy(limit=1, first_s=0.01, most_s=0.02))
    Supervisor(rig.directory, rig.endpoint, Commands(plain.broker, plain.hosts, ("once",)), watch, Watcher()).run()
    lines = (rig.directory / "logs" / "broker.log").read_text().splitlines()
    assert lines == ["fake broker, crash once", "fake broker, crash"]


def test_what_the_broker_finds_lost_is_said_once(rig: Rig) -> None:
    (rig.directory / "journal").mkdir()
    (rig.directory / "journal" / "quarantine.json").write_text('[{"first": 7, "last": 9}]')
    watcher = Watcher(act=lambda own: interrupt(own) if len(watcher.seen) == 3 else None)
    rig.run("wait", watcher)
    assert [note for note in watcher.notes if "entries 7 to 9 lost" in note] == [note for note in watcher.notes if "damaged" in note]
    assert len([note for note in watcher.notes if "damaged" in note]) == 1


def test_the_first_word_of_a_restart_says_why(rig: Rig) -> None:
    watcher = Watcher()
    rig.run("crash", watcher, limit=1, host="print('no room for me'); raise SystemExit(1)")
    assert "host ended with exit code 1 (no room for me); it is started again" in watcher.notes


def test_a_host_that_is_killed_is_started_again(rig: Rig) -> None:
    def kill_first(own: dict[str, int]) -> None:
        if len(watcher.pids["host"]) == 1:
            os.kill(own["host"], signal.SIGKILL)
        elif "host" in own:
            interrupt(own)

    watcher = Watcher(act=kill_first)
    assert rig.run("wait", watcher) == Finish(Outcome.STOPPED)
    assert len(watcher.pids["host"]) == 2
    assert_nothing_is_left(watcher)


def test_a_host_that_was_told_to_end_is_not_said_to_be_started_again_before_it_is(rig: Rig) -> None:
    def end_first(own: dict[str, int]) -> None:
        if "host" in own:
            os.kill(own["host"], signal.SIGTERM)
        else:
            interrupt(own)

    ends = HOST.replace("signal.pause()", "signal.signal(15, lambda *_: exit(0)); print('up', flush=True); signal.pause()")
    watcher = Watcher(act=end_first)
    watch = Watch(RestartPolicy(limit=2, first_s=60.0, most_s=60.0))
    finish = Supervisor(rig.directory, rig.endpoint, rig.commands("wait", ends), watch, watcher).run()
    assert finish == Finish(Outcome.STOPPED)
    assert not [note for note in watcher.notes if "with exit code 0" in note]


def test_a_run_whose_directory_is_deleted_ends_and_says_so(rig: Rig) -> None:
    watcher = Watcher(act=lambda own: shutil.rmtree(rig.directory, ignore_errors=True))
    finish = rig.run("wait", watcher)
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, RUN_DIRECTORY)
    assert "was deleted under the run" in finish.reason
    assert_nothing_is_left(watcher)


def test_a_broker_that_goes_on_crashing_ends_the_run_under_its_name(rig: Rig) -> None:
    watcher = Watcher()
    finish = rig.run("crash", watcher, limit=1)
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, "broker")
    assert_nothing_is_left(watcher)


def test_a_host_that_refuses_its_input_ends_the_run_with_its_last_words(rig: Rig) -> None:
    watcher = Watcher()
    watch = Watch(RestartPolicy())
    commands = rig.commands("wait", host="print('no such pipeline'); raise SystemExit(2)")
    supervisor = Supervisor(rig.directory, rig.endpoint, commands, watch, watcher)
    finish = supervisor.run()
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, "host")
    assert supervisor.last_lines("host") == ("no such pipeline",)


def test_a_line_that_cannot_be_started_ends_the_run_by_its_name(rig: Rig) -> None:
    watcher = Watcher()
    whole = rig.commands("wait")
    commands = Commands(whole.broker, {"far": Way(["/nope/cmd"], b"{}\n")})
    finish = Supervisor(rig.directory, rig.endpoint, commands, Watch(RestartPolicy(), ("far",), {"far"}), watcher).run()
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, "far")
    assert "cannot be started" in finish.reason
    assert "/nope/cmd" in finish.reason
    assert_nothing_is_left(watcher)


def test_a_log_folder_that_cannot_be_written_fails_the_run_with_the_place(rig: Rig) -> None:
    (rig.directory / "logs").write_text("in the way")
    supervisor = Supervisor(rig.directory, rig.endpoint, rig.commands("wait"), Watch(RestartPolicy()), Watcher())
    finish = supervisor.run()
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, "broker")
    assert finish.reason == f"cannot be started: File exists: {rig.directory}/logs"
    assert supervisor.last_lines("broker") == ()


def test_kill_9_of_tidemill_up_leaves_no_process(rig: Rig) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from stages.host.restarts import RestartPolicy\n"
        "from tests.tools.up.test_supervisor import Rig, Watcher\n"
        "tell = lambda own: print(*own.values(), flush=True) if len(own) == 2 else None\n"
        f"Rig(Path({str(rig.directory)!r}), {rig.endpoint!r}).run('deaf', Watcher(act=tell))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=HOUSE, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        pids = [int(pid) for pid in up.stdout.readline().split()]
        up.kill()
        up.wait()
        assert len(pids) == 2
        assert all(gone(pid) for pid in pids)
