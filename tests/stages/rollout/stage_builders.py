"""Turns, install orders, and a loop that works until nothing is left: what drives the rollout stage in tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from schemas.codec import encode_record, make_header
from schemas.messages import InstallOrder
from schemas.records import Install, Sampling, Turn
from stages.rollout.stage import Rollout
from stages.service.stage import Delivery
from tests.stages.env.builders import a_delivery

STOP = 99


def order(stage: Rollout, record: Install) -> None:
    frames = encode_record(record)
    header = make_header(record, frames, pipeline="test", queue="installs", newest_version=record.number)
    stage.order(InstallOrder(header=header), frames)


def digest(*tokens: int) -> int:
    return xxhash.xxh3_64_intdigest(np.asarray(tokens, np.int32).tobytes())


def a_turn(lease: int, tokens: list[int], *, before: tuple[int, ...] = (), held: int = 0, **fields: Any) -> Delivery:
    """A turn after `before`, of which the replica is believed to hold the first `held` tokens."""
    sampling = Sampling(max_new_tokens=8, stop_tokens=(STOP,))
    turn = Turn(context_digest=digest(*before), sampling=sampling, seed=5, tokens=np.asarray(tokens, np.int32))
    context = [np.asarray(before[held:], np.int32)] if len(before) > held else []
    counted = {"turn": 0, "context_tokens": len(before), "new_tokens": len(tokens)}
    return a_delivery(turn, lease, "turns", context=context, held=held, **{**counted, **fields})


def finish(stage: Rollout) -> None:
    while stage.work():
        pass
