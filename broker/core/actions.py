"""What the core may order: a closed list. The driver carries them out, in order, after their event is durable."""

from __future__ import annotations

from msgspec import Struct, field

from broker.core.state import Failed
from schemas.header import Header
from schemas.messages import BrokerMessage
from schemas.records import Record


class Attachment(Struct, frozen=True, gc=False):
    """Frames of a message in the arena: all of them, or only the tokens (its first array)."""

    message: int
    tokens_only: bool = False


class Send(Struct, frozen=True, gc=False):
    """A message to one client, with the frames of records."""

    client: str
    message: BrokerMessage
    attach: tuple[Attachment, ...] = ()


class Reply(Struct, frozen=True, gc=False):
    """A message to whoever sent the event, known or not."""

    message: BrokerMessage


class Keep(Struct, frozen=True, gc=False):
    """The commit's puts, in order, become these messages of the arena (0: not kept)."""

    messages: tuple[int, ...]


class Store(Struct, frozen=True):
    """A record that the broker itself makes (a ticket) enters the arena."""

    message: int
    header: Header
    record: Record


class Forget(Struct, frozen=True, gc=False):
    """Messages that nobody needs any more."""

    messages: tuple[int, ...]


class Detach(Struct, frozen=True):
    """Frames of these messages are kept for people: no segment of the journal is to be kept for them."""

    messages: tuple[int, ...]


class Note(Struct, frozen=True):
    """A decision, with the numbers it was made on."""

    kind: str
    numbers: dict[str, float | int | str] = field(default_factory=dict)


class StepMetrics(Struct, frozen=True):
    """A step's metrics, for the metrics files."""

    step: int
    metrics: dict[str, float]


class EndRun(Struct, frozen=True):
    """The driver writes the summary and ends; `failure` is None where the run ended well."""

    failure: Failed | None


Action = Send | Reply | Keep | Store | Forget | Detach | Note | StepMetrics | EndRun
