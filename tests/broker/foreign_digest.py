"""xxh3-64 of up to 64 bytes, for a client without the library: what a Turn's `context_digest` needs while sessions are short.

After the specification in `doc/xxhash_spec.md` of the xxHash project, with its default secret and seed 0.
"""

import struct

MASK = (1 << 64) - 1
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
OF_NOTHING = 0x2D06800538D394C2


def xxh3_64(data: bytes) -> int:
    """The digest of 0 or of 17 to 64 bytes; ValueError for other lengths."""
    if not data:
        return OF_NOTHING
    if not 17 <= len(data) <= 64:
        raise ValueError(f"{len(data)} bytes: this short version knows 0 and 17 to 64")
    mixed = len(data) * 0x9E3779B185EBCA87
    for pair in reversed(range(1 + (len(data) - 1) // 32)):
        mixed += _mix(data[16 * pair :], 32 * pair) + _mix(data[len(data) - 16 * (pair + 1) :], 32 * pair + 16)
    mixed &= MASK
    mixed = (mixed ^ mixed >> 37) * 0x165667919E3779F9 & MASK
    return mixed ^ mixed >> 32


def _mix(data: bytes, secret: int) -> int:
    low, high = struct.unpack_from("<QQ", data)
    first, second = struct.unpack_from("<QQ", SECRET, secret)
    product = (low ^ first) * (high ^ second)
    return (product ^ product >> 64) & MASK
