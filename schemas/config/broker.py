"""`[broker]`: where it listens, whom it believes alive, how long work may be held, and how much room there is."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from schemas.config.section import AtLeastOne, NotNegative, Seconds, Section

MIB = 2**20
# sun_path of a Unix socket holds 108 bytes, its closing zero included.
IPC_PATH_BYTES_MAX = 107
ROUTABLE = "a routable address needs keys, and CURVE keys come with `tidemill keys`, not built yet; bind to 127.0.0.1"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def check_endpoint(endpoint: str) -> str:
    """Lets through "", `ipc://<path>` and `tcp://<loopback>:<port>`; everything else is refused with its reason."""
    if not endpoint:
        return endpoint
    if endpoint.startswith("ipc://"):
        return _check_ipc(endpoint)
    if endpoint.startswith("tcp://"):
        return _check_tcp(endpoint)
    raise PydanticCustomError("endpoint", "expected ipc://<path> or tcp://127.0.0.1:<port>")


def _check_ipc(endpoint: str) -> str:
    size = len(endpoint.removeprefix("ipc://").encode())
    if not 0 < size <= IPC_PATH_BYTES_MAX:
        counts = {"most": IPC_PATH_BYTES_MAX, "size": size}
        raise PydanticCustomError("endpoint", "an ipc socket's path has 1 to {most} bytes, this one has {size}", counts)
    return endpoint


def _check_tcp(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not port:
        raise PydanticCustomError("endpoint", "expected a port from 1 to 65535: tcp://127.0.0.1:5555")
    if parts.hostname not in LOOPBACK:
        raise PydanticCustomError("endpoint", ROUTABLE)
    return endpoint


class LeasesConfig(Section):
    """`[broker.leases]`: hard deadlines, counted from delivery on the broker's clock; heartbeats do not move them."""

    tickets_beyond_episode_s: Seconds = 60.0
    """Seconds that a ticket's lease outlives `stages.env.episode_deadline_s`."""
    turns_s: Seconds = 120.0
    """Seconds that a rollout replica may hold a turn."""
    actions_s: Seconds = 120.0
    """Seconds that an env process may hold an action."""
    episodes_s: Seconds = 120.0
    """Seconds that a reward process may hold an episode."""
    scored_s: Seconds = 120.0
    """Seconds that a reference process may hold a sample."""
    samples_s: Seconds = 120.0
    """Seconds that the trainer may hold a step's samples before its vote."""
    versions_s: Seconds = 120.0
    """Seconds that weight-sync may hold a version."""
    installs_s: Seconds = 120.0
    """Seconds that a replica may take to answer an install with a receipt."""


class BrokerConfig(Section):
    """`[broker]`: the one process that owns queues, ledger, policies and journal."""

    endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    """`ipc://<path>` or `tcp://127.0.0.1:<port>`; empty: ipc in a private folder."""
    heartbeat_s: Seconds = 1.0
    """Seconds between two heartbeats of a process."""
    suspect_s: Seconds = 3.0
    """Seconds of silence after which a process gets no new work."""
    dead_s: Seconds = 10.0
    """Seconds of silence after which a process counts as dead and its work is given to others."""
    grace_s: Seconds = 5.0
    """Seconds after a restart in which processes may claim the leases they hold, before those are delivered anew."""
    leases: LeasesConfig = LeasesConfig()
    """Hard deadlines of leases, by queue."""
    max_deliveries: AtLeastOne = 5
    """Deliveries of one record after which it is a dead letter and its ticket has failed."""
    member_retries: NotNegative = 2
    """New attempts of a ticket after failures that a stage reported."""
    budget_bytes: AtLeastOne = 256 * MIB
    """Bytes of room for all records of tickets between their admission and their ending."""
    stall_notice_s: Seconds = 10.0
    """Seconds without progress after which the run says who waits for whom."""
    segment_bytes: Annotated[int, Field(ge=64 * 1024)] = 256 * MIB
    """Bytes of a journal segment, after which the next is begun."""
    commit_batch: AtLeastOne = 256
    """Events that one write to disk makes durable at most."""
    max_frame_bytes: AtLeastOne = 16 * MIB
    """Bytes of one frame on a socket at most; larger ones are refused."""
