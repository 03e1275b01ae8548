"""The broker's whole state: what a fold of the journal gives, byte for byte. Plain Structs, no behaviour, no bytes of
records.

Record bodies live outside, in the driver's arena, under the message ids used here. All times are seconds of the
broker's own clock.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum

from msgspec import Struct, field

from broker.core.settings import Settings
from broker.core.traces import Attempt, DeadLetter, Waiting
from schemas.edges import EDGES
from schemas.header import Header
from schemas.messages import GroupRewards
from schemas.records import Json


class Phase(StrEnum):
    """Life of a run; `broker/core/lifecycle.py` holds the arrows."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    CLOSING = "closing"
    CLOSED = "closed"


# A name of a module costs a tenth of `Phase.STARTING` (Python 3.11 looks that up in Python), and rules ask a dozen times an event.
STARTING, RUNNING, FINISHING, CLOSING, CLOSED = Phase


class Stand(StrEnum):
    """Where a ticket stands; `broker/core/ledger.py` holds the arrows."""

    QUEUED = "queued"
    PLAYING = "playing"
    SCORING = "scoring"
    SCORED = "scored"
    REFERENCING = "referencing"
    READY = "ready"
    PLANNED = "planned"
    TRAINED = "trained"
    """Provisional until the checkpoint; then the ticket leaves the state."""
    ENDED = "ended"


QUEUED, PLAYING, SCORING, SCORED, REFERENCING, READY, PLANNED, TRAINED, ENDED = Stand


class Client(Struct, kw_only=True):
    """One process, by name. Outlives its incarnations: `next_seq` starts anew with each, `epoch` rises."""

    name: str
    role: str
    incarnation: str
    epoch: int
    key: str = ""
    """The key it came in by; empty where keys are not asked for."""
    fenced: list[str] = field(default_factory=list)
    """Earlier incarnations: whoever is still one of them may not come back."""
    connected: bool = True
    """It said hello since the broker last started, and is neither silent too long nor gone."""
    ready: bool = False
    welcomed: bool = False
    """This incarnation was ready once: its next hello is a return, not a birth."""
    suspect: bool = False
    draining: bool = False
    lost: str = ""
    """Why it is not there; empty while it is."""
    last_seen: float = 0.0
    since: float = 0.0
    """When it last became what it is now (started, ready, gone)."""
    windows: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    """Leases it holds, by queue; equal to a count over `leases` (an invariant)."""
    next_seq: int = 1
    put_again: list[int] = field(default_factory=list)
    """Numbers that a full disk refused, of this incarnation: told again at a hello, which may have crossed the refusal."""
    gap_at: int = 0
    """`next_seq` for which a resend was already asked: one burst behind a hole gets one answer a heartbeat."""
    gap_asked_at: float = 0.0
    installed: int | None = None
    offered: int | None = None
    """Version whose install was ordered and not yet answered."""
    offered_at: float = 0.0
    progress_at: float = 0.0
    """When it last did something: any numbered message but a credit."""
    host: str = ""
    slots: tuple[str, ...] = ()
    pid: int = 0
    waiting: str = ""
    stats: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds that earlier incarnations reported, by the gauge's name."""
    directory: str = ""
    """A host's own working directory; empty where it shares the run directory."""
    place: str = ""
    """Id of the machine it runs on."""
    runs: tuple[str, ...] = ()
    """Roles that a host may run; empty: all."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Roles that this incarnation of a host could not run, and why."""
    user_code: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the user modules it imported."""
    public: str = ""
    """The public key it came in by, as it says; empty where keys are not asked for."""
    blobs: str = ""
    """Where it serves blobs."""
    fetched: float = 0.0
    """Bytes that it had fetched when its receipt was last waited for."""


class Queued(Struct, kw_only=True, gc=False):
    """A record in a queue or under a lease."""

    id: int
    queue: str
    header: Header
    deliveries: int = 0
    put_at: float = 0.0
    lease: int | None = None
    history: list[Attempt] = field(default_factory=list)
    """Deliveries that came to nothing, of a record without a ticket; else they stand with the ticket."""


class Queue(Struct, kw_only=True):
    """Message ids in the order of delivery: `back` (given back by a lost lease) before `ready`."""

    ready: dict[int, None] = field(default_factory=dict)
    back: dict[int, None] = field(default_factory=dict)
    leased: int = 0
    puts: int = 0
    last_put_at: float | None = None
    interval_s: float | None = None
    """Smoothed arrival interval."""
    jitter_s: float = 0.0
    service_s: float | None = None
    """Smoothed time under a lease."""
    wait_s: float | None = None
    """Smoothed time in the queue."""
    redeliveries: int = 0
    deliveries: int = 0
    waited_s: float = 0.0
    """Seconds in the queue, summed over deliveries."""
    waiting: Waiting = field(default_factory=Waiting)

    def __post_init__(self) -> None:
        """Both are taken from the front: a plain dict would look past all that was taken before."""
        self.ready, self.back = OrderedDict(self.ready), OrderedDict(self.back)


class Lease(Struct, kw_only=True, gc=False):
    """A client's hold on one message; ends by commit, or goes back at its deadline or with its client."""

    id: int
    client: str
    message: int
    queue: str
    granted_at: float
    deadline: float


