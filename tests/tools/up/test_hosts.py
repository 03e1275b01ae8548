"""`hosts.toml`: what may stand in it, what is said of the rest, and what is made of it."""

import json
import os
import shlex
import stat
from pathlib import Path

import pytest

from broker.keys import KeyDirectory
from schemas.config import PipelineConfig, load_config
from schemas.errors import ConfigError
from stages.host.restarts import RestartPolicy
from tools.up.hosts import HostsFile, read_hosts
from tools.up.watch import Finish, Outcome, Start, Watch
from tools.up.ways import key_name, make_keys, ways, with_hosts

HOUSE = Path(__file__).resolve().parents[3]
TWO = 'broker = "tcp://10.0.0.1:7700"\n[[hosts]]\nname = "head"\naddress = "local"\n[[hosts]]\nname = "far"\naddress = "me@far.lan"\n'


@pytest.fixture(autouse=True)
def commands_that_lead_to_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started here: what is only looked for need not be installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ssh", "ip"):
        (folder / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def a_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    return file


def hosts_of(tmp_path: Path, text: str = TWO) -> HostsFile:
    return read_hosts(a_file(tmp_path, text))


def a_config(tmp_path: Path, *overrides: str) -> PipelineConfig:
    return load_config(HOUSE / "compose" / "pipelines" / "calculator.toml", [f"broker.keys={tmp_path}/keys", *overrides])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TWO + 'slot = "cpu:0"\n', "hosts[1].slot: unknown key; did you mean slots?"),
        (TWO + 'slots = "cpu"\n', "hosts[1].slots = \"cpu\": 'cpu' is no slot"),
        (TWO + 'roles = ["trainer"]\n', "hosts[1].roles[0]"),
        (TWO + 'python = "python; rm"\n', "hosts[1].python"),
        (TWO.replace("me@far.lan", "-oProxyCommand=x"), "hosts[1].address"),
        (TWO.replace("10.0.0.1", "*"), "no host can connect to every address"),
        (TWO.replace("tcp://10.0.0.1:7700", "ipc:///tmp/x"), "expected tcp://"),
        (TWO.replace('name = "far"', 'name = "head"'), "two hosts are named 'head'"),
        (TWO.replace("me@far.lan", "local"), "head and far are both this machine"),
        (TWO.replace('"local"\n', '"local"\ndirectory = "/x"\n'), "leave its directory out"),
        ('broker = "tcp://10.0.0.1:7700"\n', "hosts is missing"),
        (TWO + 'connect = ""\n', 'hosts[1].connect = "": expected a command'),
        (TWO + 'connect = " "\n', 'hosts[1].connect = " ": expected a command'),
        (TWO + "connect = \"''\"\n", "hosts[1].connect"),
        ('ssh = ""\n' + TWO, 'ssh = "": expected a command'),
        (TWO + 'connect = "/nope/cmd -x"\n', "hosts[1].connect: no such command '/nope/cmd'"),
        ('ssh = "/nope/ssh -F x"\n' + TWO, "ssh: no such command '/nope/ssh'"),
        ("hosts = []\n", "expected at least 1 in the list"),
        ('connect = "ssh"\n' + TWO, "connect: unknown key"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_of(tmp_path, text)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "hosts.toml"))


@pytest.mark.parametrize("wrong", ['name = "a b"', 'name = "a"\nroles = ["trainer"]'])
def test_a_wrong_host_is_not_said_to_be_missing_too(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_of(tmp_path, f'broker = "tcp://10.0.0.1:7700"\n[[hosts]]\n{wrong}\n')
    (line,) = str(caught.value).splitlines()
    assert "hosts[0]." in line


def test_ssh_is_not_looked_for_where_no_host_is_reached_by_it(tmp_path: Path) -> None:
    assert hosts_of(tmp_path, 'ssh = "/nope/ssh"\n' + TWO + 'connect = "env"\n').hosts[1].connect == "env"


def test_without_this_machine_among_them_it_is_added_as_the_head(tmp_path: Path) -> None:
    found = hosts_of(tmp_path, 'broker = "tcp://10.0.0.1:7700"\n[[hosts]]\nname = "far"\n')
    assert [(host.name, host.is_local) for host in found.hosts] == [("head", True), ("far", False)]


def test_a_run_on_hosts_asks_for_keys_and_waits_for_all_of_them(tmp_path: Path) -> None:
    config = with_hosts(a_config(tmp_path), hosts_of(tmp_path))
    assert (config.broker.endpoint, config.host.wait_for) == ("tcp://10.0.0.1:7700", 2)
    assert with_hosts(a_config(tmp_path, "host.wait_for=1"), hosts_of(tmp_path)).host.wait_for == 1
    with pytest.raises(ConfigError, match="by which address"):
        with_hosts(a_config(tmp_path), hosts_of(tmp_path, TWO.partition("\n")[2]))


ONE = 'broker = "tcp://10.0.0.1:7700"\n[[hosts]]\nname = "head"\naddress = "local"\nroles = ["env"]\n'
FAR = '[[hosts]]\nname = "far"\n'


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        (ONE, "no host may run rollout, reward, reference, actor-train, weight-sync: add"),
        (ONE + FAR, "no host may run actor-train, weight-sync: .* only on this machine"),
        (ONE.replace('"env"', '"env", "actor-train", "weight-sync"') + FAR + 'roles = ["rollout"]', "no host may run reward, reference: "),
    ],
)
def test_a_role_that_no_host_may_run_is_refused(tmp_path: Path, text: str, lacking: str) -> None:
    hosts = hosts_of(tmp_path, text)
    config = a_config(tmp_path, "algorithm.kl_coefficient=0.1")
    with pytest.raises(ConfigError, match=lacking):
        with_hosts(config, hosts)
    more_to_come = a_config(tmp_path, "host.wait_for=3")
    assert with_hosts(more_to_come, hosts).host.wait_for == 3


