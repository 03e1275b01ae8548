"""What a replay found, in words: how much was played, the first difference in its context, and what differs in all.

The first difference is shown as a person wants it: of tokens both probabilities and texts, of weights the first tensor and how far apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xxhash
from msgspec import Struct, field, json

from tools.replay.answers import Answer, jsonable
from tools.replay.comparing import METRIC_TOLERANCE, MISSING, TOLERANCES, Difference, compare
from tools.replay.life import Pair

Words = Callable[[int], str]
AROUND = 6
"""Tokens shown before the first that differs."""


class First(Struct, frozen=True):
    """The first pair that differs."""

    pair: Pair
    differences: list[Difference]


class Tally(Struct):
    """Counts over all pairs. `fields`: differing answers by field, its indices left out."""

    pairs: int = 0
    equal: int = 0
    missing: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    first_of: dict[str, str] = field(default_factory=dict)
    """What the first answer was about that differs in a field."""
    rounded: dict[str, float] = field(default_factory=dict)
    first: First | None = None
    weights: Pair | None = None
    """The first version that came out otherwise."""
    digest: Any = field(default_factory=xxhash.xxh3_64)
    """Over all answers given now, times left out: the same for the same replay."""

    def take(self, pair: Pair) -> bytes:
        """Counts a pair; returns the answer given now as a line of JSON."""
        self.pairs += 1
        line = line_of(pair.now) if pair.now is not None else b"null"
        self.digest.update(line)
        found = compare(plain(pair.recorded), plain(pair.now))
        for name, distance in found.rounded.items():
            self.rounded[name] = max(self.rounded.get(name, 0.0), distance)
        self.missing += pair.now is None
        self.equal += not found.differences
        for name in sorted({without_indices(difference.field) for difference in found.differences}):
            self.fields[name] += 1
            self.first_of.setdefault(name, pair.subject)
        if found.differences and self.first is None:
            self.first = First(pair, found.differences)
        if self.weights is None and pair.now is not None and any(".tensors" in difference.field for difference in found.differences):
            self.weights = pair
        return line


def plain(answer: Answer | None) -> dict[str, Any]:
    """An answer as compared: its kind, and its content. Of a commit the content alone: failures and records stand in it."""
    if answer is None:
        return {"answer": "none came"}
    return answer.content if answer.kind == "Commit" else {"said": answer.kind, **answer.content}


def line_of(answer: Answer) -> bytes:
    return json.encode({"answer": list(answer.key), "kind": answer.kind, **jsonable(answer.content)}, order="deterministic")


def without_indices(path: str) -> str:
    return "".join(part.partition("]")[2] if at else part for at, part in enumerate(path.split("[")))


def summary(tally: Tally, given: int, skipped: int) -> Iterator[str]:
    """Lines about all."""
    found = f"{tally.pairs} recorded answers, {tally.equal} equal"
    yield f"{given} records and orders given, {found}; digest of the answers {tally.digest.hexdigest()}"
    if skipped:
        yield f"{skipped} records left out: their sessions began before what is played, or their frames are gone"
    if tally.missing:
        yield f"{tally.missing} recorded answers did not come"
    for name, count in tally.fields.most_common():
        about = tally.first_of.get(name)
        yield f"  {count} answers differ in {name}" + (f", first in: {about}" if about else "")
    for name, distance in sorted(tally.rounded.items()):
        allowed = TOLERANCES.get(name)
        stated = f"{allowed:g}" if allowed is not None else f"{METRIC_TOLERANCE:g} of its size"
        yield f"  {name} equal within {stated}; farthest apart {distance:.3g}"


def context(first: First, words: Words | None) -> Iterator[str]:
    """Lines about the first difference."""
    pair, difference = first.pair, first.differences[0]
    yield f"first difference: {pair.subject}, entry {pair.number}, {pair.at:.3f} s, {pair.client}"
    for each in first.differences[:4]:
        yield f"  {each.field}: recorded {shown(each.recorded)}, now {shown(each.now)}"
    if len(first.differences) > 4:
        yield f"  and {len(first.differences) - 4} more fields"
    if ".record.tokens[" in difference.field:
        yield from _tokens(pair, difference, words)


def shown(value: Any) -> str:
    if isinstance(value, dict) and "record" in value and "header" in value:  # a put that the other side lacks
        value = {name: each for name, each in value["record"].items() if not isinstance(each, np.ndarray)}
    text = f"{value.shape[0]} values" if isinstance(value, np.ndarray) else repr(jsonable(value)) if value != MISSING else MISSING
    return text if len(text) <= 160 else text[:157] + "..."


def _tokens(pair: Pair, difference: Difference, words: Words | None) -> Iterator[str]:
    at = int(difference.field.rpartition("[")[2].rstrip("]"))
    if pair.now is None or not pair.now.content.get("puts"):
        return
    for name, answer in (("recorded", pair.recorded), ("now", pair.now)):
        record = answer.content["puts"][0]["record"]
        tokens, logprobs = record["tokens"], record.get("logprobs", np.empty(0))
        text = "".join(words(int(token)) for token in tokens[max(0, at - AROUND) : at + 1]) if words is not None else ""
        chance = f", probability {np.exp(float(logprobs[at])):.6f}" if at < len(logprobs) else ""
        token = f"token {int(tokens[at])}" if at < len(tokens) else "no token"
        yield f"  {name}: {token}{chance}" + (f", ...{text!r}" if text else "")
