"""What drives a stage without a broker: a link that keeps what it is told, deliveries, a config, a model directory's tokenizer."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from schemas.codec import Frame, check_header, encode_record, make_header
from schemas.header import Header
from schemas.messages import ClientMessage, Failure, Welcome
from schemas.records import Action, Record, Ticket, Turn, VersionSpan, no_tokens
from stages.service.stage import Delivery, Put, Stage

CHARACTERS = "0123456789+-=[]A?\n "
PATIENCE_S = 20.0
"""How long a test waits for another thread before it fails; never reached when all is well."""


@dataclass(frozen=True)
class SentPut:
    """A put as the broker would get it: encoded, checked."""

    queue: str
    record: Any
    header: Header
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class SentCommit:
    acks: tuple[int, ...]
    puts: tuple[SentPut, ...]
    fails: tuple[Failure, ...]


@dataclass
class FakeLink:
    """Keeps commits and messages; every put passes the real codec on its way."""

    run_directory: str = "/nowhere"
    commits: list[SentCommit] = field(default_factory=list)
    sent: list[ClientMessage] = field(default_factory=list)

    def commit(self, *, acks: Sequence[int] = (), puts: Sequence[Put] = (), fails: Sequence[Failure] = ()) -> None:
        self.commits.append(SentCommit(tuple(acks), tuple(encoded(put) for put in puts), tuple(fails)))

    def send(self, message: ClientMessage) -> None:
        self.sent.append(message)


def encoded(put: Put) -> SentPut:
    frames = tuple(encode_record(put.record))
    header = make_header(put.record, frames, pipeline="test", queue=put.queue, **put.fields)
    check_header(header, frames)
    return SentPut(put.queue, put.record, header, frames)


def a_delivery(record: Record, lease: int, queue: str, *, context: Sequence[np.ndarray] = (), held: int = 0, **fields: Any) -> Delivery:
    """`record` as the broker delivers it; `fields` are header fields."""
    put = encoded(Put(queue=queue, record=record, fields={"ticket": 7, "group": 3, "member": 0, "attempt": 1, "purpose": "train"} | fields))
    return Delivery(lease=lease, header=put.header, frames=put.frames, context=tuple(context), held_tokens=held)


def a_ticket(lease: int = 40, *, task_index: int = 0, seed: int = 991, **fields: Any) -> Delivery:
    return a_delivery(Ticket(task_index=task_index, seed=seed), lease, "tickets", **fields)


def a_tokenizer(characters: str = CHARACTERS) -> Tokenizer:
    """One token a character, as text comes back to the letter."""
    tokenizer = Tokenizer(models.WordLevel({character: index for index, character in enumerate(characters)}, unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def a_model_directory(at: Path, **config: Any) -> Path:
    """A folder with a tokenizer and a `config.json`, no weights."""
    at.mkdir(parents=True, exist_ok=True)
    a_tokenizer().save(str(at / "tokenizer.json"))
    (at / "config.json").write_text(json.dumps(config))
    return at


def a_welcome(model: Path, **sections: dict[str, Any]) -> Welcome:
    """`sections` by name with `__` for the dot: `stages__env={"sessions": 2}`."""
    config: dict[str, Any] = {
        "pipeline": {"name": "test"},
        "model": {"path": str(model)},
        "stages": {
            "env": {"environment": "stages.env.calculator:Calculator"},
            "reward": {"verifier": "stages.reward.exact_match:exact_match"},
        },
    }
    for name, values in sections.items():
        place = config
        for part in name.split("__"):
            place = place.setdefault(part, {})
        place.update(values)
    return Welcome(epoch=1, next_seq=1, config=config, run_directory="/nowhere", heartbeat_s=1.0)


def work_until(stage: Stage, done: Callable[[], bool]) -> None:
    """Works as the service loop does: wakes by the stage's descriptor, never sleeps."""
    while not done():
        if not stage.work() and not done():
            wake = stage.wake_fd()
            assert wake is not None, "the stage has no work and nothing to wake it"
            assert select.select([wake], [], [], PATIENCE_S)[0], "nothing happened"


def an_action(put: SentPut, tokens: np.ndarray, *, version: int = 3, finish_reason: str = "stop", logprob: float = -0.5) -> Action:
    """The answer to a put turn, in the positions that follow it."""
    assert isinstance(put.record, Turn)
    start = (put.header.context_tokens or 0) + (put.header.new_tokens or 0)
    span = VersionSpan(start, start + len(tokens), version)
    return Action(
        finish_reason=finish_reason,
        sample_spans=(span,),
        kv_spans=(VersionSpan(0, start, version),),
        tokens=np.asarray(tokens, np.int32),
        logprobs=np.full(len(tokens), logprob, np.float32),
        kept_ids=no_tokens(),
        kept_counts=no_tokens(),
    )
