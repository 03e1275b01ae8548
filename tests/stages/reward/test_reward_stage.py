"""The reward stage against its link, with real worker processes: what it scores, and what becomes of user code's faults."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.errors import ConfigError
from schemas.messages import Abort
from schemas.records import Episode, Sample, TurnBounds, VersionSpan, no_tokens
from stages.reward.stage import Reward
from stages.service.stage import Delivery
from tests.stages.env.builders import FakeLink, a_delivery, a_model_directory, a_tokenizer, a_welcome, work_until

HERE = "tests.stages.reward.verifiers"


class Bench:
    """A started stage, its link, and the clock that it reads."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.stage, self.link = Reward(clock=lambda: time.monotonic() + self.ahead), FakeLink()

    def judged(self, number: int) -> None:
        work_until(self.stage, lambda: len(self.link.commits) >= number)

    def reason(self) -> str:
        return self.link.commits[-1].fails[0].reason


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(verifier: str, **sections: dict[str, Any]) -> Bench:
        sections["stages__reward"] = {"verifier": f"{HERE}:{verifier}"} | sections.get("stages__reward", {})
        bench = Bench()
        benches.append(bench)
        bench.stage.start(a_welcome(a_model_directory(tmp_path), **sections), bench.link)
        return bench

    yield make
    for bench in benches:
        bench.stage.close()


def an_episode(lease: int, *, task: dict[str, Any] | None = None, outcome: dict[str, Any] | None = None, **fields: Any) -> Delivery:
    """Two turns: a call of the tool, then the answer."""
    texts = ["1+1=\n", "[1+1]\n", "2\n", "A2\n"]
    pieces = [np.asarray(a_tokenizer().encode(text).ids, np.int32) for text in texts]
    ends = np.cumsum([piece.size for piece in pieces]).tolist()
    mask = np.concatenate([np.full(piece.size, at % 2, np.uint8) for at, piece in enumerate(pieces)])
    episode = Episode(
        task=task or {"index": 0},
        outcome={"answer": "2", "tool_calls": 1} if outcome is None else outcome,
        turns=(TurnBounds(0, ends[0], ends[1]), TurnBounds(ends[1], ends[2], ends[3])),
        sample_spans=(VersionSpan(ends[0], ends[1], 2), VersionSpan(ends[2], ends[3], 3)),
        kv_spans=(VersionSpan(0, ends[2], 2),),
        near_ties=4,
        tokens=np.concatenate(pieces),
        loss_mask=mask,
        logprobs=-0.5 * mask.astype(np.float32),
        kept_ids=no_tokens(),
        kept_counts=no_tokens(),
    )
    counted = {"new_tokens": ends[3], "trainable_tokens": int(mask.sum()), "oldest_version": 2, "newest_version": 3, "truncated": False}
    return a_delivery(episode, lease, "episodes", **{**counted, **fields})


def test_an_episode_becomes_a_sample_with_its_weighted_reward(begin: Callable[..., Bench]) -> None:
    bench = begin("parts", stages__reward={"weights": {"turns": -0.1}}, sampling={"temperature": 0.8})
    delivery = an_episode(60, member=5)
    bench.stage.deliver(delivery)
    bench.judged(1)
    (commit,) = bench.link.commits
    sample, header = commit.puts[0].record, commit.puts[0].header
    assert isinstance(sample, Sample)
    assert (commit.acks, commit.puts[0].queue) == ((60,), "scored")
    assert sample.reward_parts == {"right": 1.0, "turns": 2.0}
    assert sample.reward == header.reward == pytest.approx(0.8)
    assert (sample.tool_calls, sample.near_ties, sample.temperature) == (1.0, 4, 0.8)
    assert sample.segments == ((0, 16),)
    assert (header.member, header.new_tokens, header.trainable_tokens) == (5, 16, 9)
    assert (header.oldest_version, header.newest_version, header.truncated) == (2, 3, False)
    episode = delivery.record(Episode)
    for name in ("tokens", "loss_mask", "logprobs", "sample_spans", "kv_spans"):
        assert np.array_equal(getattr(sample, name), getattr(episode, name))
    assert bench.stage.drained()


def test_the_shipped_verifier_judges_the_shipped_environments(begin: Callable[..., Bench]) -> None:
    bench = begin("", stages__reward={"verifier": "stages.reward.exact_match:exact_match"})
    bench.stage.deliver(an_episode(60, task={"answer": "2"}))
    bench.stage.deliver(an_episode(61, task={"answer": "3"}))
    bench.judged(2)
    assert [commit.puts[0].record.reward for commit in bench.link.commits] == [1.0, 0.0]


