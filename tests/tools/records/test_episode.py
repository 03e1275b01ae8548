"""An episode's tokens carry what the trainer will use: mask, log-prob, version, advantage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.codec import encode_record, make_header
from schemas.messages import GroupRewards
from schemas.records import Action, Episode, Sampling, Turn, TurnBounds, VersionSpan, no_tokens
from stages.actor_train.core.advantages import advantage_of, spreads_by_group
from tests.tools.records.recorded import entries_of, write_run
from tests.tools.sim.scenarios import a_scenario
from tools.records import episode, views
from tools.records.conversing import conversation
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.record import Opened, opened
from tools.records.selection import Selection
from tools.records.tables import StepRow

SPANS = (VersionSpan(2, 4, 3), VersionSpan(6, 8, 4))
PLAN = StepRow(step=5, number=9, at=1.0, oldest_allowed=4, tickets=(7,), groups=((3, (0.0, 1.0, 1.0)),))


def a_record(record: Turn | Action | Episode, queue: str) -> Opened:
    """As the inspector opens it."""
    import msgspec

    from broker.core.events import Received, encode_event
    from broker.journal import Entry, Position
    from schemas.messages import Commit

    frames = [bytes(frame) for frame in encode_record(record)]
    header = make_header(record, frames, pipeline="p", queue=queue, ticket=7, group=3)
    event = encode_event(Received(sender="env-0/a", message=Commit(puts=(msgspec.structs.replace(header),))))
    return opened(Entry(1, 0.5, event, tuple(frames), Position(0, 0)), 0)


def an_episode() -> Opened:
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.uint8)
    return a_record(
        Episode(
            task={"q": "?"}, outcome={}, turns=(TurnBounds(0, 2, 4), TurnBounds(4, 6, 8)), sample_spans=SPANS, kv_spans=(),
            tokens=np.arange(10, 18, dtype=np.int32), loss_mask=mask, logprobs=(-0.25 * mask).astype(np.float32), kept_ids=no_tokens(),
            kept_counts=no_tokens(),
        ), "episodes",
    )  # fmt: skip


def test_each_token_shows_who_said_it_its_logprob_version_and_advantage() -> None:
    raw = episode.of_episode(an_episode())
    pieces = episode.pieces_of(raw, lambda token: f"<{token}>", -0.5, oldest_allowed=4)
    assert [(piece.who, piece.turn, len(piece.tokens)) for piece in pieces] == [
        ("environment", 0, 2), ("policy", 0, 2), ("environment", 1, 2), ("policy", 1, 2),
    ]  # fmt: skip
    first, old, new = pieces[0].tokens[0], pieces[1].tokens[0], pieces[3].tokens[0]
    assert (first.sampled, first.logprob, first.version, first.advantage) == (False, None, None, None)
    assert (old.id, old.text, old.sampled, old.logprob, old.version, old.advantage, old.masked) == (12, "<12>", True, -0.25, 3, -0.5, True)
    assert (new.version, new.masked) == (4, False)


def test_a_session_without_an_episode_is_put_together_from_turns_and_actions() -> None:
    whole = episode.of_episode(an_episode())
    empty = no_tokens()
    records = []
    for start, action, end in whole.bounds:
        turn = Turn(context_digest=0, sampling=Sampling(), seed=1, tokens=whole.ids[start:action])
        spans = tuple(span for span in SPANS if span.start == action)
        said = Action(finish_reason="stop", sample_spans=spans, kv_spans=(), tokens=whole.ids[action:end],
                      logprobs=whole.logprobs[action:end], kept_ids=empty, kept_counts=empty)  # fmt: skip
        records += [a_record(turn, "turns"), a_record(said, "actions")]
    raw = episode.of_messages(records)
    for one, two in zip((raw.ids, raw.sampled, raw.logprobs), (whole.ids, whole.sampled, whole.logprobs), strict=True):
        assert np.array_equal(one, two)
    assert (raw.bounds, [tuple(span) for span in raw.spans]) == (whole.bounds, [tuple(span) for span in whole.spans])


def test_the_advantage_is_the_trainers() -> None:
    spreads = spreads_by_group([GroupRewards(group=3, rewards=(0.0, 1.0, 1.0))])
    assert episode.advantage_in(PLAN, 3, 1.0) == advantage_of(spreads, 3, 1.0)
    assert episode.advantage_in(PLAN, 4, 1.0) is None
    assert episode.advantage_in(None, 3, 1.0) is None


def test_colours_are_added_only_where_they_are_asked_for() -> None:
    raw = episode.of_episode(an_episode())
    talk = episode.Conversation(ticket=7, attempt=1, group=3, source="episode", pieces=episode.pieces_of(raw, None, None, 0))
    plain, coloured = ("\n".join(views.conversation_lines(talk, coloured=colour)) for colour in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[32m" in coloured
    assert "no advantage" in plain


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    run = write_run(tmp_path_factory.mktemp("talk") / "run", entries_of(a_scenario(1)))
    with Look(open_run(str(run))) as opened_run:
        yield opened_run


def test_every_trained_session_of_a_run_has_its_advantages(look: Look, tmp_path: Path) -> None:
    for row in look.all_rows(Selection(step=2, queue="episodes")):
        talk = conversation(look, int(row["ticket"]), int(row["attempt"]))
        sampled = [token for piece in talk.pieces for token in piece.tokens if token.sampled]
        assert (talk.source, talk.step) == ("episode", 2)
        assert sampled
        assert all(token.advantage is not None and token.version is not None for token in sampled)
        assert len({token.advantage for token in sampled}) == 1


def test_filters_agree_with_a_look_at_every_header(look: Look) -> None:
    rows = look.all_rows(Selection(begin=0.0))
    names = look.index.meta.queues
    tests: tuple[tuple[Selection, Callable[[Any], bool]], ...] = (
        (Selection(queue="scored", reward=("<", 0.5)), lambda row: names[row["queue"]] == "scored" and row["reward"] < 0.5),
        (Selection(group=3), lambda row: row["group"] == 3),
        (Selection(session=(9, 1)), lambda row: row["ticket"] == 9 and row["attempt"] in (1, -1)),
        (Selection(stage="reference"), lambda row: names[row["queue"]] in ("scored", "samples", "installs")),
        (Selection(version=2, queue="actions"), lambda row: names[row["queue"]] == "actions" and row["oldest"] <= 2 <= row["newest"]),
        (Selection(begin=2.0, end=3.0), lambda row: 2.0 <= row["at"] <= 3.0),
    )
    for wanted, test in tests:
        expected = [row["number"] for row in rows if test(row)]
        assert list(look.all_rows(wanted)["number"]) == expected, wanted
        assert expected, wanted


def test_what_a_model_wrote_cannot_steer_the_terminal() -> None:
    raw = episode.of_episode(an_episode())
    pieces = episode.pieces_of(raw, lambda token: "\x1b[2Jgone\r", None, 0)
    talk = episode.Conversation(ticket=7, attempt=1, group=3, source="episode", pieces=pieces)
    shown = "\n".join(views.conversation_lines(talk, coloured=False))
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "\\x1b[2Jgone\\r" in shown
