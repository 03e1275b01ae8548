"""The env stage against its link: what it commits, with which leases, and what becomes of user code's faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from schemas.errors import ConfigError
from schemas.messages import Abort
from schemas.records import Episode, Turn, VersionSpan
from stages.env.environment import Done, Observation
from stages.env.seeds import turn_seed
from stages.env.stage import Env
from tests.stages.env.builders import (
    CHARACTERS,
    FakeLink,
    SentPut,
    a_delivery,
    a_model_directory,
    a_ticket,
    a_tokenizer,
    a_welcome,
    an_action,
    work_until,
)
from tests.stages.env.environments import Answers, Blocks, Waits

HERE = "tests.stages.env.environments"
NEWLINE = CHARACTERS.index("\n")


class Play:
    """A started stage and its link; answers turns as a policy would."""

    def __init__(self, stage: Env, link: FakeLink) -> None:
        self.stage, self.link = stage, link

    def commits(self, number: int) -> None:
        work_until(self.stage, lambda: len(self.link.commits) >= number)

    def last_put(self) -> SentPut:
        return self.link.commits[-1].puts[0]

    def say(self, text: str, lease: int, **changes: Any) -> None:
        """Answers the last turn, then works until the stage has committed what follows."""
        put = self.last_put()
        action = an_action(put, np.asarray(a_tokenizer().encode(text).ids), **changes)
        before = len(self.link.commits)
        self.stage.deliver(action_of(put, action, lease))
        self.commits(before + 1)


def action_of(put: SentPut, action: Any, lease: int, **changes: Any) -> Any:
    header = put.header
    fields = {"ticket": header.ticket, "attempt": header.attempt, "turn": header.turn, "purpose": header.purpose}
    return a_delivery(action, lease, "actions", **{**fields, **changes})


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Play]]:
    stages: list[Env] = []

    def make(environment: str = "Echo", **sections: dict[str, Any]) -> Play:
        sections["stages__env"] = {"environment": f"{HERE}:{environment}"} | sections.get("stages__env", {})
        stage, link = Env(), FakeLink()
        stage.start(a_welcome(a_model_directory(tmp_path), **sections), link)
        stages.append(stage)
        return Play(stage, link)

    yield make
    for stage in stages:
        stage.close()


def test_a_session_commits_once_a_turn_and_acks_its_ticket_last(begin: Callable[..., Play]) -> None:
    play = begin(stages__env={"environment": "stages.env.calculator:Calculator"})
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    play.say("[1+1]\n", 42)
    play.say("A2\n", 43)
    assert [(commit.acks, [put.queue for put in commit.puts]) for commit in play.link.commits] == [
        ((), ["turns"]),
        ((42,), ["turns"]),
        ((43, 40), ["episodes"]),
    ]
    episode = play.last_put().record
    assert isinstance(episode, Episode)
    assert episode.outcome == {"answer": "2", "tool_calls": 1}
    assert play.stage.drained()


def test_only_appended_text_is_tokenised_and_the_context_is_a_prefix(begin: Callable[..., Play]) -> None:
    play = begin()
    play.stage.deliver(a_ticket())
    play.commits(1)
    context = np.empty(0, np.int32)
    for lease, text in enumerate(["[1+1]\n", "=\n", "A2\n"], 50):
        put = play.last_put()
        turn = put.record
        assert isinstance(turn, Turn)
        assert (put.header.context_tokens, put.header.new_tokens) == (context.size, turn.tokens.size)
        assert turn.context_digest == xxhash.xxh3_64_intdigest(context.tobytes())
        context = np.concatenate([context, turn.tokens, np.asarray(a_tokenizer().encode(text).ids, np.int32)])
        play.say(text, lease)
    episode = play.last_put().record
    assert episode.tokens[: context.size].tolist() == context.tolist()
    assert episode.outcome["heard"] == ["[1+1]\n", "=\n", "A2\n"]


def test_the_mask_covers_exactly_the_sampled_tokens(begin: Callable[..., Play]) -> None:
    play = begin()
    play.stage.deliver(a_ticket())
    play.commits(1)
    play.say("[1+1]\n", 50, version=3)
    play.say("A2\n", 51, version=5, logprob=-0.25)
    put = play.last_put()
    episode = put.record
    sampled = [index for span in episode.sample_spans for index in range(span.start, span.end)]
    assert np.flatnonzero(episode.loss_mask).tolist() == sampled
    assert np.flatnonzero(episode.logprobs).tolist() == sampled
    assert episode.sample_spans == (VersionSpan(5, 11, 3), VersionSpan(17, 20, 5))
    assert [tuple(a) for a in ((b.start, b.action, b.end) for b in episode.turns)] == [(0, 5, 11), (11, 17, 20), (20, 21, 21)]
    header = put.header
    assert (header.new_tokens, header.trainable_tokens) == (episode.tokens.size, 9)
    assert (header.oldest_version, header.newest_version, header.truncated) == (3, 5, False)


def test_seeds_differ_by_turn_and_member_and_never_by_attempt(begin: Callable[..., Play]) -> None:
    play = begin()
    seeds = {}
    for number, (ticket, member, attempt) in enumerate([(7, 0, 1), (7, 0, 2), (8, 1, 1)]):
        play.stage.deliver(a_ticket(40 + number, ticket=ticket, member=member, attempt=attempt))
        play.commits(2 * number + 1)
        first = play.last_put().record.seed
        play.say("=\n", 60 + number)
        seeds[member, attempt] = (first, play.last_put().record.seed)
    assert seeds[0, 1] == seeds[0, 2] == (turn_seed(991, 0, 0), turn_seed(991, 0, 1))
    assert len({*seeds[0, 1], *seeds[1, 1]}) == 4


def test_all_attempts_of_a_ticket_play_the_same_environment(begin: Callable[..., Play]) -> None:
    play = begin()
    ends = []
    for attempt in (1, 2):
        play.stage.deliver(a_ticket(40 + attempt, attempt=attempt))
        play.commits(2 * attempt - 1)
        play.say("A\n", 50 + attempt)
        ends.append(play.last_put().record)
    assert (ends[0].task, ends[0].outcome) == (ends[1].task, ends[1].outcome)


def test_eval_turns_are_sampled_at_the_evaluations_temperature(begin: Callable[..., Play]) -> None:
    play = begin(evaluation={"temperature": 0.0}, sampling={"temperature": 0.7, "max_turn_tokens": 12})
    play.stage.deliver(a_ticket(40, purpose="eval"))
    play.commits(1)
    play.stage.deliver(a_ticket(41, ticket=8))
    play.commits(2)
    put, trained = play.link.commits[0].puts[0], play.last_put()
    assert put.header.purpose == "eval"
    assert (put.record.sampling.temperature, trained.record.sampling.temperature) == (0.0, 0.7)
    assert put.record.sampling.max_new_tokens == 12


@pytest.mark.parametrize(("environment", "stop"), [("Echo", "\n"), ("UntilEnd", "]")])
def test_a_turn_ends_with_the_environments_stop_text(begin: Callable[..., Play], environment: str, stop: str) -> None:
    play = begin(environment)
    play.stage.deliver(a_ticket())
    play.commits(1)
    assert play.last_put().record.sampling.stop_tokens == (CHARACTERS.index(stop),)


@pytest.mark.parametrize(
    ("environment", "boundary", "told"),
    [
        ("Raises", "env", "step raised ValueError: the tool fell over"),
        ("Exits", "env", "step raised SystemExit: 3"),
        ("CancelsItself", "env", "step raised CancelledError"),
    ],
)
def test_an_exception_of_user_code_fails_its_ticket_and_nothing_else(
    begin: Callable[..., Play], environment: str, boundary: str, told: str
) -> None:
    play = begin(environment)
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    play.say("A\n", 50)
    commit = play.link.commits[-1]
    assert (commit.acks, commit.puts) == ((), ())
    assert [(fail.lease, fail.boundary) for fail in commit.fails] == [(40, boundary)]
    assert told in commit.fails[0].reason
    assert play.stage.drained()
    play.stage.deliver(a_ticket(41, ticket=8))
    play.commits(3)
    assert play.last_put().queue == "turns"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (None, "step returned NoneType, not an Observation or Done"),
        (Observation(7), "not str"),  # type: ignore[arg-type]
        (Observation("\ud800"), "not Unicode"),
        (Done(outcome={"a": object()}), "the outcome holds what JSON cannot"),
        (Done(outcome={"a": 1 << 80}), "the outcome holds what JSON cannot"),
        (Done(outcome=[]), "not a dict"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_reply_is_a_failure_by_name(begin: Callable[..., Play], reply: Any, told: str) -> None:
    Answers.reply = reply
    play = begin("Answers")
    play.stage.deliver(a_ticket())
    play.commits(1)
    play.say("1\n", 50)
    assert told in play.link.commits[-1].fails[0].reason


@pytest.mark.parametrize(("environment", "told"), [("Mute", "no tokens"), ("Foreign", "the tokenizer refuses")])
def test_an_opening_that_cannot_be_answered_is_a_failure(begin: Callable[..., Play], environment: str, told: str) -> None:
    play = begin(environment)
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    assert told in play.link.commits[0].fails[0].reason


def test_a_step_past_its_deadline_is_a_failure(begin: Callable[..., Play]) -> None:
    play = begin("Waits", stages__env={"turn_deadline_s": 0.01})
    play.stage.deliver(a_ticket())
    play.commits(1)
    play.say("1\n", 50)
    assert play.link.commits[-1].fails[0].reason == "turn deadline: step took more than 0.01 s"


def test_an_episode_past_its_deadline_is_truncated_not_failed(begin: Callable[..., Play], monkeypatch: pytest.MonkeyPatch) -> None:
    Waits.entered.clear()
    play = begin("Waits", stages__env={"turn_deadline_s": 900.0, "episode_deadline_s": 300.0})
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    put = play.last_put()
    play.stage.deliver(action_of(put, an_action(put, np.array([NEWLINE])), 50))
    play.stage.work()
    assert Waits.entered.wait(20)
    loop = play.stage._running()._loop
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + 301.0)
    loop.call_soon_threadsafe(lambda: None)
    play.commits(2)
    assert play.link.commits[-1].acks == (50, 40)
    assert play.last_put().record.truncated
    assert play.last_put().header.truncated


def test_a_deadline_before_the_first_action_is_a_failure(begin: Callable[..., Play]) -> None:
    play = begin("Echo", stages__env={"episode_deadline_s": 0.05})
    play.stage.deliver(a_ticket(40))
    play.commits(2)
    assert play.link.commits[-1].fails[0].reason.startswith("episode deadline")


def test_an_episode_never_passes_its_token_limit(begin: Callable[..., Play]) -> None:
    play = begin("LongWinded", stages__env={"max_episode_tokens": 40})
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    play.say("1\n", 50)
    episode = play.last_put().record
    assert episode.truncated
    assert episode.tokens.size == 7
    assert play.link.commits[-1].acks == (50, 40)


def test_text_that_cannot_fit_is_not_even_encoded_and_truncates_the_episode(begin: Callable[..., Play]) -> None:
    play = begin("Endless", stages__env={"max_episode_tokens": 40})
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    play.say("1\n", 50)
    assert play.last_put().record.truncated


def test_an_opening_that_cannot_fit_fails_the_session_with_the_limit(begin: Callable[..., Play]) -> None:
    play = begin("EndlessAtOnce", stages__env={"max_episode_tokens": 40})
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    assert "no room for 100000 characters" in play.link.commits[-1].fails[0].reason


def test_a_turn_may_say_no_more_than_what_is_left(begin: Callable[..., Play]) -> None:
    play = begin("Echo", stages__env={"max_episode_tokens": 11})
    play.stage.deliver(a_ticket())
    play.commits(1)
    assert play.last_put().record.sampling.max_new_tokens == 6
    play.say("12\n", 50)
    assert play.last_put().queue == "episodes", "8 tokens and 3 of observation leave no room for an answer"
    assert play.last_put().record.truncated


def test_an_episode_is_truncated_after_max_turns(begin: Callable[..., Play]) -> None:
    play = begin("Echo", stages__env={"max_turns": 2})
    play.stage.deliver(a_ticket())
    play.commits(1)
    play.say("1\n", 50)
    play.say("2\n", 51)
    assert play.last_put().record.truncated
    assert len(play.last_put().record.turns) == 2


def test_an_aborted_ticket_ends_its_session_silently(begin: Callable[..., Play]) -> None:
    play = begin("Waits")
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    put = play.last_put()
    play.stage.order(Abort(lease=40), ())
    assert play.stage.drained()
    play.stage.deliver(action_of(put, an_action(put, np.array([NEWLINE])), 50))
    play.stage.deliver(a_ticket(41, ticket=8))
    play.commits(2)
    assert len(play.link.commits) == 2
    assert play.last_put().header.ticket == 8


def test_an_action_of_an_old_session_or_turn_is_ignored(begin: Callable[..., Play]) -> None:
    play = begin()
    play.stage.deliver(a_ticket(40, attempt=2))
    play.commits(1)
    put = play.last_put()
    action = an_action(put, np.array([NEWLINE]))
    play.stage.deliver(action_of(put, action, 50, attempt=1))
    play.stage.deliver(action_of(put, action, 51, turn=4))
    play.say("A\n", 52)
    assert play.link.commits[-1].acks == (52, 40)


def test_an_action_delivered_twice_is_worked_off_once_under_its_last_lease(begin: Callable[..., Play]) -> None:
    play = begin()
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    put = play.last_put()
    action = an_action(put, np.asarray(a_tokenizer().encode("1\n").ids))
    play.stage.deliver(action_of(put, action, 50))
    play.stage.deliver(action_of(put, action, 51))
    play.commits(2)
    play.say("A\n", 52)
    assert [commit.acks for commit in play.link.commits] == [(), (51,), (52, 40)]


@pytest.mark.parametrize(
    "spoil",
    [
        {"sample_spans": (VersionSpan(0, 2, 3),)},
        {"logprobs": np.zeros(1, np.float32)},
        {"kept_counts": np.ones(2, np.int32)},
    ],
)
def test_an_action_that_does_not_fit_its_session_fails_the_ticket(begin: Callable[..., Play], spoil: dict[str, Any]) -> None:
    import msgspec

    play = begin()
    play.stage.deliver(a_ticket(40))
    play.commits(1)
    put = play.last_put()
    action = msgspec.structs.replace(an_action(put, np.array([1, NEWLINE])), **spoil)
    play.stage.deliver(action_of(put, action, 50))
    play.commits(2)
    assert [(fail.lease, fail.boundary) for fail in play.link.commits[-1].fails] == [(40, "rollout")]


def test_many_sessions_play_side_by_side(begin: Callable[..., Play]) -> None:
    play = begin()
    for number in range(50):
        play.stage.deliver(a_ticket(100 + number, ticket=number, member=number))
    play.commits(50)
    turns = {commit.puts[0].header.ticket: commit.puts[0] for commit in play.link.commits}
    for ticket, put in turns.items():
        play.stage.deliver(action_of(put, an_action(put, np.asarray(a_tokenizer().encode("A\n").ids)), 200 + (ticket or 0)))
    work_until(play.stage, play.stage.drained)
    assert {commit.acks for commit in play.link.commits[50:]} == {(200 + number, 100 + number) for number in range(50)}


def test_user_code_that_blocks_its_thread_is_noticed_and_named(tmp_path: Path) -> None:
    Blocks.entered.clear()
    Blocks.let_go.clear()
    now = [0.0]
    stage, link = Env(clock=lambda: now[0]), FakeLink()
    stage.start(a_welcome(a_model_directory(tmp_path), stages__env={"environment": f"{HERE}:Blocks"}), link)
    play = Play(stage, link)
    stage.deliver(a_ticket(40))
    play.commits(1)
    put = play.last_put()
    stage.deliver(action_of(put, an_action(put, np.array([NEWLINE])), 50))
    stage.work()
    assert Blocks.entered.wait(20)
    assert stage.responsive()
    now[0] = 3.0
    assert not stage.responsive()
    assert "ticket 7 (attempt 1), which blocks its thread for 3 s" in stage.waiting()
    Blocks.let_go.set()
    play.commits(2)
    work_until(stage, lambda: True)
    stage.close()


def test_the_ready_hello_names_window_and_user_code(begin: Callable[..., Play]) -> None:
    ready = begin("Echo", stages__env={"sessions": 9}).stage.hello()
    assert ready.windows == {"tickets": 9}
    assert list(ready.user_code) == [f"{HERE}:Echo"]


def test_a_waiting_stage_says_on_whom(begin: Callable[..., Play]) -> None:
    play = begin()
    assert play.stage.waiting() == "on the broker for tickets"
    play.stage.deliver(a_ticket())
    play.commits(1)
    assert play.stage.waiting().startswith("on rollout for 1 actions")
    assert play.stage.stats()["sessions_waiting"] == 1


def test_a_model_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer.json"):
        Env().start(a_welcome(tmp_path), FakeLink())


def test_a_stage_that_needs_no_torch_does_not_load_it() -> None:
    import subprocess
    import sys

    probe = "import sys, stages.env.stage, stages.reward.stage; assert 'torch' not in sys.modules and 'zmq' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True)
