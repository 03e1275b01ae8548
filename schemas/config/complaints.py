"""Turns what pydantic found into one plain line for each key: where, what stands there, what was expected.

Pure. Knows the tree of sections, so that an unknown key is answered with the nearest right one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from schemas.config.pipeline import PipelineConfig
from schemas.config.section import Section

Loc = tuple[int | str, ...]

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "string_too_short": "a string that is not empty",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} in the list",
    "too_long": "at most {max_length} in the list",
}
"""What was expected, by pydantic's type of error; braces take the error's own numbers."""


def complaints(error: ValidationError, source_of: Callable[[Loc], str]) -> list[str]:
    """One line a key, in the order of the sections; `source_of` says whether it stood in the file or in `--set`."""
    by_key: dict[Loc, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_key.setdefault(key_part(details["loc"]), []).append(details)
    return [f"{source_of(loc)}: {_complaint(loc, found)}" for loc, found in by_key.items()]


def _complaint(loc: Loc, found: list[ErrorDetails]) -> str:
    first = found[0]
    if first["type"] == "extra_forbidden":
        return f"{dotted(loc)}: unknown key; {suggestion(loc)}"
    if first["type"] == "missing":
        return f"{dotted(loc)} is missing: {description_of(tuple(part for part in loc if isinstance(part, str)))}"
    if first["type"] == "not_built":
        return f"{dotted(loc)} = {first['input']!r} {first['msg']}"
    return f"{dotted(loc)} = {shown(first['input'])}: {_expectation(found)}"


def _expectation(found: list[ErrorDetails]) -> str:
    known = [EXPECTED[each["type"]].format(**each.get("ctx", {})) for each in found if each["type"] in EXPECTED]
    return f"expected {' or '.join(dict.fromkeys(known))}" if known else found[0]["msg"]


def shown(value: Any, longest: int = 60) -> str:
    """A value as it would stand in the file, cut to `longest` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= longest else f"{text[:longest]}…"


def dotted(loc: Loc) -> str:
    """`("stages", "env", "path", 0)` as `stages.env.path[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def section_at(loc: Loc) -> type[Section] | None:
    """The section that stands at `loc`, or None where that is a value or nothing at all."""
    section: type[Section] | None = PipelineConfig
    for part in loc:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        section = section_in(field.annotation) if field else None
    return section


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field's annotation is, or None where the field holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def key_part(loc: Loc) -> Loc:
    """`loc` without the branch that pydantic appends where a value may be one of several kinds."""
    for end in range(1, len(loc)):
        if get_origin(annotation_at(loc[:end])) in (Union, UnionType):
            return loc[:end]
    return loc


def annotation_at(loc: Loc) -> Any:
    """The type of the field at `loc`, or None where there is no field."""
    section = section_at(loc[:-1])
    field = section.model_fields.get(str(loc[-1])) if section else None
    return field.annotation if field else None


def description_of(loc: Loc) -> str:
    """The sentence under the field at `loc`."""
    section = section_at(loc[:-1])
    field = section.model_fields.get(str(loc[-1])) if section else None
    return " ".join((field.description or "").split()) if field else ""


def suggestion(loc: Loc) -> str:
    """What an unknown key was meant to be: a near name beside it, else the same name elsewhere, else all names."""
    section, name = section_at(loc[:-1]), str(loc[-1])
    names = list(section.model_fields) if section else []
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]}?"
    if elsewhere := _near_elsewhere(name):
        return f"did you mean {elsewhere}?"
    return f"known here: {', '.join(names)}"


def _near_elsewhere(name: str) -> str | None:
    """The first key or section anywhere whose last part is `name`, or nearly so."""
    by_name: dict[str, str] = {}
    for key in (*_sections(PipelineConfig, ""), *leaf_keys()):
        by_name.setdefault(key.rpartition(".")[2], key)
    # Far from where it was written, only a near miss is worth proposing.
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.8)
    return by_name[near[0]] if near else None


def leaf_keys(section: type[Section] = PipelineConfig, prefix: str = "") -> list[str]:
    """Every key that takes a value, dotted, in the order of the sections."""
    return [key for key, _ in _leaves(section, prefix)]


def descriptions() -> dict[str, str]:
    """The sentence of every key that takes a value."""
    return dict(_leaves(PipelineConfig, ""))


def _leaves(section: type[Section], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        if inner is not None:
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", " ".join((field.description or "").split())


def _sections(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if (inner := section_in(field.annotation)) is not None:
            yield f"{prefix}{name}"
            yield from _sections(inner, f"{prefix}{name}.")