def test_eval_episodes_go_the_same_way_at_their_own_temperature(begin: Callable[..., Bench]) -> None:
    bench = begin("parts", evaluation={"temperature": 0.0})
    bench.stage.deliver(an_episode(60, purpose="eval"))
    bench.judged(1)
    put = bench.link.commits[0].puts[0]
    assert (put.header.purpose, put.record.temperature) == ("eval", 0.0)


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("raise", "raised ZeroDivisionError: division by zero"),
        ("exit", "raised SystemExit: 3"),
        ("die", "ended its worker process with status 7"),
        ("nan", "rewards are finite"),
        ("infinite", "rewards are finite"),
        ("word", "not a number"),
        ("none", "not a number"),
        ("huge", "add up to inf"),
    ],
)
def test_what_a_verifier_does_wrong_fails_its_record_and_nothing_else(begin: Callable[..., Bench], deed: str, told: str) -> None:
    bench = begin("bad")
    bench.stage.deliver(an_episode(60, task={"do": deed}))
    bench.stage.deliver(an_episode(61, task={"do": "good"}))
    bench.judged(2)
    failed, scored = bench.link.commits
    assert [(fail.lease, fail.boundary) for fail in failed.fails] == [(60, "verifier")]
    assert told in failed.fails[0].reason
    assert (scored.acks, scored.puts[0].record.reward) == ((61,), 0.25)


def test_a_plain_verifier_that_hangs_costs_its_worker_not_the_stage(begin: Callable[..., Bench]) -> None:
    bench = begin("hangs", stages__reward={"timeout_s": 30.0})
    (hung,) = bench.stage._running().pids()
    bench.stage.deliver(an_episode(59, task={"index": 1}))
    bench.judged(1)
    bench.stage.deliver(an_episode(60))
    bench.stage.deliver(an_episode(61, task={"index": 1}))
    bench.stage.work()
    assert bench.link.commits[1:] == []
    bench.ahead = 31.0
    assert "2 episodes, the oldest since 31 s" in bench.stage.waiting()
    bench.stage.work()
    bench.ahead = 0.0
    bench.judged(3)
    assert bench.link.commits[1].fails[0].reason == "the verifier took more than 30 s"
    assert bench.link.commits[2].acks == (61,)
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


def test_async_verifiers_judge_side_by_side(begin: Callable[..., Bench]) -> None:
    bench = begin("slow_first")
    for lease in (61, 63, 65, 60):
        bench.stage.deliver(an_episode(lease, task={"index": lease}))
    bench.judged(4)
    assert {commit.acks[0] for commit in bench.link.commits} == {60, 61, 63, 65}


def test_an_async_verifier_past_its_limit_fails_its_record(begin: Callable[..., Bench]) -> None:
    bench = begin("never", stages__reward={"timeout_s": 0.05})
    bench.stage.deliver(an_episode(60))
    bench.judged(1)
    assert bench.reason() == "the verifier took more than 0.05 s"


def test_an_async_verifier_that_blocks_is_ended_and_the_others_are_judged_anew(begin: Callable[..., Bench]) -> None:
    bench = begin("hangs_asynchronously", stages__reward={"timeout_s": 30.0})
    bench.stage.deliver(an_episode(59, task={"index": 1}))
    bench.judged(1)
    bench.stage.deliver(an_episode(60))
    bench.ahead = 20.0
    bench.stage.deliver(an_episode(61, task={"index": 1}))
    bench.ahead = 40.0
    bench.stage.work()
    bench.judged(3)
    assert bench.link.commits[1].fails[0].lease == 60
    assert bench.link.commits[2].acks == (61,)


def test_an_aborted_episode_is_neither_scored_nor_failed(begin: Callable[..., Bench]) -> None:
    bench = begin("parts")
    bench.stage.deliver(an_episode(60))
    bench.stage.order(Abort(lease=60), ())
    assert bench.stage.drained()
    bench.stage.deliver(an_episode(61))
    bench.judged(1)
    assert [commit.acks for commit in bench.link.commits] == [(61,)]


def test_a_verifier_that_workers_cannot_import_stops_the_stage_by_name(begin: Callable[..., Bench]) -> None:
    bench = begin("not_in_workers")
    bench.stage.deliver(an_episode(60))
    with pytest.raises(ConfigError, match="verifiers:not_in_workers: the verifier ended its worker process"):
        bench.judged(1)


def test_a_wrong_name_is_told_before_the_first_episode(begin: Callable[..., Bench]) -> None:
    with pytest.raises(ConfigError, match="has no nothing"):
        begin("nothing")


def test_no_worker_outlives_the_stage(begin: Callable[..., Bench]) -> None:
    bench = begin("parts", stages__reward={"workers": 2})
    pids = bench.stage._running().pids()
    bench.stage.close()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_ready_hello_names_window_and_user_code(begin: Callable[..., Bench]) -> None:
    ready = begin("parts").stage.hello()
    assert ready.windows == {"episodes": 64}
    assert list(ready.user_code) == [f"{HERE}:parts"]


def test_a_truncated_episode_without_an_outcome_is_judged(begin: Callable[..., Bench]) -> None:
    bench = begin("parts")
    bench.stage.deliver(an_episode(60, outcome={}, truncated=True))
    bench.judged(1)
    put = bench.link.commits[0].puts[0]
    assert (put.record.tool_calls, put.header.truncated) == (None, True)
