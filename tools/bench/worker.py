"""One client process of a run: connects, says `ready`, waits for `go`, does its side, prints what it found.

`python -m tools.bench.worker JOB` with the job as JSON; lines on stdout and stdin. It ends with whoever started it.
"""

from __future__ import annotations

import importlib
import sys
import time

import msgspec
from msgspec.structs import replace

from tools.bench.load import Job


def main() -> None:
    """Loads the client library of one system only."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    module = importlib.import_module(f"tools.bench.clients.{job.system}")
    client = module.Producer(job) if job.side == "produce" else module.Consumer(job)
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    side = client.run()
    print(msgspec.json.encode(replace(side, cpu_seconds=time.process_time() - before)).decode(), flush=True)
    sys.stdin.readline()  # the other side may still need this connection's server; stay until told


if __name__ == "__main__":
    main()
