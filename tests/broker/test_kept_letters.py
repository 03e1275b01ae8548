"""Frames of dead letters outlive their ticket, a restart and the segment that they were written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.arena import Arena
from broker.core.actions import Detach, Forget, Keep
from broker.journal import Position
from schemas.codec import encode_record, make_header
from schemas.edges import STAGES, Role
from schemas.messages import DeadAsked, DeadLetters
from schemas.records import Ticket
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until
from tests.tools.observe.stalls import FailingReward
from tools.observe.asking import Asking


def an_arena() -> tuple[Arena, tuple[bytes, ...]]:
    """An arena with messages 1 and 2, both in the journal."""
    record = Ticket(task_index=3, seed=4)
    frames = tuple(bytes(frame) for frame in encode_record(record))
    header = make_header(record, frames, pipeline="p", queue="tickets")
    arena = Arena()
    arena.take(Keep((1, 2)), (header, header), (*frames, *frames), Position(0, 4096))
    return arena, frames


def test_a_checkpoint_writes_a_letters_frames_out_and_lets_its_segment_go() -> None:
    arena, frames = an_arena()
    arena.take(Detach((1,)), (), ())
    kept = arena.contents()
    assert list(kept.placed) == [2]
    assert kept.inline == {1: frames}
    after = Arena()
    after.load(kept)
    assert after.frames_kept(1) == frames


def test_a_letter_that_goes_leaves_nothing_behind() -> None:
    arena, _ = an_arena()
    arena.take(Detach((1,)), (), ())
    arena.take(Forget((1,)), (), ())
    assert arena.frames_kept(1) == ()
    assert list(arena.contents().placed) == [2]
    assert arena.contents().inline == {}


@pytest.mark.parametrize("kills", [0, 2])
def test_letters_and_their_records_are_there_after_the_death_of_the_broker(tmp_path: Path, kills: int) -> None:
    config = a_run_config(tmp_path, "broker.member_retries=0", "evaluation.problems=8")
    others = [role for role in STAGES if role is not Role.REWARD]
    reward = FailingReward()
    reward.limit = 4
    with a_broker_process(tmp_path / "run", config) as broker, a_crew(broker.endpoint, others) as crew:
        crew.add(Role.REWARD, peer=reward)
        until(lambda: len(ask(broker.endpoint, 0).letters) == reward.limit, "letters come", broker.log)
        for _ in range(kills):
            broker.kill()
            broker.start()
        assert [letter["id"] for letter in ask(broker.endpoint, 0).letters] == [1, 2, 3, 4]
        with Asking(broker.endpoint, "test") as asking:
            answer = asking.ask(DeadAsked(id=2), DeadLetters, 30.0)
        assert answer is not None
        assert isinstance(answer[0], DeadLetters)
        assert sum(len(frame) for frame in answer[1]) == sum(size for _, _, size in answer[0].letters[0]["header"]["frames"])


def ask(endpoint: str, letter: int) -> DeadLetters:
    with Asking(endpoint, "test") as asking:
        answer = asking.ask(DeadAsked(id=letter), DeadLetters, 30.0)
    assert answer is not None
    assert isinstance(answer[0], DeadLetters)
    return answer[0]
