"""`[broker]`: where it listens, whom it believes alive, how long work may be held, and how much room there is."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from schemas.config.section import LARGEST, AtLeastOne, NotNegative, Seconds, Section
from schemas.edges import EDGES
from schemas.errors import ConfigError

MIB = 2**20
GIB = 2**30
# sun_path of a Unix socket holds 108 bytes, its closing zero included.
IPC_PATH_BYTES_MAX = 107
# Long enough for a step on a loaded machine; a holder that is later than that is hung.
LEASE_S = 120.0
# A ticket is held for a whole session and an action while the tool works: the broker derives theirs.
TIMED_QUEUES = tuple(queue for queue in EDGES if queue not in ("tickets", "actions"))


def is_routable(endpoint: str) -> bool:
    """Whether others than this machine's own processes can reach it: tcp on anything but a loopback address. A name may mean anything."""
    if not endpoint.startswith("tcp://"):
        return False
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def check_endpoint(endpoint: str) -> str:
    """Lets through "", `ipc://<path>` and `tcp://<address>:<port>`; everything else is refused with its reason.

    A routable address needs keys besides: who knows where those are says so (`broker/keys.py`).
    """
    if not endpoint:
        return endpoint
    if endpoint.startswith("ipc://"):
        return _check_ipc(endpoint)
    if endpoint.startswith("tcp://"):
        return _check_tcp(endpoint)
    raise PydanticCustomError("endpoint", "expected ipc://<path> or tcp://<address>:<port>")


def check_broker_named(endpoint: str, said_by: str) -> str:
    """Lets through an address that a client can connect to, as a person gives it with the argument `said_by`. Raises ConfigError."""
    try:
        if endpoint and not endpoint.startswith("tcp://*"):
            return check_endpoint(endpoint)
        why = "every address is one to listen at, not one to connect to" if endpoint else "it is empty"
    except PydanticCustomError as error:
        why = error.message()
    except ValueError as error:
        why = str(error)
    also = "" if why.startswith("expected ipc://") else f" ({why})"
    raise ConfigError(f"{said_by} {endpoint!r}: expected tcp://<address>:<port> or ipc://<path>{also}")


def _check_ipc(endpoint: str) -> str:
    if endpoint.startswith("ipc://@"):
        raise PydanticCustomError("endpoint", "everybody on this machine may connect to an abstract socket; name a path")
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
    if not parts.hostname or set(parts.netloc) & set(";@") or endpoint != f"tcp://{parts.netloc}":
        raise PydanticCustomError("endpoint", "expected one address: tcp://<address>:<port>")
    return endpoint


def check_address(address: str) -> str:
    """Lets through an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise PydanticCustomError("address", "expected an IP address, such as 127.0.0.1 or 0.0.0.0") from None
    return address


def fill_leases(named: Any) -> Any:
    """The default deadlines with the named ones in their place."""
    return {**dict.fromkeys(TIMED_QUEUES, LEASE_S), **named} if isinstance(named, Mapping) else named


def check_queues(lease_s: dict[str, float]) -> dict[str, float]:
    """Refuses a queue that the loop does not have, with the nearest one it has."""
    for name in lease_s:
        if name not in EDGES:
            near = difflib.get_close_matches(name, EDGES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(EDGES)}"
            raise PydanticCustomError("queue", "unknown queue '{name}'; {hint}", {"name": name, "hint": hint})
    return lease_s


Leases = Annotated[dict[str, Seconds], BeforeValidator(fill_leases), AfterValidator(check_queues)]


class BrokerConfig(Section):
    """`[broker]`: the one process that owns queues, ledger, policies and journal."""

    endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    """`ipc://<path>` or `tcp://<address>:<port>`; empty: ipc in a private folder. An address that others can reach needs keys."""
    keys: str = ""
    """Directory of the keys that clients over tcp must have, made by `tidemill keys new`; empty: `$TIDEMILL_KEYS`, else for
    an address that others can reach `~/.config/tidemill/keys`, and none for a loopback address."""
    heartbeat_s: Seconds = 1.0
    """Seconds between two heartbeats of a process."""
    suspect_s: Seconds = 3.0
    """Seconds of silence after which a process gets no new work."""
    dead_s: Seconds = 10.0
    """Seconds of silence after which a process counts as dead and its work is given to others."""
    grace_s: Seconds = 5.0
    """Seconds after a restart in which processes may claim the leases they hold, before those are delivered anew."""
    lease_s: Leases = Field(default_factory=lambda: fill_leases({}))
    """Seconds that a record of each queue may be held, heartbeats or not; where tickets and actions are not named, they
    may be held for `stages.env.episode_deadline_s` and a minute."""
    max_deliveries: AtLeastOne = 5
    """Deliveries of one record after which it is a dead letter and its ticket has failed."""
    member_retries: NotNegative = 2
    """New attempts of a ticket after failures that a stage reported."""
    budget_bytes: AtLeastOne = 256 * MIB
    """Bytes of room for all records of tickets between their admission and their ending."""
    stall_notice_s: Seconds = 10.0
    """Seconds without progress after which the run says who waits for whom."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the page `/metrics` for Prometheus; 0: none."""
    metrics_address: Annotated[str, AfterValidator(check_address)] = "127.0.0.1"
    """Address that the page listens on. It has no password: a routable one shows the run's figures to the network."""
    segment_bytes: Annotated[int, Field(ge=64 * 1024, le=LARGEST)] = 256 * MIB
    """Bytes of a journal segment, after which the next is begun."""
    journal_quota_bytes: AtLeastOne = 20 * GIB
    """Bytes of the journal from which on the oldest segments are dropped that neither a restart nor a live record needs; where none
    is left, nothing new is begun until there is."""
    accept_loss: bool = False
    """Start on a journal in which entries are damaged that no checkpoint covers: acknowledged work will be missing. For this start
    alone; a run does not keep it."""
    commit_batch: AtLeastOne = 32
    """Events of one turn of the loop after which their write to disk begins, while the rest is taken in."""
    max_frame_bytes: AtLeastOne = 16 * MIB
    """Bytes of one frame on a socket at most; larger ones are refused."""
