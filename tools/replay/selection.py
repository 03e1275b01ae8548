"""What of a recording is played: `--from`, `--to`, `--only`. Pure.

`--only` takes `7` or `7.1` (a ticket, a session), `group:3`, `step:2` (its plan, or the records of the tickets that it trained) and
`version:4`.
"""

from __future__ import annotations

from msgspec import Struct

from schemas.errors import ConfigError
from schemas.header import Header
from tools.records.selection import check_times

KINDS = ("ticket", "session", "group", "step", "version")


class Wanted(Struct, frozen=True, kw_only=True):
    """Times are seconds of the broker's clock; None lets everything through."""

    begin: float | None = None
    end: float | None = None
    kind: str = ""
    number: int = 0
    attempt: int | None = None
    tickets: frozenset[int] = frozenset()
    """step: the tickets that it trained."""

    @property
    def is_everything(self) -> bool:
        return self == Wanted()

    def in_time(self, now: float) -> bool:
        return (self.begin is None or now >= self.begin) and (self.end is None or now <= self.end)

    def takes(self, header: Header, now: float) -> bool:
        """Whether a delivered record is wanted."""
        if not self.in_time(now):
            return False
        match self.kind:
            case "ticket" | "session":
                return header.ticket == self.number and self.attempt in (None, header.attempt)
            case "group":
                return header.group == self.number
            case "step":
                return header.ticket in self.tickets or (header.record == "version" and header.newest_version == self.number)
            case "version" if header.record == "version":
                return header.newest_version == self.number
            case "version":
                return (header.oldest_version or 0) <= self.number <= header.newest_version if header.newest_version is not None else False
        return True

    def takes_step(self, step: int, now: float) -> bool:
        """Whether a step plan is wanted; `version:4` means the step that makes it."""
        if not self.in_time(now):
            return False
        return step == self.number if self.kind in ("step", "version") else not self.kind


def wanted_of(only: str, begin: float | None, end: float | None) -> Wanted:
    """Raises ConfigError for an id that is none, and for times that are none of a run."""
    check_times(begin, end)
    if not only:
        return Wanted(begin=begin, end=end)
    kind, colon, rest = only.partition(":")
    if not colon:
        kind, rest = "session" if "." in only else "ticket", only
    number, _, attempt = rest.partition(".")
    if kind not in KINDS or not number.isdecimal() or (attempt and (not attempt.isdecimal() or kind != "session")):
        raise ConfigError(f"--only {only}: expected 7, 7.1, group:3, step:2 or version:4")
    return Wanted(begin=begin, end=end, kind=kind, number=int(number), attempt=int(attempt) if attempt else None)