class Session(Struct, kw_only=True):
    """A live (ticket, attempt): who plays it, who holds its KV, and its frames so far."""

    ticket: int
    attempt: int
    env: str
    replica: str | None = None
    held: int = 0
    """How many of `frames` the replica holds."""
    frames: list[int] = field(default_factory=list)
    """Messages (turn, action, turn, ...) whose tokens, in order, are the session's context."""
    tokens: list[int] = field(default_factory=list)
    """Tokens of each of `frames`."""
    ring: int | None = None
    """Its one message in turns or actions."""


class Ticket(Struct, kw_only=True):
    """One member of one group."""

    id: int
    group: int
    member: int
    purpose: str
    message: int
    stand: Stand = Stand.QUEUED
    version: int | None = None
    """Pinned: its turns go only to replicas that hold this version."""
    attempt: int = 0
    deaths: int = 0
    failures: int = 0
    charged: int = 0
    tokens: int = 0
    trainable: int = 0
    reward: float | None = None
    oldest: int | None = None
    newest: int | None = None
    record: int | None = None
    """Message of its episode, scored or sample, once it has one."""
    issued_at: float = 0.0
    history: list[Attempt] = field(default_factory=list)
    """Its deliveries that came to nothing, and those of its records."""


class Group(Struct, kw_only=True):
    """The members that play one task."""

    id: int
    task_index: int
    purpose: str
    members: list[int]
    """Live tickets."""
    round: int = 0
    """sync: the step it was admitted for."""
    judged: bool = False
    """The grouping policy has acted: its members go on to reference."""
    step: int | None = None


class Step(Struct, kw_only=True):
    """A step plan, from its making to the checkpoint that makes it final."""

    step: int
    lineage: int
    groups: tuple[int, ...]
    samples: tuple[int, ...]
    """Messages, in the order of the plan."""
    tickets: tuple[int, ...]
    rewards: tuple[GroupRewards, ...]
    token_denominator: int
    oldest_allowed: int
    sent: bool = False
    committed: bool = False
    voids: int = 0
    planned_at: float = 0.0
    committed_at: float = 0.0


class Trainer(Struct, kw_only=True):
    """What the broker knows of the trainer's history."""

    step: int = 0
    """Last committed step; it makes the version of that number."""
    checkpoint: int = 0
    lineage: int = 0
    idle: bool = False
    """It has published its version and waits for a plan."""
    digests: dict[int, str] = field(default_factory=dict)
    """Digest of each version, as first published."""
    refills: int = 0
    """Groups refilled since the last plan."""


