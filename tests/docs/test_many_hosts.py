"""docs/many-hosts.md on real hosts: its commands, on the machines that its tags name, with the network and the files of each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Block, Command, blocks_of, commands, is_printed
from tests.docs.terminal import SHORT, Terminal, terminal
from tests.hosts.conftest import SEED
from tests.hosts.lan import Lan, a_lan, why_not
from tests.hosts.machine import HOME, Machine
from tests.skeleton.waiting import until
from tests.tools.up.ssh_daemon import Sshd, sshd
from tests.tools.up.ssh_daemon import why_not as why_no_ssh

PAGE = "docs/many-hosts.md"
KIND = "hosts"
HEAD_IN_THE_PAGE = "10.0.0.1"
PATIENCE_S = 400.0
SETTINGS = " ".join(f"--set {setting}" for setting in SHORT)


def blocks_by_hand() -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.kind == KIND and "--hosts" not in block.text]


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    if why_not():
        pytest.skip(f"no hosts in namespaces: {why_not()}")
    with a_lan(tmp_path, SEED) as made:
        yield made
        print(made.story())


class Hosts:
    """The machines of the page. What a tag says goes on is left running."""

    def __init__(self, lan: Lan) -> None:
        self.head = lan.host("head")
        self.machines = {"head": self.head, "gpu-1": lan.host("gpu-1", hidden=("compose",))}
        self.running: list[str] = []

    def do(self, block: Block) -> None:
        place = re.match(r"on ([\w-]+)(, goes on)?$", block.reason.partition(":")[0])
        assert place, f"{block.where}: the tag says on which machine, as in `docs: hosts: on head: why`"
        for command in commands(block):
            text = command.text.replace(HEAD_IN_THE_PAGE, self.head.address)
            if text.startswith("scp "):
                self._carry(text)
            elif place[2]:
                self._leave_running(place[1], text)
            else:
                self._run(command, self.machines[place[1]], text)

    def _carry(self, text: str) -> None:
        """What scp would do: files of the head, to another machine's home."""
        *files, target = text.split()[1:]
        machine, _, folder = target.partition(":")
        for file in files:
            there = self.machines[machine].inside(f"{HOME}/{folder or '.'}") / Path(file).name
            shutil.copy(self.head.inside(file.replace("~", HOME)), there)

    def _leave_running(self, machine: str, text: str) -> None:
        name = text.split()[1]
        words = text.replace("~", HOME).split()
        more = SETTINGS.split() if name == "serve" else []
        self.machines[machine].start(name, *words, *more)
        self.running.append(name)

    def _run(self, command: Command, machine: Machine, text: str) -> None:
        if self.running:  # a person looks once there is something to see
            serve = self.head.named("serve")
            until(lambda: any(self.head.world.rglob("metrics.jsonl")) or not serve.at_work, "the run trains", serve.story, PATIENCE_S)
        done = machine.call("bash", "-c", text, patience_s=PATIENCE_S)
        told = f"{command.block.where}: {text}\n{done.stdout}{done.stderr}"
        assert done.returncode == command.exit_code, told
        missing = is_printed(command.prints, done.stdout + done.stderr)
        assert not missing, f"the page says that it prints\n    {missing}\n{told}"


@pytest.mark.hosts
def test_agents_that_are_started_by_hand_train_together(lan: Lan) -> None:
    hosts = Hosts(lan)
    for block in blocks_by_hand():
        hosts.do(block)
    assert hosts.running == ["serve", "host", "host"]
    assert hosts.head.named("serve").wait(PATIENCE_S) == 0, lan.story()
    summary = next(hosts.head.world.rglob("summary.json")).read_text()
    assert '"closed": true' in summary
    assert {log.stem for log in hosts.machines["gpu-1"].world.rglob("logs/*.log")} >= {"rollout-0", "env-0"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Sshd]:
    if why_no_ssh():
        pytest.skip(why_no_ssh())
    (tmp_path / "ssh").mkdir()
    with sshd(tmp_path / "ssh") as running:
        yield running


@pytest.mark.hosts
def test_one_command_runs_it_over_ssh(daemon: Sshd, tmp_path: Path) -> None:
    (folder := tmp_path / "work").mkdir()
    (one,) = [block for block in blocks_of(PAGE) if block.kind == KIND and "--hosts" in block.text]
    (file,) = [block for block in blocks_of(PAGE) if block.file == "hosts.toml"]
    with terminal(folder, short=True) as at:
        at.do(_on_this_machine(file, daemon, at))
        at.do(one)


def _on_this_machine(file: Block, daemon: Sshd, at: Terminal) -> Block:
    """The page's hosts.toml with addresses that exist here: an sshd on loopback is the second machine."""
    text = file.text.replace("tcp://10.0.0.1:7700", f"tcp://127.0.0.1:{daemon.port + 1}").replace('"me@gpu-1.lan"', '"gpu-1"')
    text = text.replace('"~/tidemill/.venv/bin/python"', f'"{at.python}"\ndirectory = "{daemon.folder}/far"')
    head, _, rest = text.partition("\n")
    return Block(file.page, file.line, file.language, f'{head}\nssh = "{daemon.ssh}"\n{rest}')
