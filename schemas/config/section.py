"""What every section of the configuration is: frozen, strict, documented, and closed to unknown keys.

Owns the kinds of values that sections are made of, and the refusal by name of what is planned but not built.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """One table of the file. The string under each field is its description; units stand in the key's name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)


def matching(pattern: str, expected: str) -> AfterValidator:
    """Lets through strings that match `pattern` as a whole; `expected` is how the refusal describes them."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError("pattern", "expected {expected}", {"expected": expected})
        return value

    return AfterValidator(check)


LARGEST = 2**63 - 1
"""What the messages between processes can hold."""
AtLeastOne = Annotated[int, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
"""Thirty years are for ever; beyond, clocks and time-outs overflow."""
Fraction = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, `_`, `-` or `.`")]
Device = Annotated[str, matching(r"cpu|cuda(:\d+)?", '"cpu", "cuda" or "cuda:<number>"')]
ImportPath = Annotated[str, matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "module:name, as in my_module:MyClass")]
# TOML and the welcome's JSON know lists only; inside, a frozen tree holds tuples.
Folders = Annotated[tuple[str, ...], Field(strict=False)]


def _plain(value: Any) -> Any:
    """What reaches every process unchanged: JSON knows neither nan nor inf."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        _plain(each)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise PydanticCustomError("too_large", "expected whole numbers of at most 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("not_finite", "expected finite numbers")
    return value


Options = Annotated[dict[str, Any], AfterValidator(_plain)]


def not_built(*names: str, instead: str) -> BeforeValidator:
    """Refuses `names`, which are planned, by name; `instead` says what can be written today."""

    def refuse(value: Any) -> Any:
        if isinstance(value, str) and value in names:
            raise PydanticCustomError("not_built", "is not built yet; {instead}", {"instead": instead})
        return value

    return BeforeValidator(refuse)
