"""Which tokens are trained, by the version that sampled them.

A token sampled by a version older than `oldest_allowed_version` loses its mask; the denominator of the loss stays,
or what is left would be scaled up without a word. Versions come from a sample's spans, which the broker cannot see.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.errors import InvariantError
from schemas.records import VersionSpan

NO_VERSION = -1


def versions_by_token(spans: Sequence[VersionSpan], length: int) -> np.ndarray:
    """int64 [length]: the version of each token's span, NO_VERSION outside all spans."""
    versions = np.full(length, NO_VERSION, np.int64)
    for span in spans:
        if not 0 <= span.start <= span.end <= length:
            raise InvariantError(f"span [{span.start}, {span.end}) lies outside a sample of {length} tokens")
        versions[span.start : span.end] = span.version
    return versions


def trained_mask(sampled: np.ndarray, versions: np.ndarray, oldest_allowed_version: int) -> np.ndarray:
    """bool [T].

    Sampled tokens whose version is recent enough. Raises InvariantError for a sampled token without a version.
    """
    if bool((versions[sampled] == NO_VERSION).any()):
        position = int(np.flatnonzero(sampled & (versions == NO_VERSION))[0])
        raise InvariantError(f"token {position} is under the loss mask, yet no span says which version sampled it")
    return np.asarray(sampled & (versions >= oldest_allowed_version))


def only_version(sample_spans: Sequence[VersionSpan], kv_spans: Sequence[VersionSpan]) -> int | None:
    """The one version that sampled every action and computed every cached position; None where there were several.

    A KV span may cover less than the episode (the last tokens were never attended), never another version.
    """
    versions = {span.version for span in (*sample_spans, *kv_spans)}
    return versions.pop() if len(versions) == 1 else None
