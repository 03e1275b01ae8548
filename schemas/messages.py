"""What a client says to the broker and what the broker says to a client: the whole protocol, two closed unions.

A message is one msgpack map with a `type` tag, the first frame; frames of records follow it. `broker/README.md` is the
protocol's page. Fields are added at the end with a default; a changed meaning takes a new tag. Times are durations in
seconds, never clock readings.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from schemas.edges import Role
from schemas.header import Header
from schemas.records import Json

PROTOCOL_VERSION = 1
"""Raised when a message changes its meaning; refused at hello when it differs."""


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages."""


class Numbered(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A message that must arrive exactly once: the broker takes a client's numbers in order and answers `Committed`."""

    epoch: int = 0
    """From the welcome."""
    seq: int = 0
    """1, 2, 3 ... within an incarnation; filled in by the client library."""


class Source(Struct, frozen=True, array_like=True, gc=False):
    """A server of the blob channel: where it listens, and its public key (Z85; empty where keys are not asked for)."""

    endpoint: str
    public: str = ""


# --- client to broker -------------------------------------------------------------------------------------------------------


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """First message of a client, and again whenever the broker says `hello_first`."""

    protocol: int
    schema: int
    """Fingerprint of all records (`schema.lock`)."""
    role: Role
    name: str
    incarnation: str
    """Random per process start; a new one fences the old."""
    pipeline: str
    ready: bool = False
    """False asks only for the config; a second hello with `ready` follows once the stage can work."""
    windows: dict[str, int] = {}
    """Leases that this client wants to hold at most, by queue."""
    holds: tuple[int, ...] = ()
    """Leases that it still works on; the broker gives back all others."""
    next_seq: int = 1
    """The lowest sequence number whose answer it has not seen."""
    resume_step: int | None = None
    """actor-train: the step of the checkpoint it starts from."""
    installed: int | None = None
    """rollout, reference: the version in use."""
    step_in_hand: int | None = None
    """actor-train: the step whose plan it works on."""
    sessions: tuple[tuple[int, int], ...] = ()
    """rollout: (ticket, attempt) of the sessions whose tokens it holds."""
    grants: tuple[int, ...] = ()
    """Slot grants that it still holds."""
    slots: tuple[str, ...] = ()
    """host: what it offers, such as `cpu:0`."""
    running: dict[str, int] = {}
    """host: its stage processes, name to pid."""
    user_code: dict[str, str] = {}
    """Fingerprints of the user modules it imported, by `module:name`."""
    host: str = ""
    """Name of the host agent that started it; empty when started by hand."""
    pid: int = 0
    deliveries: int = 1
    """How many deliveries may come in one message (`Deliveries`)."""
    public: str = ""
    """The public key it came in by, for the blob channel between clients; empty where keys are not asked for."""
    blobs: str = ""
    """Where it serves blobs, as others reach it; empty: nowhere."""
    directory: str = ""
    """host: its own working directory, where it does not share the broker's run directory; empty: it does."""
    place: str = ""
    """Id of the machine that it runs on, by which two hosts of one name are told apart."""
    roles: tuple[str, ...] = ()
    """host: what it may run; empty: every role."""
    number: int = 0
    """Of this client's hellos, from 1; the welcome repeats it. 0: not counted."""


class Bye(Message, tag="bye", frozen=True, kw_only=True):
    """The client ends; its leases go back at once."""

    reason: str = ""


class Heartbeat(Message, tag="heartbeat", frozen=True, kw_only=True):
    """Sent by the thread that does the work, once a second: renews all the client's leases."""

    stats: dict[str, float] = {}
    """Gauges and counters of the stage, for the live view."""
    waiting: str = ""
    """On whom and for what it waits; empty while it works."""


class Credit(Numbered, tag="credit", frozen=True, kw_only=True):
    """A new window for one queue."""

    queue: str
    window: int


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """A leased record that the stage could not process: data, counted against the ticket's `member_retries`."""

    lease: int
    boundary: str
    """Where it failed, such as `env` or `verifier`."""
    reason: str


class Commit(Numbered, tag="commit", frozen=True, kw_only=True, gc=False):
    """A stage's unit of work, all or nothing: leases it is done with, records it puts. Their frames follow in the order of `puts`."""

    acks: tuple[int, ...] = ()
    puts: tuple[Header, ...] = ()
    fails: tuple[Failure, ...] = ()


class Voted(Numbered, tag="voted", frozen=True, kw_only=True):
    """A rank's vote after its backward pass."""

    step: int
    ok: bool
    metrics: dict[str, float] = {}
    reason: str = ""


class CheckpointSaved(Numbered, tag="checkpoint_saved", frozen=True, kw_only=True):
    """A checkpoint at `step` is durable: what was trained up to it is final."""

    step: int
    metrics: dict[str, float] = {}
    """The step's metrics that are known only after the optimizer step."""


class Receipt(Numbered, tag="receipt", frozen=True, kw_only=True):
    """A version is in use on this replica; `digest` was computed from the tensors in use."""

    lineage: int
    number: int
    digest: str
    seconds: float = 0.0
    metrics: dict[str, float] = {}
    """Of what came over the network for it: `bytes`, `fetch_seconds`, `full_bytes`; empty where the files were here."""


class InstallFailed(Numbered, tag="install_failed", frozen=True, kw_only=True):
    """A version could not be installed; the replica goes on with the one it has."""

    number: int
    reason: str


class GrantAsked(Numbered, tag="grant_asked", frozen=True, kw_only=True):
    """Asks for the client's slots as one gang, over work already leased."""

    slots: tuple[str, ...] = ()


class GrantReleased(Numbered, tag="grant_released", frozen=True, kw_only=True):
    """The slots are free again; the holder's memory is too."""

    grant: int
    busy_seconds: float = 0.0


class Drained(Numbered, tag="drained", frozen=True, kw_only=True):
    """Answer to `Drain`: nothing is held any more."""


class ProcessExited(Numbered, tag="process_exited", frozen=True, kw_only=True):
    """host: one of its processes ended. `final`: it will not be started again."""

    name: str
    code: int
    """Exit status; -9 for a kill by signal 9."""
    final: bool = False
    restarts: int = 0
    last_lines: tuple[str, ...] = ()


class StopAsked(Message, tag="stop_asked", frozen=True, kw_only=True):
    """Ends the run: no more tickets, then drain."""

    reason: str = ""


class StatusAsked(Message, tag="status_asked", frozen=True, kw_only=True):
    """Asks for a `Status`; changes nothing, needs no hello."""


class DeadAsked(Message, tag="dead_asked", frozen=True, kw_only=True):
    """Asks for the dead letters; changes nothing, needs no hello."""

    id: int = 0
    """Of one letter, whose frames are sent along; 0 for all of them, without frames."""


class DeadRetry(Message, tag="dead_retry", frozen=True, kw_only=True):
    """Asks that the task of a dead letter be tried again; answered by `DeadRetried`, needs no hello."""

    id: int


ClientMessage = (
    Hello | Bye | Heartbeat | Credit | Commit | Voted | CheckpointSaved | Receipt | InstallFailed | GrantAsked | GrantReleased
    | Drained | ProcessExited | StopAsked | StatusAsked | DeadAsked | DeadRetry
)  # fmt: skip
"""All that a client may say."""


# --- broker to client -------------------------------------------------------------------------------------------------------


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """Answer to `Hello`."""

    epoch: int
    """To be repeated in every commit."""
    next_seq: int
    """The first sequence number that the broker has not yet accepted."""
    config: dict[str, Json]
    """The pipeline's resolved config."""
    run_directory: str
    stale: tuple[int, ...] = ()
    """Leases of `holds` that are gone: stop that work."""
    heartbeat_s: float = 1.0
    sources: tuple[Source, ...] = ()
    """Where blobs can be had, in the order to try them."""
    hello: int = 0
    """`number` of the hello that this answers."""


class Refuse(Message, tag="refuse", frozen=True, kw_only=True):
    """Not accepted, and why. `reason` is one of the words in `broker/README.md`; `fatal`: do not try again."""

    reason: str
    detail: str = ""
    seq: int | None = None
    fatal: bool = False


class Committed(Message, tag="committed", frozen=True, kw_only=True, gc=False):
    """All numbered messages up to `seq` are durable or were refused."""

    seq: int


class ResendFrom(Message, tag="resend_from", frozen=True, kw_only=True):
    """A gap: send again from `seq`, in order."""

    seq: int


class Deliver(Message, tag="deliver", frozen=True, kw_only=True, gc=False):
    """One record under a lease. `context` token frames precede its own frames: what the replica does not yet hold of the session."""

    lease: int
    header: Header
    delivery: int = 1
    """1 for the first; more after a redelivery."""
    held_tokens: int = 0
    """turns: the length of the session's context that the replica holds already."""
    context: int = 0


class Deliveries(Message, tag="deliveries", frozen=True, kw_only=True):
    """Several of them, for a client that asked for it; their frames follow in the same order."""

    orders: tuple[Deliver, ...]


class CloseSession(Message, tag="close_session", frozen=True, kw_only=True):
    """Forget the session and its KV."""

    ticket: int
    attempt: int


class Abort(Message, tag="abort", frozen=True, kw_only=True):
    """The lease ended from the broker's side: stop that work, an acknowledgement would be refused."""

    lease: int


class GroupRewards(Struct, frozen=True, kw_only=True):
    """Rewards of all members of one group, failed ones left out."""

    group: int
    rewards: tuple[float, ...]


class Plan(Message, tag="plan", frozen=True, kw_only=True):
    """One optimizer step. The frames of all samples follow in the order of `samples`."""

    step: int
    """1 makes version 1 from version 0."""
    lineage: int
    oldest_allowed_version: int
    """Tokens sampled by an older version lose their mask; the denominator stays."""
    token_denominator: int
    samples: tuple[Header, ...]
    rewards: tuple[GroupRewards, ...]


class StepCommitted(Message, tag="step_committed", frozen=True, kw_only=True):
    """The step is journaled: apply it."""

    step: int


class PlanVoided(Message, tag="plan_voided", frozen=True, kw_only=True):
    """The vote failed: forget the gradients; the same samples come in a new plan."""

    step: int


class InstallOrder(Message, tag="install", frozen=True, kw_only=True):
    """One `Install` record, its frames follow; answered by `Receipt` or `InstallFailed`."""

    header: Header
    sources: tuple[Source, ...] = ()
    """Where its files can be had if not here, in the order to try them."""


class Grant(Message, tag="grant", frozen=True, kw_only=True):
    """The slots are yours until released or fenced."""

    grant: int
    slots: tuple[str, ...] = ()
    deadline_s: float = 0.0


class Fence(Message, tag="fence", frozen=True, kw_only=True):
    """The grant ran past its deadline and is gone."""

    grant: int


class StartProcess(Message, tag="start_process", frozen=True, kw_only=True):
    """host: start this stage process."""

    name: str
    role: Role
    slots: tuple[str, ...] = ()


class StopProcess(Message, tag="stop_process", frozen=True, kw_only=True):
    """host: end this stage process; an empty name means all of them, then the host itself."""

    name: str = ""
    grace_s: float = 3.0


class Peers(Message, tag="peers", frozen=True, kw_only=True):
    """To whoever serves blobs, and to weight-sync: who may fetch, and who serves. Said anew when it changes."""

    keys: tuple[str, ...] = ()
    """Public keys of the clients of this run."""
    sources: tuple[Source, ...] = ()


class Drain(Message, tag="drain", frozen=True, kw_only=True):
    """Take no more work; finish, say `Drained`, then `Bye`."""

    reason: str = ""


class Status(Message, tag="status", frozen=True, kw_only=True):
    """Answer to `StatusAsked`: a snapshot for people and tools."""

    body: dict[str, Json]


class DeadLetters(Message, tag="dead_letters", frozen=True, kw_only=True):
    """Answer to `DeadAsked`: a map a letter, oldest first; with one letter, the frames of its record follow."""

    letters: tuple[dict[str, Json], ...] = ()
    dropped: int = 0
    """Older ones that had to go to keep the rest within bounds."""


class DeadRetried(Message, tag="dead_retried", frozen=True, kw_only=True):
    """Answer to `DeadRetry`: what happens now, or why nothing does."""

    id: int
    done: bool
    detail: str = ""


BrokerMessage = (
    Welcome | Refuse | Committed | ResendFrom | Deliver | Deliveries | CloseSession | Abort | Plan | StepCommitted
    | PlanVoided | InstallOrder | Grant | Fence | StartProcess | StopProcess | Drain | Status | DeadLetters
    | DeadRetried | Peers
)  # fmt: skip
"""All that the broker may say."""

DropReason = Literal["no_spread", "group_broken", "lost_version", "run_end"]
"""Why a ticket ended `dropped`."""
