"""How soon what an event caused wants to be on disk.

Pure. Promises: whoever waits for a record or an order does not wait for a timer; mere acknowledgements ride along with the next commit, or
open one after a while; what causes nothing opens none.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.actions import Action, EndRun, Reply, Send
from broker.core.events import Event, puts_of
from schemas.messages import Committed

ACKNOWLEDGE_SECONDS = 0.02
"""How long mere acknowledgements wait for a commit that they can ride on."""


def urgency(event: Event, actions: Sequence[Action]) -> float | None:
    """Seconds within which the event's commit is to begin; None where it need not for its own sake."""
    if puts_of(event):
        return 0.0
    worth = None
    for action in actions:
        if isinstance(action, Send | Reply):
            if not isinstance(action.message, Committed):
                return 0.0
            worth = ACKNOWLEDGE_SECONDS
        elif isinstance(action, EndRun):
            return 0.0
    return worth
