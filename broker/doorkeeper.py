"""The broker's side of CURVE: who may connect, and whose key stands behind each routing id.

Owns the ZAP handler (a thread of pyzmq's that asks the allow-list about every handshake), the allow-list as it was last read, and which key
introduced which routing id. Promises: no handshake succeeds without the handler; a key that is taken off the list is refused at once, and
is reported by `refresh`. Does not know what is said.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import structlog
import zmq
from zmq.auth.thread import ThreadAuthenticator

from broker.keys import Allowed, KeyPair

DOMAIN = "tidemill"
REMEMBERED = 65_536
"""Routing ids whose key is remembered: as many as there can be connections."""
STRANGERS_NAMED = 10
"""Unknown keys between two looks at the list that get a line in the log: whoever can reach the port can knock as often as he likes."""

log = structlog.get_logger()


class AllowList(Protocol):
    """Who may come in, and the pair of the one who guards: a `KeyDirectory`, or a list that came from the broker."""

    def server(self) -> KeyPair: ...
    def check(self) -> None: ...
    def stamp(self) -> tuple[tuple[str, int, int], ...]: ...
    def allowed(self) -> tuple[list[Allowed], list[str]]: ...


class Doorkeeper:
    """Guards one ROUTER. Raises ConfigError where the keys cannot be used."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], keys: AllowList) -> None:
        keys.check()
        self._keys = keys
        self._stamp = keys.stamp()
        self._allowed = {entry.public: entry for entry in keys.allowed()[0]}
        self._strangers: dict[str, None] = {}
        self._introduced: OrderedDict[bytes, str] = OrderedDict()
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN, credentials_provider=self)
        pair = keys.server()
        router.curve_server = 1
        router.curve_secretkey = pair.secret.encode()
        router.zap_domain = DOMAIN.encode()
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without its handler libzmq would let everyone in

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by the handler's thread about each handshake; the list is replaced as a whole, so no lock is needed."""
        public = key.decode()
        if public in self._allowed:
            return True
        if len(self._strangers) < STRANGERS_NAMED:
            self._strangers[public] = None
        return False

    def holder(self, identity: bytes, public: str | None) -> Allowed | None:
        """Whose key it is that speaks as `identity`; None where it may not (any more), or where another key introduced that routing id."""
        entry = self._allowed.get(public or "")
        if entry is None:
            return None
        owner = self._introduced.setdefault(identity, entry.public)
        if owner not in self._allowed:
            owner = self._introduced[identity] = entry.public
        self._introduced.move_to_end(identity)
        if len(self._introduced) > REMEMBERED:
            self._introduced.popitem(last=False)
        return entry if owner == entry.public else None

    def owner(self, identity: bytes) -> Allowed | None:
        """The key that introduced a routing id, if it is still allowed."""
        return self._allowed.get(self._introduced.get(identity, ""))

    def refresh(self) -> list[str]:
        """Reads the allow-list again where it has changed; returns the names of keys that are no longer on it. Logs who was not let in."""
        strangers, self._strangers = self._strangers, {}
        for public in strangers:
            log.warning("unknown_key", public=public, meaning="tidemill keys list shows those that are allowed")
        stamp = self._keys.stamp()
        if stamp == self._stamp:
            return []
        self._stamp = stamp
        entries, wrong = self._keys.allowed()
        for problem in wrong:
            log.error("key_not_allowed", problem=problem)
        before, self._allowed = self._allowed, {entry.public: entry for entry in entries}
        gone = sorted(entry.name for public, entry in before.items() if self._allowed.get(public) != entry)
        log.info("allow_list_read", keys=len(entries), revoked=gone)
        return gone

    def close(self) -> None:
        """Ends the handler's thread."""
        self._authenticator.stop()
