"""Any record, drawn from its own field types: what hypothesis feeds the codec with."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from schemas.records import RECORDS, Record

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT, lambda inner: st.dictionaries(TEXT, inner, max_size=2), max_leaves=4
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**64 - 1), float: st.floats(allow_nan=False), str: TEXT, bool: st.booleans(), Any: JSON,
    type(None): st.none(),
}  # fmt: skip


def arrays(dtype: str) -> st.SearchStrategy[np.ndarray]:
    size = np.dtype(dtype).itemsize
    return st.binary(max_size=6 * size).map(lambda raw: np.frombuffer(raw[: len(raw) // size * size], dtype))


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if typing.get_origin(kind) is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    if typing.get_origin(kind) is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if typing.get_origin(kind) is tuple:
        return st.tuples(*map(of_type, arguments))
    return structs(kind)


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Structs of `kind`; the arrays of a record have their declared dtypes."""
    declared = kind.arrays if issubclass(kind, Record) else {}
    hints = typing.get_type_hints(kind)
    fields = {name: arrays(declared[name]) if name in declared else of_type(hints[name]) for name in kind.__struct_fields__}
    return st.builds(lambda **values: kind(**values), **fields)


ANY_RECORD = st.sampled_from(sorted(RECORDS)).flatmap(lambda tag: structs(RECORDS[tag]))
