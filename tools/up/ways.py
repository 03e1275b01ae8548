"""What is executed for each host of a run, and what goes down the line to it: by ssh, by another command, or here.

The keys of the hosts are made here where there are none. A secret leaves this machine by the line's standard input alone.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from broker.keys import LOCAL, KeyDirectory, default_directory
from schemas.config import PipelineConfig
from schemas.config.describe import processes
from schemas.edges import STAGES, Role
from schemas.errors import ConfigError
from stages.host.tether import Orders
from tools.up.hosts import HostEntry, HostsFile

SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=6")
"""No questions; a machine that is not there is told of within seconds; a partition of a minute keeps the line."""


@dataclass(frozen=True)
class Way:
    """One host's process here. `orders`: its first line of input, secret; empty where it is this machine's own agent."""

    command: Sequence[str]
    orders: bytes = b""

    @property
    def is_remote(self) -> bool:
        """Whether the process here is only a line to the host."""
        return bool(self.orders)

    def __repr__(self) -> str:
        return f"Way({shlex.join(self.command)})"


def with_hosts(config: PipelineConfig, hosts: HostsFile) -> PipelineConfig:
    """The configuration of a run on these hosts: an address that they reach, keys, and as many hosts to wait for as there are.

    Raises ConfigError where they have no such address, or some role has no host.
    """
    endpoint = hosts.broker or config.broker.endpoint
    if not endpoint.startswith("tcp://"):
        raise ConfigError('hosts: by which address do they reach this machine? Write broker = "tcp://ADDRESS:PORT" into the hosts file')
    _refuse_a_role_without_host(config, hosts)
    broker = {"endpoint": endpoint, "keys": str(Path(config.broker.keys or default_directory()).expanduser().absolute())}
    waits = {} if "wait_for" in config.host.model_fields_set else {"wait_for": len(hosts.hosts)}
    return config.model_copy(update={"broker": config.broker.model_copy(update=broker), "host": config.host.model_copy(update=waits)})


def _refuse_a_role_without_host(config: PipelineConfig, hosts: HostsFile) -> None:
    """The run would wait for such a host for ever. More hosts to wait for than the file names: agents of people's own are to come, too."""
    if config.host.wait_for > len(hosts.hosts):
        return
    wanted = [role for role in STAGES if processes(config)[role]]
    lacking = [role for role in wanted if not any(_may_run(host, role, config.host.head_roles) for host in hosts.hosts)]
    if lacking:
        bound = [role for role in lacking if role in config.host.head_roles]
        here = f"; {', '.join(bound)} only on this machine (host.head_roles)" if bound else ""
        raise ConfigError(f"hosts: no host may run {', '.join(lacking)}: add to the roles of one in the hosts file{here}")


def _may_run(host: HostEntry, role: Role, head_roles: Sequence[str]) -> bool:
    return (not host.roles or role in host.roles) and (host.is_local or role not in head_roles)


def make_keys(config: PipelineConfig, hosts: HostsFile) -> None:
    """One for each host that lacks one, limited to its roles. Raises ConfigError where that cannot be."""
    keys = KeyDirectory(Path(config.broker.keys))
    wanted = {LOCAL: tuple(Role)} | {key_name(host): _key_roles(host) for host in hosts.hosts if not host.is_local}
    allowed = {entry.name for entry in keys.allowed()[0]}
    for name, roles in wanted.items():
        if name not in allowed:
            keys.new(name, roles)


def key_name(host: HostEntry) -> str:
    """Under which name its key is kept on this machine."""
    return f"host-{host.name}"[:64]


def _key_roles(host: HostEntry) -> tuple[Role, ...]:
    return (Role.HOST, *(Role(role) for role in host.roles)) if host.roles else tuple(Role)


def ways(config: PipelineConfig, hosts: HostsFile, endpoint: str) -> dict[str, Way]:
    """By the host's name. `endpoint`: where this machine's own processes find the broker. Raises ConfigError for a key that is gone."""
    return {host.name: _way_to(config, hosts, host) if not host.is_local else Way(_own(host, endpoint)) for host in hosts.hosts}


def _own(host: HostEntry, endpoint: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "stages.host", "--broker", endpoint, "--name", host.name, "--slots", host.slots]
    command += ["--directory", host.directory] if host.directory else []
    command += ["--blobs", host.blobs] if host.blobs else []
    return command + (["--roles", ",".join(host.roles)] if host.roles else [])


def _way_to(config: PipelineConfig, hosts: HostsFile, host: HostEntry) -> Way:
    keys = KeyDirectory(Path(config.broker.keys))
    file = keys.client_file(key_name(host))
    try:
        secret = file.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{file}: the key of host {host.name} cannot be read ({error.strerror}); make it anew: "
                          f"tidemill keys revoke {key_name(host)}") from None  # fmt: skip
    orders = Orders(broker=config.broker.endpoint, name=host.name, slots=host.slots, directory=host.directory, roles=host.roles,
                    path=host.path, blobs=host.blobs, key=secret, server_key=keys.server().public)  # fmt: skip
    begin = shlex.split(host.connect) if host.connect else [*shlex.split(hosts.ssh), *SSH_OPTIONS, "--", host.address or host.name]
    return Way((*begin, host.python, "-P", "-m", "stages.host.tether"), msgspec.json.encode(orders) + b"\n")
