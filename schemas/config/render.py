"""Writes a configuration as TOML: the run directory's resolved copy, and what `tidemill check` shows.

Pure. Reading back what `to_toml` wrote gives the same configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from schemas.config.pipeline import PipelineConfig


def to_toml(config: PipelineConfig) -> str:
    """The whole configuration, defaults included, as a TOML file."""
    return "\n".join(toml_lines(config.model_dump(mode="json"))).strip() + "\n"


def toml_lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """The lines of one table: its own values first, then the tables inside it under their dotted names."""
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if name and (values or not table):
        yield ""
        yield f"[{name}]"
    for key, value in values.items():
        yield f"{_key(key)} = {value_text(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toml_lines(value, f"{name}.{_key(key)}" if name else _key(key))


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _string(key)


def value_text(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {value_text(inner)}' for key, inner in value.items())} }}"
    return repr(value)


def _string(text: str) -> str:
    # JSON's escapes are TOML's too, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
