"""What two hosts may not do to each other: take a name, go on with work that was moved, or run other user code.

Pure checks of a hello against the state; each gives the refusal, or None.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.crank import Crank
from broker.core.state import Client, State
from schemas.edges import Role
from schemas.messages import Hello, Refuse

Another = Callable[[Client, Hello], bool]


def refusal(crank: Crank, hello: Hello, another: Another) -> Refuse | None:
    """`another`: whether a hello is from another process than the client that is known by its name."""
    state = crank.state
    known = state.clients.get(hello.name)
    lives = known is not None and known.connected and known.ready and crank.now - known.last_seen < state.settings.suspect_s
    if known is not None and lives and another(known, hello):
        taken = _name_at_work(state, known, hello)
        if taken is not None:
            return taken
    return _moved_away(state, hello) or _other_code(state, hello)


def _name_at_work(state: State, known: Client, hello: Hello) -> Refuse | None:
    """Whom one of our hosts runs, and who was heard of just now, gives its name to that host's next start of it and to nobody else.

    A host gives its name to its own next start, on the same machine.
    """
    if hello.role == Role.HOST and known.place != hello.place:
        return Refuse(reason="name", detail=f"a host {hello.name!r} is at work on another machine; choose another --name", fatal=True)
    process = state.processes.get(hello.name)
    if process is None or not process.host or hello.host == process.host or known.host != process.host:
        return None
    return Refuse(reason="name", detail=f"{hello.name!r} is at work on host {process.host!r}; choose another name", fatal=True)


def _moved_away(state: State, hello: Hello) -> Refuse | None:
    """A host was given up and its processes were moved; now it is back, and they with it."""
    process = state.processes.get(hello.name)
    if process is None or not process.host or not hello.host or hello.host == process.host:
        return None
    return Refuse(reason="fenced", detail=f"{hello.name!r} was moved from host {hello.host!r} to {process.host!r}", fatal=True)


def _other_code(state: State, hello: Hello) -> Refuse | None:
    """All processes that run a module of the user's run the same one. On one host they do, as of their starts."""
    for other in state.clients.values() if hello.user_code else ():
        if not other.connected or not other.ready or other.name == hello.name or (other.host and other.host == hello.host):
            continue
        for path, fingerprint in hello.user_code.items():
            if other.user_code.get(path, fingerprint) != fingerprint:
                detail = (f"{path} is not the same code {_where(hello.host)} (fingerprint {fingerprint}) as {_where(other.host)} "
                          f"({other.user_code[path]}, {other.name}); install the same version on every host")  # fmt: skip
                return Refuse(reason="user_code", detail=detail, fatal=True)
    return None


def _where(host: str) -> str:
    return f"on host {host}" if host else "where it was started by hand"
