"""Fingerprints of all records: mixed versions refuse each other at hello instead of misreading each other later.

A fingerprint is the first 32 bits of xxh3-64 over a record's tag, field names, types, defaults and array dtypes.
`schema.lock` beside this file holds them as last agreed; `python -m schemas.lock` writes it anew, and a test fails
while it differs from the code.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from schemas.records import RECORDS, Record

LOCK_FILE = Path(__file__).with_name("schema.lock")


def _describe(kind: type[Record]) -> dict[str, Any]:
    schema = msgspec.json.schema(kind, schema_hook=lambda wanted: {"type": f"frame:{wanted.__name__}"})
    return {"schema": schema, "arrays": kind.arrays}


@functools.cache
def fingerprints() -> dict[str, int]:
    """u32 fingerprints by record tag, computed from the code."""
    prints = {}
    for tag, kind in RECORDS.items():
        text = json.dumps(_without_prose(_describe(kind)), sort_keys=True)
        prints[tag] = xxhash.xxh3_64_intdigest(text.encode()) >> 32
    return prints


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_prose(inner) for key, inner in value.items() if key != "description"}
    if isinstance(value, list):
        return [_without_prose(inner) for inner in value]
    return value


def fingerprint_of(tag: str) -> int:
    """The fingerprint of one record; KeyError for an unknown tag."""
    return fingerprints()[tag]


@functools.cache
def schema_fingerprint() -> int:
    """One u32 over all records: what hello compares."""
    text = json.dumps(fingerprints(), sort_keys=True)
    return xxhash.xxh3_64_intdigest(text.encode()) >> 32


def lock_text() -> str:
    """The contents that `schema.lock` should have."""
    return json.dumps({"schema": schema_fingerprint(), "records": fingerprints()}, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    LOCK_FILE.write_text(lock_text())
