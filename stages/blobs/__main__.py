"""Serves this machine's weights to a run: `python -m stages.blobs --broker tcp://HEAD:7700 [--share DIRECTORY] [--listen tcp://ADDRESS:PORT]`."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from schemas.edges import Role
from stages.blobs.stage import BlobStage
from stages.service.main import argument_parser, run


def main() -> None:
    """Never returns."""
    parser = argument_parser(Role.OBSERVER)
    parser.prog, parser.description = "python -m stages.blobs", "Serves the weights of this machine to the others of a run."
    parser.set_defaults(name=f"blobs-{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--listen", default="", help="tcp://ADDRESS:PORT as others reach it; default: the address that leads to the broker")
    parser.add_argument("--share", action="append", type=Path, default=[], help="give out this directory too; several allowed")
    arguments = parser.parse_args()
    run(BlobStage(arguments.broker, arguments.listen, arguments.share), arguments)


if __name__ == "__main__":
    main()
