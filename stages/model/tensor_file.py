"""What a safetensors file says and hashes to, read without torch.

Promises the digests of `checkpoint.tensor_digests` and `overall_digest` for the same tensors, from the raw bytes of the
file. Reads headers strictly: a file that is damaged, cut short or of another format is a CheckpointError, never a
crash. Knows no dtype beyond its name and size: bfloat16 needs no library that understands it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import xxhash

from schemas.records import TensorInfo
from stages.model.errors import CheckpointError

HEADER_BYTES_MAX = 100 << 20
"""Safetensors' own bound on its header."""

DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
"""Safetensors' names of dtypes: torch's name, and bytes of one element."""


class Entry(msgspec.Struct, frozen=True):
    """One tensor in a file's header; offsets are bytes from the end of the header."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def directory_tensors(directory: Path | str) -> tuple[TensorInfo, ...]:
    """All tensors of a model directory, sorted by name, hashed from their bytes. Raises CheckpointError."""
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory} holds no safetensors file")
    tensors = [info for file in files for info in file_tensors(file)]
    return tuple(sorted(tensors, key=lambda info: info.name))


def file_tensors(file: Path | str) -> tuple[TensorInfo, ...]:
    """Tensors of one file, sorted by name, hashed from their bytes. Raises CheckpointError."""
    try:
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return tuple(sorted(_hashed(mapped, str(file)), key=lambda info: info.name))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def check_directory(directory: Path | str) -> None:
    """Reads the headers of a model directory's files, and no tensor. Raises CheckpointError."""
    for file in sorted(Path(directory).glob("*.safetensors")):
        try:
            with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                entries, begin = _entries(mapped, str(file))
                for name, entry in entries.items():
                    _checked(name, entry, len(mapped) - begin, str(file))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error


def _hashed(mapped: mmap.mmap, where: str) -> Iterator[TensorInfo]:
    entries, begin = _entries(mapped, where)
    with memoryview(mapped) as view:
        for name, entry in entries.items():
            torch_name = _checked(name, entry, len(view) - begin, where)
            digest = xxhash.xxh3_64(f"{torch_name}:{','.join(map(str, entry.shape))};".encode())
            with view[begin + entry.data_offsets[0] : begin + entry.data_offsets[1]] as raw:
                digest.update(raw)
            yield TensorInfo(name, torch_name, entry.shape, digest.hexdigest())


def _entries(mapped: mmap.mmap, where: str) -> tuple[dict[str, Entry], int]:
    """The header, and where the tensors' bytes begin."""
    size = int.from_bytes(mapped[:8], "little")
    if len(mapped) < 8 or size > min(HEADER_BYTES_MAX, len(mapped) - 8):
        raise CheckpointError(f"{where} is cut short: its header would have {size} bytes, the file has {len(mapped)}")
    try:
        header = msgspec.json.decode(mapped[8 : 8 + size], type=dict[str, Any])
        header.pop("__metadata__", None)
        return msgspec.convert(header, dict[str, Entry]), 8 + size
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{where} has no readable safetensors header: {error}") from error


def _checked(name: str, entry: Entry, available: int, where: str) -> str:
    """torch's name of the entry's dtype, once the entry fits the file."""
    if entry.dtype not in DTYPES:
        raise CheckpointError(f"{where}: {name} has dtype {entry.dtype}; known: {', '.join(DTYPES)}")
    torch_name, item_bytes = DTYPES[entry.dtype]
    elements = 1
    for size in entry.shape:
        elements *= size
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= available or end - begin != elements * item_bytes:
        raise CheckpointError(f"{where}: {name} {torch_name}{list(entry.shape)} does not fit bytes [{begin}, {end}) of {available}")
    return torch_name


def manifest_digest(tensors: Iterable[TensorInfo]) -> str:
    """One digest of a whole state.

    Xxh3-64 hex over "name=digest" lines in the order of the names; as `overall_digest`.
    """
    lines = "".join(f"{info.name}={info.digest}\n" for info in sorted(tensors, key=lambda info: info.name))
    return xxhash.xxh3_64_hexdigest(lines.encode())