class Installing(Struct, kw_only=True):
    """An install record that replicas may still need."""

    number: int
    lineage: int
    digest: str
    message: int


class Evaluation(Struct, kw_only=True):
    """One pass over the held-out problems at one version."""

    version: int
    problems: int
    open: list[int] = field(default_factory=list)
    """Live tickets."""
    issued: int = 0
    scored: int = 0
    reward_sum: float = 0.0
    failed: int = 0
    started_at: float = 0.0
    ended_at: float | None = None
    graded: bool = False
    """A reward was neither 0 nor 1: their mean is no share of problems solved."""


class GrantState(Struct, kw_only=True):
    """A slot grant, asked for or held."""

    id: int
    client: str
    slots: tuple[str, ...]
    asked_at: float
    granted_at: float | None = None
    host: str = ""
    """Whose slots they are: two hosts' `cpu:0` are two."""

    def overlaps(self, other: GrantState) -> bool:
        """Whether both want one slot."""
        return self.host == other.host and not set(self.slots).isdisjoint(other.slots)


class Process(Struct, kw_only=True):
    """A stage process that this run wants, and the host that runs it."""

    name: str
    role: str
    host: str = ""
    slots: tuple[str, ...] = ()
    starts: int = 0
    exits: int = 0


class Ledger(Struct, kw_only=True):
    """Endings. issued = trained + provisional + dropped + failed + evaluated + tickets in flight."""

    issued: int = 0
    trained: int = 0
    provisional: int = 0
    evaluated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    failed_in_a_row: int = 0
    """Since a ticket was last scored."""
    lengths: dict[str, dict[int, int]] = field(default_factory=dict)
    """By ending, tickets per power of two of their tokens: a bias against long episodes shows here."""
    charged: int = 0
    """Bytes of the one budget in use."""
    trained_tokens: int = 0
    """Tokens under the loss mask in committed steps."""


class Failed(Struct, kw_only=True, frozen=True):
    """Why a run cannot go on."""

    stage: str
    reason: str
    last_lines: tuple[str, ...] = ()
    advice: str = ""


class State(Struct, kw_only=True, dict=True):
    """All of it. What is derived from it (`core/index.py`) hangs beside it and is not encoded."""

    settings: Settings
    config: dict[str, Json]
    run_directory: str
    phase: Phase = Phase.STARTING
    started_at: float = 0.0
    clients: dict[str, Client] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=lambda: {name: Queue() for name in EDGES})
    messages: dict[int, Queued] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    """Live sessions by ticket."""
    steps: dict[int, Step] = field(default_factory=dict)
    trainer: Trainer = field(default_factory=Trainer)
    installs: dict[int, Installing] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    grants: dict[int, GrantState] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    next_message: int = 1
    next_lease: int = 1
    next_ticket: int = 1
    next_group: int = 1
    next_grant: int = 1
    next_task: int = 0
    retry_tasks: list[int] = field(default_factory=list)
    """Tasks that a person wants played again; they go before `next_task`."""
    dead: dict[int, DeadLetter] = field(default_factory=dict)
    next_dead: int = 1
    dead_bytes: int = 0
    dead_dropped: int = 0
    """Letters that had to go to keep the rest within bounds."""
    grant_s: float | None = None
    """Smoothed time for which a grant is held."""
    groups_admitted: int = 0
    """Training groups admitted, less those dropped and refilled."""
    restarted_at: float | None = None
    first_train_at: float | None = None
    last_step_at: float | None = None
    progress_at: float = 0.0
    disk_full: bool = False
    stop_reason: str | None = None
    closing_deadline: float | None = None
    failure: Failed | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    peer_keys: dict[str, None] = field(default_factory=dict)
    """Public keys that may fetch blobs from clients, as last told."""
    install_metrics: dict[str, float] = field(default_factory=dict)
    """Of the receipts since the last step's metrics were written."""
