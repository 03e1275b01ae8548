"""All chance of a session, as a pure function of its ticket: the same for every attempt, on any host.

    seed = first 63 bits of xxh3-64 over "<label>:" in ASCII, then ticket seed, member and number as little-endian int64

The label keeps the uses apart: `turn` (number = the turn) feeds the engine, `environment` (number 0) the user's instance.
"""

from __future__ import annotations

import struct

import xxhash

_SIGNED = (1 << 64) - 1


def turn_seed(ticket_seed: int, member: int, turn: int) -> int:
    """Seed of one turn's sampling, in [0, 2**63). The attempt has no part in it: a replayed session draws alike."""
    return _derive("turn", ticket_seed, member, turn)


def environment_seed(ticket_seed: int, member: int) -> int:
    """Seed that the user's environment gets in its constructor, in [0, 2**63)."""
    return _derive("environment", ticket_seed, member, 0)


def _derive(label: str, ticket_seed: int, member: int, number: int) -> int:
    words = (ticket_seed & _SIGNED, member & _SIGNED, number & _SIGNED)
    return xxhash.xxh3_64_intdigest(label.encode() + b":" + struct.pack("<3Q", *words)) >> 1
