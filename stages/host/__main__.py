"""Runs a host agent: `python -m stages.host --broker ENDPOINT --name NAME`."""

from __future__ import annotations

import argparse
import os
import socket

from stages.host.stage import Host, stage_command
from stages.service.main import run


def main() -> None:
    """Never returns. The service loop reads the same arguments, and says what is wrong with them."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--broker", default="")
    parser.add_argument("--name", default=f"{Host.role}-{socket.gethostname()}-{os.getpid()}")
    arguments, _ = parser.parse_known_args()
    run(Host(stage_command(arguments.broker, arguments.name)))


if __name__ == "__main__":
    main()
