"""`--set a.b.c=value`: one key changed from the command line. The value is TOML; a bare word is a string."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import ConfigError

# A run called 2026-03-01 is a name: no key of ours holds a date.
DATES = (datetime.date, datetime.time)


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """`"schedule.members=4"` as `(("schedule", "members"), 4)`; raises ConfigError where no key or no `=` is there."""
    key, equals, value = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: expected key=value, for example --set schedule.members=4")
    return parts, parse_value(value.strip())


def parse_value(text: str) -> Any:
    """The TOML value that `text` is, or `text` itself where it is none."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise ConfigError("--set: a value is nested too deeply") from None
    return text if len(parsed) > 1 or isinstance(parsed["value"], DATES) else parsed["value"]


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], set[tuple[str, ...]]]:
    """A copy of `raw` with each override set, and the keys that were set; a later one wins."""
    changed: dict[str, Any] = dict(raw)
    keys: set[tuple[str, ...]] = set()
    for text in overrides:
        key, value = parse_override(text)
        changed = _with_value(changed, key, value, text)
        keys.add(key)
    return changed, keys


def _with_value(table: Mapping[str, Any], key: tuple[str, ...], value: Any, text: str) -> dict[str, Any]:
    first, rest = key[0], key[1:]
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    if not isinstance(inner, Mapping):
        raise ConfigError(f"--set {text}: {first} is not a table, so nothing can be set inside it")
    return {**table, first: _with_value(inner, rest, value, text)}
