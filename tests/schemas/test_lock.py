"""The lock: the file says what the code is, and every change that a reader would notice changes a fingerprint."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from schemas import lock
from schemas.lock import LOCK_FILE, fingerprint_of, fingerprints, lock_text, schema_fingerprint
from schemas.records import RECORDS, Array, Record


def test_the_lock_file_equals_the_code() -> None:
    assert LOCK_FILE.read_text() == lock_text(), "a record has changed: python -m schemas.lock, and see schemas/README.md"


def test_a_client_of_another_language_reads_the_lock_as_json() -> None:
    read = json.loads(LOCK_FILE.read_text())
    assert read == {"schema": schema_fingerprint(), "records": fingerprints()}
    assert read["records"].keys() == RECORDS.keys()


def test_fingerprints_fit_in_32_bits_and_differ() -> None:
    found = [*fingerprints().values(), schema_fingerprint()]
    assert len(set(found)) == len(found)
    assert all(0 <= each < 2**32 for each in found)


def test_an_unknown_record_has_no_fingerprint() -> None:
    with pytest.raises(KeyError):
        fingerprint_of("dream")


def a_record(tag: str = "one", dtype: str = "<i4", prose: str = "A record.", **fields: object) -> type[Record]:
    """A record class made on the spot: `count`, `tokens`, and what a test changes about it."""
    named: dict[str, object] = {"count": int, "tokens": Array, **fields}
    described = [(name, *kind) if isinstance(kind, tuple) else (name, kind) for name, kind in named.items()]
    return msgspec.defstruct(
        "One", described, bases=(Record,), namespace={"arrays": {"tokens": dtype}, "__doc__": prose}, tag=tag, frozen=True, kw_only=True
    )  # type: ignore[return-value]


def fingerprint(kind: type[Record], monkeypatch: pytest.MonkeyPatch) -> int:
    """What the lock would say of `kind` in the place of all records."""
    monkeypatch.setattr(lock, "RECORDS", {"one": kind})
    fingerprints.cache_clear()
    found = fingerprints()["one"]
    monkeypatch.undo()
    fingerprints.cache_clear()
    return found


CHANGED = {
    "another tag": {"tag": "two"},
    "another dtype": {"dtype": "<f4"},
    "another type": {"count": float},
    "one field more": {"more": (int, 0)},
    "a default": {"count": (int, 0)},
    "another default": {"more": (int, 1)},
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_that_a_reader_would_notice_changes_the_fingerprint(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [a_record(), *(a_record(**changes) for name, changes in CHANGED.items() if name != what)]  # type: ignore[arg-type]
    changed = fingerprint(a_record(**CHANGED[what]), monkeypatch)  # type: ignore[arg-type]
    assert changed not in [fingerprint(other, monkeypatch) for other in others]


def test_another_sentence_about_a_record_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint(a_record(prose="Said otherwise."), monkeypatch) == fingerprint(a_record(), monkeypatch)


def test_empty_arrays_have_the_dtypes_that_records_declare() -> None:
    assert {dtype for kind in RECORDS.values() for dtype in kind.arrays.values()} == {"<i4", "<f4", "|u1"}
    assert np.dtype("<i4") == np.int32
