"""Who serves blobs, who may fetch them, and in which order a receiver should ask.

Blobs never pass through the broker; it only tells the two ends of each other. A source that has proven to hold a version (a replica
of its host sent the receipt) is named before the producer's host, and receivers start at different ones, so that copies spread.
"""

from __future__ import annotations

import zlib

from broker.core.crank import Crank
from broker.core.state import Client, State
from schemas.edges import Role
from schemas.messages import Hello, Peers, Source

SOURCES_MAX = 8
"""Sources named to one receiver: that many broken ones are more than bad luck."""


def on_hello(crank: Crank, client: Client, hello: Hello) -> None:
    """Takes over what a client says of itself, and tells those whom it concerns."""
    state = crank.state
    changed = client.blobs != hello.blobs or (hello.public != "" and hello.public not in state.peer_keys)
    client.blobs, client.public = hello.blobs, hello.public
    if changed:
        tell(crank)
    elif hello.ready and _listens(client) and (client.blobs or sources(state, client)):
        _tell_one(crank, client)


def on_lost(crank: Crank, client: Client) -> None:
    """A client is gone: what it served is not to be had there."""
    if client.blobs:
        client.blobs = ""
        tell(crank)


def on_revoked(crank: Crank, client: Client) -> None:
    """Its key opens nothing any more, on the blob channel either."""
    client.public = client.blobs = ""
    tell(crank)


def tell(crank: Crank) -> None:
    """Says anew to everyone who serves, and to weight-sync, who may fetch and who serves."""
    state = crank.state
    state.peer_keys = dict.fromkeys(sorted({client.public for client in state.clients.values() if client.public}))
    for client in state.clients.values():
        if client.connected and _listens(client):
            _tell_one(crank, client)


def _tell_one(crank: Crank, client: Client) -> None:
    crank.send(client.name, Peers(keys=tuple(crank.state.peer_keys), sources=sources(crank.state, client)))


def _listens(client: Client) -> bool:
    return client.ready and (client.blobs != "" or client.role == Role.WEIGHT_SYNC)


def sources(state: State, receiver: Client, version: int | None = None) -> tuple[Source, ...]:
    """Where this client can get blobs, in the order to try: hosts that hold `version`, then the producer's, then others.

    Its own host is left out: what is there needs no fetching.
    """
    serving = [client for client in state.clients.values() if client.blobs and client.connected]
    if not serving:
        return ()
    serving = [client for client in serving if client.name not in (receiver.name, receiver.host)]
    holding = {client.host or client.name for client in state.clients.values() if version is not None and client.installed == version}
    producing = {client.host or client.name for client in state.clients.values() if client.role in (Role.ACTOR_TRAIN, Role.WEIGHT_SYNC)}
    holders = [client for client in serving if client.name in holding - producing]
    start = zlib.crc32(receiver.name.encode()) % max(1, len(holders))
    others = [client for client in serving if client not in holders]
    others.sort(key=lambda client: client.name not in producing)
    ordered = (holders[start:] + holders[:start])[: SOURCES_MAX // 2] + others
    return tuple(Source(client.blobs, client.public) for client in ordered[:SOURCES_MAX])
