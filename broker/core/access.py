"""What a key may do, where keys are asked for: be a client of its roles, and, as an observer or a host, look at the run and end it.

`roles` are those of the sender's key; None: the broker asks for no keys, and whoever reaches its socket may do all.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas import messages as wire
from schemas.edges import Role

WATCHERS = frozenset({Role.OBSERVER, Role.HOST})
"""Whoever may see and steer the run as a whole."""
FOR_WATCHERS = (wire.StopAsked, wire.StatusAsked, wire.DeadAsked, wire.DeadRetry)
"""Messages that need no hello, and so are not bound to a client's role."""


def forbidden(message: wire.ClientMessage, roles: Sequence[Role] | None) -> str | None:
    """Why a key of `roles` may not say this, if it may not."""
    if roles is None:
        return None
    if isinstance(message, wire.Hello) and message.role not in roles:
        return f"this key is for {', '.join(roles)}, not for {message.role}"
    if isinstance(message, FOR_WATCHERS) and not WATCHERS.intersection(roles):
        return f"this key is for {', '.join(roles)}; {type(message).__name__} takes one for observer or host"
    return None
