"""A crew: stages of the skeleton, each with the real service loop, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from schemas.edges import STAGES, Role
from stages.service.loop import Loop
from tests.skeleton.peer import CrashError, Peer
from tests.skeleton.stages import FAKES
from tests.skeleton.waiting import until


class Member:
    """One stage at work; `error` is what its loop ended with, None where it was sent home."""

    def __init__(self, peer: Peer, endpoint: str, name: str) -> None:
        self.peer, self.name = peer, name
        self.error: BaseException | None = None
        self.loop = Loop(peer, endpoint, name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:  # noqa: BLE001 - shown by whoever waits for this member
            self.error = error

    @property
    def at_work(self) -> bool:
        return self._thread.is_alive()

    def crash(self) -> None:
        """Ends it in the middle of its work; the broker hears of it by its goodbye."""
        self.peer.crash = True
        until(lambda: not self.at_work, f"{self.name} ends")

    def story(self) -> str:
        held = {lease: delivery.header.queue for lease, delivery in self.peer.held.items()}
        return f"{self.name}: {'at work' if self.at_work else 'ended'}, answered {self.peer.answered}, holds {held}, error {self.error!r}"


class Crew:
    """All members, by name."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.members: dict[str, Member] = {}

    def add(self, role: Role, name: str = "", peer: Peer | None = None) -> Member:
        name = name or f"{role.value}-0"
        self.members[name] = Member(peer or FAKES[role](), self.endpoint, name)
        return self.members[name]

    def add_all(self, roles: Iterable[Role] = STAGES) -> None:
        for role in roles:
            self.add(role)

    def wait_until_home(self) -> None:
        """Until all were sent home; raises what the first of them failed with."""
        until(lambda: self._failed() or not any(m.at_work for m in self.members.values()), "all stages are sent home", self.story)
        failed = self._failed()
        if failed:
            raise AssertionError(self.story()) from failed[0].error

    @property
    def answered(self) -> int:
        """Records that all members together have answered: how far the run is."""
        return sum(member.peer.answered for member in self.members.values())

    def wait_for_answers(self, count: int) -> None:
        """Until the run is so far, or over."""
        over = lambda: not any(member.at_work for member in self.members.values())  # noqa: E731
        until(lambda: self.answered >= count or over(), f"{count} records are answered", self.story)

    def _failed(self) -> list[Member]:
        return [member for member in self.members.values() if member.error is not None and not isinstance(member.error, CrashError)]

    def story(self) -> str:
        return "; ".join(member.story() for member in self.members.values())


@contextmanager
def a_crew(endpoint: str, roles: Iterable[Role] = STAGES) -> Iterator[Crew]:
    """Stages at work at `endpoint`; whoever is left at the end is crashed."""
    crew = Crew(endpoint)
    try:
        crew.add_all(roles)
        yield crew
    finally:
        for member in crew.members.values():
            member.peer.crash = True
        until(lambda: not any(member.at_work for member in crew.members.values()), "all stages end", crew.story)
