"""Who may fetch from a server that is not where the broker's keys are: the broker tells it, in `Peers`."""

from __future__ import annotations

from collections.abc import Iterable

from broker.keys import Allowed, KeyPair
from schemas.edges import Role


class PeerKeys:
    """An allow-list in memory, for `broker.doorkeeper.Doorkeeper`. Any role may fetch. Replaced as a whole, from any thread.

    The server's pair is its client's: whoever is told of the server is told that pair's public key.
    """

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair
        self._entries: list[Allowed] = []
        self._changes = 0
        self.allow(())

    def allow(self, keys: Iterable[str]) -> None:
        """These public keys and its own may fetch from now on, no others."""
        self._entries = [Allowed(public, tuple(Role), f"peer {public[:8]}") for public in sorted({*keys, self._pair.public})]
        self._changes += 1

    def server(self) -> KeyPair:
        return self._pair

    def check(self) -> None:
        """Nothing to object to: the broker has let each of them in."""

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        return (("peers", self._changes, 0),)

    def allowed(self) -> tuple[list[Allowed], list[str]]:
        return list(self._entries), []
