"""The protocol's page says all of the protocol: every message, field, refusal, state and arrow."""

from __future__ import annotations

import ast
import re
from enum import StrEnum
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from broker.core import ledger, lifecycle
from broker.core.events import Event
from schemas.edges import EDGES, Role
from schemas.header import Header
from schemas.messages import BrokerMessage, ClientMessage, Failure, GroupRewards
from schemas.records import RECORDS, Sampling

HOUSE = Path(__file__).resolve().parents[2]
PAGE = (HOUSE / "broker" / "README.md").read_text(encoding="utf-8")
MESSAGES = [*get_args(ClientMessage), *get_args(BrokerMessage)]


def row_of(kind: type[msgspec.Struct]) -> str:
    """The line of the message's table row, by its tag; the broker's `install` is told from the record of that name by its table."""
    tables = PAGE.split("## Client to broker")[1].split("## Broker to client")
    table = tables[0] if kind in get_args(ClientMessage) else tables[1].split("## Hello, twice")[0]
    rows = [line for line in table.splitlines() if line.startswith(f"| `{kind.__struct_config__.tag}` |")]
    assert len(rows) == 1, f"{len(rows)} rows for {kind.__struct_config__.tag}"
    return rows[0]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_has_a_row_with_every_field(kind: type[msgspec.Struct]) -> None:
    row = row_of(kind)
    for name in kind.__struct_fields__:
        if name in ("epoch", "seq") and "acks" not in kind.__struct_fields__ and "| yes |" in row:
            continue  # of all numbered messages, said above the table
        if kind.__name__ == "Commit" and name in ("epoch", "seq"):
            continue
        assert re.search(rf"\b{name}\b", row), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("kind", [Header, Sampling, Failure, GroupRewards, *RECORDS.values()], ids=lambda kind: kind.__name__)
def test_every_field_of_records_and_headers_is_named(kind: type[msgspec.Struct]) -> None:
    assert [name for name in kind.__struct_fields__ if not re.search(rf"\b{name}\b", PAGE)] == []


def test_every_array_is_listed_in_frame_order_with_its_dtype() -> None:
    for tag, kind in RECORDS.items():
        listed = ", ".join(f"`{name}` {dtype}" for name, dtype in kind.arrays.items()).replace("|u1", "\\|u1")
        assert f"`{tag}`" in PAGE
        assert listed in PAGE, listed


def refusals() -> set[str]:
    """Reasons as the broker's code gives them: `Refuse(reason=...)`, `_refuse(..., reason, ...)`, and the pairs that checks return."""
    found: set[str] = set()
    for file in (HOUSE / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found |= {word.value.value for word in node.keywords if word.arg == "reason" and ast.unparse(node.func).endswith("Refuse")
                          and isinstance(word.value, ast.Constant)}  # fmt: skip
                if re.search(r"(^|\.)_refuse$", ast.unparse(node.func)):
                    found |= {value.value for value in node.args if isinstance(value, ast.Constant)}
            elif isinstance(node, ast.FunctionDef) and node.name == "_refuse":
                found |= {value.value for value in node.args.defaults if isinstance(value, ast.Constant)}
            elif isinstance(node, ast.Tuple) and file.name == "commits.py" and len(node.elts) == 2:
                first = node.elts[0]
                if isinstance(first, ast.Constant) and isinstance(node.elts[1], ast.JoinedStr | ast.Constant):
                    found.add(first.value)
    return {reason for reason in found if isinstance(reason, str) and re.fullmatch("[a-z_]+", reason) and reason not in EDGES}


def test_every_refusal_has_a_row_and_no_other_does() -> None:
    table = PAGE.split("## Refusals")[1].split("## Leases")[0]
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)) - {"reason"}
    assert rows == refusals()


@pytest.mark.parametrize("arrows", [ledger.ARROWS, lifecycle.ARROWS], ids=["ticket", "run"])
def test_every_arrow_is_drawn(arrows: dict[StrEnum, frozenset[StrEnum]]) -> None:
    for state, following in arrows.items():
        drawn = ", ".join(f"`{each.value}`" for each in sorted(following))
        assert f"| `{state.value}` | {drawn} |".replace("|  |", "| |") in PAGE


def test_every_queue_role_and_event_is_named() -> None:
    words = [*EDGES, *Role, *(str(kind.__struct_config__.tag) for kind in get_args(Event))]
    assert [word for word in words if f"`{word}`" not in PAGE and not re.search(rf"^\| {word} \|", PAGE, re.MULTILINE)] == []


def test_the_example_shows_real_fingerprints() -> None:
    from schemas.lock import fingerprints, schema_fingerprint

    assert f'"schema":{schema_fingerprint()}' in PAGE
    for tag in ("ticket", "turn"):
        assert f'"record":"{tag}","fingerprint":{fingerprints()[tag]}' in PAGE
