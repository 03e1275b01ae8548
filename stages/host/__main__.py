"""Runs a host agent: `tidemill host --broker ENDPOINT [--slots cpu:0-1] [--name NAME]`."""

from __future__ import annotations

import argparse
import re
import socket
import sys
from pathlib import Path
from typing import get_args

from schemas.config.broker import check_broker_named
from schemas.config.run import StageRole
from schemas.edges import Role
from schemas.errors import ConfigError
from stages.host.core import EXIT_BAD_INPUT, NAME
from stages.host.machine import cores, gpus
from stages.host.options import HostOptions
from stages.host.slots import check_they_are_here
from stages.host.stage import Host, stage_command
from stages.service.main import argument_parser, run


def main() -> None:
    """Never returns."""
    arguments = _parser().parse_args()
    try:
        options = _options(arguments)
    except ConfigError as error:
        print(f"tidemill host: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    run(Host(stage_command(arguments.broker, arguments.name), options), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(Role.HOST)
    parser.prog, parser.description = "tidemill host", "The host agent of one machine: starts, pins and restarts stages there."
    parser.set_defaults(name=own_name())
    parser.add_argument("--slots", help='what this machine offers: cpu:0-1, gpu:0-7, "auto"; default: host.slots of the run')
    parser.add_argument("--directory", default="", help="working directory, for logs and weights; default: the run directory where it is "
                        "on this machine, else ~/.cache/tidemill/hosts/NAME")  # fmt: skip
    parser.add_argument("--roles", help="roles that may run here, with commas; default: every role")
    parser.add_argument("--blobs", default="", help="tcp://<address>:<port> at which other hosts fetch weights from this one, where not "
                        "every port is open; default: any port of the address that leads to the broker")  # fmt: skip
    return parser


def own_name() -> str:
    """The machine's, as far as it is a name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip("_.-")[:64] or "host"


def _options(arguments: argparse.Namespace) -> HostOptions:
    check_broker_named(arguments.broker, "--broker")
    roles = tuple(role.strip() for role in (arguments.roles or "").split(",") if role.strip())
    if arguments.roles is not None and not roles:
        raise ConfigError(f"--roles {arguments.roles!r}: names no role; there are {', '.join(get_args(StageRole))}")
    unknown = [role for role in roles if role not in get_args(StageRole)]
    if unknown:
        raise ConfigError(f"--roles {arguments.roles}: no such role as {unknown[0]!r}; there are {', '.join(get_args(StageRole))}")
    if not NAME.fullmatch(arguments.name):
        raise ConfigError(f"--name {arguments.name}: is no name; use letters, digits, '.', '_' and '-', at most 100")
    if arguments.blobs and not re.fullmatch(r"tcp://[^*]+:(\d{1,5})", arguments.blobs):
        raise ConfigError(f"--blobs {arguments.blobs}: expected tcp://<address>:<port>, as other hosts reach this one")
    if arguments.slots is not None:
        check_they_are_here(arguments.slots, cores(), gpus())
    directory = Path(arguments.directory) if arguments.directory else None
    return HostOptions(
        name=arguments.name, broker=arguments.broker, slots=arguments.slots or "", directory=directory,
        roles=tuple(Role(role) for role in roles), blobs=arguments.blobs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
