"""The keys themselves: each has its sentence and its unit, and each is read by someone."""

import ast
import re
from pathlib import Path

import pytest

from schemas.config import load_config
from schemas.config.complaints import descriptions, leaf_keys
from schemas.errors import ConfigError

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


def names_read() -> set[str]:
    """Every name by which code outside the configuration reads an attribute or an entry: `x.name`, `x["name"]`."""
    files = [file for folder in ("broker", "stages", "tools") for file in (HOUSE / folder).rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    return {name for node in nodes if (name := name_read(node))}


def name_read(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return None


def test_every_accepted_key_is_read_by_someone() -> None:
    read = names_read()
    unread = [key for key in leaf_keys() if key.rpartition(".")[2] not in read]
    assert unread == [], "accepted, but read by nobody"


@pytest.mark.parametrize("key", leaf_keys())
def test_no_key_takes_a_number_that_no_run_could_bear(key: str) -> None:
    with pytest.raises(ConfigError):
        load_config(HOUSE / "compose" / "pipelines" / "calculator.toml", [f"{key}=1e300"])
