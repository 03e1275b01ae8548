"""The keys themselves: each has its sentence and its unit, and each is read by someone."""

import ast
import re
from pathlib import Path

import pytest

from schemas.config.complaints import descriptions, leaf_keys

HOUSE = Path(__file__).resolve().parents[3]
UNITS = {
    "_s": r"\b[Ss]econds?\b",
    "_bytes": r"\b[Bb]ytes?\b",
    "_tokens": r"\b[Tt]okens?\b",
    "_steps": r"\bsteps?\b",
}


@pytest.mark.parametrize(("key", "sentence"), descriptions().items())
def test_every_key_has_a_sentence(key: str, sentence: str) -> None:
    assert len(sentence.split()) >= 2, f"{key} needs a sentence under it"
    assert sentence.endswith((".", '"')), f"the sentence of {key} has no end"


@pytest.mark.parametrize(("key", "sentence"), descriptions().items())
def test_a_unit_in_a_keys_name_stands_in_its_sentence(key: str, sentence: str) -> None:
    for suffix, word in UNITS.items():
        if key.endswith(suffix):
            assert re.search(word, sentence), f"the sentence of {key} does not name its unit"


@pytest.mark.parametrize("key", leaf_keys())
def test_a_duration_or_size_carries_its_unit_in_its_name(key: str) -> None:
    # What a sentence opens with is what the key counts.
    opening = descriptions()[key].split()[0]
    suffix = {"Seconds": "_s", "Bytes": "_bytes"}.get(opening)
    assert suffix is None or key.endswith(suffix)


def attributes_read() -> set[str]:
    """Every attribute name that code outside the configuration reads."""
    files = [file for folder in ("broker", "stages", "tools") for file in (HOUSE / folder).rglob("*.py")]
    return {
        node.attr
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_accepted_key_is_read_by_someone() -> None:
    read = attributes_read()
    # `lag_bound` is how `max_lag` is read: it is 0 under `sync`.
    read |= {"max_lag"} if "lag_bound" in read else set()
    unread = [key for key in leaf_keys() if key.rpartition(".")[2] not in read]
    assert unread == [], "accepted, but read by nobody"
