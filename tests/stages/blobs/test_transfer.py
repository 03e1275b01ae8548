"""What a transfer asks, whatever its sources do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.blobs.core.transfer import (
    DAMAGED_MAX,
    PASSES_MAX,
    PAUSE_S,
    READING_MAX_S,
    Act,
    Ask,
    AskOutline,
    Done,
    GaveUp,
    Open,
    Transfer,
)

WINDOW = 4
PATIENCE_S = 5.0


class World:
    """Carries orders out against sources that behave as a script says, under a clock of its own."""

    def __init__(self, chunks: int, honest: set[int], sources: int, draw: st.DataObject) -> None:
        self.transfer = Transfer(tuple(f"s{index}" for index in range(sources)), WINDOW, PATIENCE_S)
        self.now = 0.0
        self.chunks, self.honest, self.draw = chunks, honest, draw
        self.here: set[int] = set()
        self.source: int | None = None
        self.questions: list[Act] = []
        self.asked: list[int] = []
        self.ended: Act | None = None

    def carry_out(self, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Open(source=source):
                    self.source, self.questions = source, []
                case AskOutline():
                    self.questions.append(act)
                case Ask(index=index):
                    assert index not in self.here, "a chunk that is here was asked for"
                    self.asked.append(index)
                    self.questions.append(act)
                case Done() | GaveUp():
                    assert self.ended is None
                    self.ended = act
        assert self.transfer.asked <= WINDOW
        assert self.ended is not None or self.transfer.next_wake() is not None, "it waits for nothing"

    def turn(self) -> None:
        due = self.transfer.next_wake()
        if not self.questions or self.transfer.source < 0:
            assert due is not None
            self.now = max(self.now, due)
            self.carry_out(self.transfer.wake(self.now))
            return
        question = self.questions.pop(self.draw.draw(st.integers(0, len(self.questions) - 1)))
        behaviour = (
            "good" if self.source in self.honest else self.draw.draw(st.sampled_from(["good", "cut", "absent", "damaged", "silent"]))
        )
        self.now += 0.01
        if behaviour == "silent":
            self.questions = []
        elif behaviour in ("cut", "absent"):
            self.carry_out(self.transfer.failed(behaviour, self.now))
        elif isinstance(question, Ask):
            if behaviour == "good":
                self.here.add(question.index)
            self.carry_out(self.transfer.arrived(question.index, self.now, whole=behaviour == "good"))
        else:
            self.carry_out(self.transfer.outlined(set(range(self.chunks)) - self.here, self.now))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_transfer_ends_whole_or_with_reasons(data: st.DataObject) -> None:
    sources = data.draw(st.integers(1, 4))
    honest = data.draw(st.sets(st.integers(0, sources - 1)))
    world = World(data.draw(st.integers(0, 12)), honest, sources, data)
    world.carry_out(world.transfer.begin(0.0))
    for _ in range(5_000):
        if world.ended is not None:
            break
        world.turn()
    assert world.ended is not None, "it never ended"
    if isinstance(world.ended, Done):
        assert world.here == set(range(world.chunks))
    else:
        assert not honest, "one source was sound all the time"
        assert isinstance(world.ended, GaveUp)
        assert world.ended.reason


def started(*sources: str) -> Transfer:
    transfer = Transfer(sources or ("one",), WINDOW, PATIENCE_S)
    transfer.begin(0.0)
    return transfer


def test_what_is_here_is_not_asked_for_again() -> None:
    assert started().outlined({2, 5}, 1.0) == [Ask(2), Ask(5)]


def test_nothing_missing_is_done_at_once() -> None:
    assert started().outlined((), 1.0) == [Done()]


def test_a_new_question_follows_each_answer() -> None:
    transfer = started()
    assert transfer.outlined(range(6), 1.0) == [Ask(0), Ask(1), Ask(2), Ask(3)]
    assert transfer.arrived(1, 1.0, whole=True) == [Ask(4)]
    assert transfer.arrived(1, 1.0, whole=True) == [], "an answer that comes twice counts once"


def test_a_silent_source_is_left_after_its_patience() -> None:
    transfer = started("one", "two")
    assert transfer.next_wake() == PATIENCE_S
    assert transfer.wake(PATIENCE_S - 0.01) == []
    assert transfer.wake(PATIENCE_S) == [Open(1), AskOutline()]


def test_every_answer_renews_the_patience() -> None:
    transfer = started("one", "two")
    transfer.outlined(range(9), 4.0)
    transfer.arrived(0, 8.0, whole=True)
    assert transfer.wake(12.9) == []
    assert transfer.wake(13.0) == [Open(1), AskOutline()]


def test_a_source_that_reads_the_file_through_is_waited_for_but_not_for_ever() -> None:
    transfer = started("one", "two")
    now = 0.0
    while now < READING_MAX_S:
        assert transfer.wake(now) == []
        transfer.reading(now)
        now += PATIENCE_S - 1
    transfer.reading(now)
    assert transfer.wake(now + PATIENCE_S) == [Open(1), AskOutline()]


def test_a_damaged_chunk_is_asked_for_again_and_too_many_end_a_source() -> None:
    transfer = started("one", "two")
    transfer.outlined([0], 1.0)
    for _ in range(DAMAGED_MAX - 1):
        assert transfer.arrived(0, 1.0, whole=False) == [Ask(0)]
    assert transfer.arrived(0, 1.0, whole=False) == [Open(1), AskOutline()]


def test_after_all_sources_it_pauses_and_tries_again_and_then_says_what_each_did() -> None:
    transfer = started("one", "two")
    now = 0.0
    for passed in range(1, PASSES_MAX + 1):
        assert transfer.failed("cut", now) == [Open(1), AskOutline()]
        acts = transfer.failed("absent", now)
        if passed < PASSES_MAX:
            assert acts == []
            assert transfer.next_wake() == now + PAUSE_S
            now += PAUSE_S
            assert transfer.wake(now) == [Open(0), AskOutline()]
    assert acts == [GaveUp("one: cut; two: absent")]
    assert transfer.next_wake() is None


def test_progress_starts_the_count_of_failures_over() -> None:
    transfer = started("one")
    now = 0.0
    transfer.outlined(range(50), now)
    for index in range(3 * PASSES_MAX):
        transfer.arrived(index, now, whole=True)
        assert transfer.failed("cut", now) == []
        now += PAUSE_S
        assert transfer.wake(now) == [Open(0), AskOutline()]
        transfer.outlined(range(index + 1, 50), now)


def test_without_a_source_it_says_what_to_do() -> None:
    (act,) = Transfer((), WINDOW, PATIENCE_S).begin(0.0)
    assert isinstance(act, GaveUp)
    assert "tidemill host" in act.reason