def test_a_role_of_which_the_run_starts_no_process_needs_no_host(tmp_path: Path) -> None:
    text = ONE.replace('"env"', '"env", "rollout", "reward", "actor-train", "weight-sync"')
    assert with_hosts(a_config(tmp_path, "algorithm.kl_coefficient=0"), hosts_of(tmp_path, text)).host.wait_for == 1
    with pytest.raises(ConfigError, match="no host may run reference: "):
        with_hosts(a_config(tmp_path, "algorithm.kl_coefficient=0.1"), hosts_of(tmp_path, text))


def test_each_host_has_a_key_for_its_roles_and_no_secret_is_on_a_command_line(tmp_path: Path) -> None:
    hosts = hosts_of(tmp_path, TWO + 'roles = ["env"]\npath = ["~/mine"]\n')
    config = with_hosts(a_config(tmp_path), hosts)
    make_keys(config, hosts)
    make_keys(config, hosts)  # again: those that are there stay
    keys = KeyDirectory(tmp_path / "keys")
    allowed = {entry.name: entry.roles for entry in keys.allowed()[0]}
    assert allowed["host-far"] == ("host", "env")
    file = keys.client_file("host-far")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = ways(config, hosts, "tcp://10.0.0.1:7700")
    assert not found["head"].is_remote
    orders = json.loads(found["far"].orders)
    assert (orders["key"], orders["path"]) == (file.read_text(), ["~/mine"])
    for text in (shlex.join(found["far"].command), repr(found["far"])):
        assert orders["key"] not in text
        assert file.read_text().split('"')[3] not in text
    assert list(found["far"].command[-6:]) == ["--", "me@far.lan", "python3", "-P", "-m", "stages.host.tether"]


def test_another_command_than_ssh_leads_to_a_host(tmp_path: Path) -> None:
    hosts = hosts_of(tmp_path, TWO.replace('address = "me@far.lan"', 'connect = "ip netns exec far"\npython = "/v/bin/python"'))
    config = with_hosts(a_config(tmp_path), hosts)
    make_keys(config, hosts)
    command = ways(config, hosts, "tcp://10.0.0.1:7700")["far"].command
    assert list(command) == ["ip", "netns", "exec", "far", "/v/bin/python", "-P", "-m", "stages.host.tether"]


def test_the_name_of_a_key_fits(tmp_path: Path) -> None:
    name = "a" * 64
    (_, host) = hosts_of(tmp_path, TWO.replace('"far"', f'"{name}"')).hosts
    assert len(key_name(host)) == 64


def a_watch() -> Watch:
    return Watch(RestartPolicy(limit=1, first_s=1.0, most_s=8.0), ("head", "far"), {"far"})


def test_a_line_that_is_cut_again_and_again_is_made_again_and_again() -> None:
    watch, now = a_watch(), 0.0
    for _ in range(20):
        assert watch.exited("far", 255, now) == []
        due = watch.next_wake()
        assert due is not None
        assert due - now <= 8.0
        now = due
        assert watch.wake(now) == [Start("far")]


@pytest.mark.parametrize("code", [2, 126, 127])
def test_what_cannot_be_started_at_the_far_end_ends_the_run_by_the_hosts_name(code: int) -> None:
    (finish,) = a_watch().exited("far", code, 0.0)
    assert isinstance(finish, Finish)
    assert (finish.outcome, finish.blamed) == (Outcome.FAILED, "far")


def test_this_machines_host_is_given_up_as_ever() -> None:
    watch = a_watch()
    assert watch.begin() == [Start("broker"), Start("head"), Start("far")]
    assert watch.exited("head", 255, 0.0) == []
    watch.wake(1.0)
    (finish,) = watch.exited("head", 255, 2.0)
    assert isinstance(finish, Finish)
    assert finish.blamed == "head"
