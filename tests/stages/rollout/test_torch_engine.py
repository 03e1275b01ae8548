from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from schemas.errors import EngineError
from schemas.records import VersionSpan
from stages.model.errors import TensorMismatchError
from stages.rollout.engine import SessionMismatchError, TurnRefusedError, TurnRequest, TurnResult, TurnTooLongError
from stages.rollout.torch_engine import TorchEngine
from tests.stages.rollout.builders import VOCABULARY, a_decoder, a_turn, an_engine, full_logprobs, play, some_tokens

WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_p": 0.8},
    {"top_k": 5},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9},
]


def a_random_turn(choice: random.Random, turn_id: int) -> TurnRequest:
    return a_turn(
        turn_id,
        appended=some_tokens(turn_id, choice.randrange(1, 40)),
        seed=choice.getrandbits(64),
        max_new_tokens=choice.randrange(1, 30),
        stop_tokens=tuple(choice.sample(range(VOCABULARY), choice.randrange(3))),
        **choice.choice(WAYS),
    )


def assert_same_turn(found: TurnResult, alone: TurnResult) -> None:
    """Equal, unless a near-tie was reported: then from that token on the two may differ."""
    if found.near_ties or alone.near_ties:
        first = min(tie.position for tie in found.near_ties + alone.near_ties) - alone.context_tokens
        assert found.tokens[:first].tolist() == alone.tokens[:first].tolist()
        return
    assert found.tokens.tolist() == alone.tokens.tolist()
    assert np.allclose(found.logprobs, alone.logprobs, atol=1e-5)
    assert found.finish_reason == alone.finish_reason
    assert found.kept_ids.tolist() == alone.kept_ids.tolist()


@pytest.mark.parametrize("limits", [{"max_rows": 64}, {"max_rows": 3}, {"max_rows": 16, "prefill_tokens": 4, "least_chunk_tokens": 3}])
def test_a_turn_has_the_same_tokens_whoever_joins_and_leaves_around_it(limits: dict[str, int]) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    choice = random.Random(seed)
    decoder = a_decoder()
    requests = {turn_id: a_random_turn(choice, turn_id) for turn_id in range(1, 41)}
    alone = {turn_id: play(an_engine(decoder), [request])[turn_id] for turn_id, request in requests.items()}

    engine, late = an_engine(decoder, **limits), list(requests.values())

    def join_at_any_token(step: int) -> None:
        while late and choice.random() < 0.5:
            engine.submit(late.pop())

    results: dict[int, TurnResult] = {}
    while late or engine.has_work():
        results |= play(engine, [late.pop()] if late else [], join_at_any_token)
    assert results.keys() == requests.keys()
    for turn_id, result in results.items():
        assert_same_turn(result, alone[turn_id])


def test_a_turn_is_not_disturbed_by_aborted_neighbours() -> None:
    decoder = a_decoder()
    kept = [a_turn(i, appended=some_tokens(i, 6), max_new_tokens=20) for i in range(1, 7)]
    doomed = [a_turn(i, appended=some_tokens(i, 9), max_new_tokens=30) for i in range(11, 17)]
    engine = an_engine(decoder, max_rows=12, least_chunk_tokens=4, prefill_tokens=4)
    for pair in zip(doomed, kept, strict=True):
        for request in pair:
            engine.submit(request)

    def abort_one(step: int) -> None:
        if step % 3 == 1 and step // 3 < len(doomed):
            assert engine.abort(doomed[step // 3].turn_id)

    results = play(engine, before_step=abort_one)
    assert sorted(results) == [request.turn_id for request in kept]
    for request in kept:
        assert_same_turn(results[request.turn_id], play(an_engine(decoder), [request])[request.turn_id])


@pytest.mark.parametrize("way", WAYS)
def test_logprobs_agree_with_a_forward_over_the_whole_context(way: dict[str, Any]) -> None:
    decoder = a_decoder()
    requests = [a_turn(i, appended=some_tokens(i, 3 + i), max_new_tokens=25, **way) for i in range(1, 9)]
    results = play(an_engine(decoder), requests)
    for request in requests:
        result = results[request.turn_id]
        expected = full_logprobs(decoder, request.appended, result, way.get("temperature", 1.0))
        assert np.abs(result.logprobs - expected).max() < 1e-5


def test_an_episode_of_many_turns_agrees_with_one_forward() -> None:
    decoder, context = a_decoder(), np.empty(0, np.int32)
    engine = an_engine(decoder)
    for turn in range(1, 7):
        request = a_turn(turn, (5, 1), appended=some_tokens(turn, turn), held=len(context), stop_tokens=(3,))
        result = play(engine, [request])[turn]
        context = np.concatenate((context, request.appended))
        assert np.abs(result.logprobs - full_logprobs(decoder, context, result)).max() < 1e-5
        context = np.concatenate((context, result.tokens))
        assert engine.held((5, 1)) == len(context)
    # Each token was computed once: nothing was prefilled again.
    assert engine.stats().prefilled_tokens + engine.stats().generated_tokens <= len(context) + 6


def test_draws_follow_the_reported_distribution() -> None:
    decoder = a_decoder()
    requests = [a_turn(i, appended=(7, 8, 9), seed=i, max_new_tokens=1, top_p=0.9, temperature=1.4) for i in range(4000)]
    results = play(an_engine(decoder, max_rows=256), requests)
    kept = results[0].kept_ids
    counts = np.bincount([int(r.tokens[0]) for r in results.values()], minlength=VOCABULARY)
    assert counts.sum() == counts[kept].sum()
    with torch.no_grad():
        logits = decoder(torch.tensor([[7, 8, 9]]))[0, -1].double() / 1.4
    expected = torch.softmax(logits[kept.astype(np.int64)], 0).numpy() * 4000
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    freedom = len(kept) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_the_stop_token_ends_the_turn_and_belongs_to_it() -> None:
    request = a_turn(1, max_new_tokens=60, stop_tokens=tuple(range(0, VOCABULARY, 3)))
    result = play(an_engine(), [request])[1]
    assert result.finish_reason == "stop"
    assert result.tokens[-1] in request.stop_tokens
    assert not np.isin(result.tokens[:-1], request.stop_tokens).any()
    cut = play(an_engine(), [a_turn(1, max_new_tokens=4)])[1]
    assert (cut.finish_reason, len(cut.tokens)) == ("length", 4)


def test_weights_installed_between_steps_show_in_spans_and_logprobs() -> None:
    old, new = a_decoder(seed=1), a_decoder(seed=2)
    engine = an_engine(old, version=4)
    request = a_turn(1, appended=some_tokens(1, 5), max_new_tokens=12)

    def install(step: int) -> None:
        if step == 7:
            engine.install(5, new.state_dict())

    result = play(engine, [request], install)[1]
    assert result.sample_spans == (VersionSpan(5, 12, 4), VersionSpan(12, 17, 5))
    # Step 0 computed the prompt; token p was computed at step p - 4.
    assert result.kv_spans == (VersionSpan(0, 11, 4), VersionSpan(11, 16, 5))
    expected_old = full_logprobs(old, request.appended, result)
    assert np.abs(result.logprobs[:7] - expected_old[:7]).max() < 1e-5
    assert np.abs(result.logprobs[7:] - expected_old[7:]).max() > 1e-3
    assert engine.stats().version == 5


def test_log_probs_after_an_install_are_those_of_new_weights_over_old_kv() -> None:
    old, new = a_decoder(seed=1), a_decoder(seed=2)
    engine = an_engine(old, version=1)
    first = play(engine, [a_turn(1, (1, 1), appended=some_tokens(1, 6), max_new_tokens=3)])[1]
    engine.install(2, new.state_dict())
    second = play(engine, [a_turn(2, (1, 1), appended=some_tokens(2, 2), held=9, max_new_tokens=4)])[2]
    assert first.kv_spans == (VersionSpan(0, 8, 1),)
    assert second.sample_spans == (VersionSpan(11, 15, 2),)
    assert second.kv_spans == (VersionSpan(0, 8, 1), VersionSpan(8, 14, 2))
    context = np.concatenate((some_tokens(1, 6), first.tokens, some_tokens(2, 2)))
    assert np.abs(second.logprobs - mixed_kv_logprobs(old, new, 8, context, second.tokens)).max() < 1e-5


def mixed_kv_logprobs(old: Any, new: Any, old_positions: int, context: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """By the plain cached decoder: the first positions by the old weights, everything after by the new."""
    from stages.model.cached import CachedDecoder, PackedBatch

    decoder = CachedDecoder(old.config, old.state_dict(), 64)
    tokens = torch.from_numpy(np.concatenate((context, sampled)).astype(np.int64))
    cache = decoder.new_cache(1, 64)
    head = PackedBatch(tokens[:old_positions], torch.arange(old_positions), 0, [old_positions])
    decoder.logits(head, cache, torch.tensor([0]))
    decoder.install(new.state_dict())
    rest = len(tokens) - old_positions
    tail = PackedBatch(tokens[old_positions:], torch.arange(old_positions, len(tokens)), 0, [rest])
    logprobs = torch.log_softmax(decoder.logits(tail, cache, torch.arange(rest)), -1)[:-1]
    found = logprobs.gather(1, tokens[old_positions + 1 :, None])[:, 0].numpy()
    return found[len(context) - old_positions - 1 :]


def test_an_install_before_the_first_token_leaves_no_trace_of_the_old_version() -> None:
    engine = an_engine(version=1)
    engine.submit(a_turn(1))
    engine.install(2, a_decoder(seed=2).state_dict())
    result = play(engine)[1]
    assert result.sample_spans == (VersionSpan(3, 11, 2),)
    assert result.kv_spans == (VersionSpan(0, 10, 2),)


def test_weights_that_do_not_fit_are_refused_and_the_version_stays() -> None:
    engine = an_engine(version=1)
    with pytest.raises(TensorMismatchError):
        engine.install(2, {})
    assert engine.stats().version == 1


def play_two_turns(engine: TorchEngine, between: int) -> list[TurnResult]:
    """Four sessions of two turns; `between` other sessions are played in the middle, to push the first ones out."""
    firsts = play(engine, [a_turn(i, (i, 1), appended=some_tokens(i, 10)) for i in range(1, 5)])
    play(engine, [a_turn(100 + i, (100 + i, 1), appended=some_tokens(i, 20)) for i in range(between)])
    seconds = [a_turn(10 + i, (i, 1), appended=some_tokens(20 + i, 3), held=18) for i in range(1, 5)]
    return [*firsts.values(), *play(engine, seconds).values()]


def test_an_evicted_session_continues_as_if_it_had_never_been_evicted() -> None:
    roomy, tight = an_engine(kv_tokens=4096), an_engine(kv_tokens=90)
    undisturbed, evicted = play_two_turns(roomy, 6), play_two_turns(tight, 6)
    assert roomy.stats().evictions == 0
    assert tight.stats().evictions >= 4
    assert tight.stats().prefilled_tokens > roomy.stats().prefilled_tokens
    for one, other in zip(sorted(undisturbed, key=lambda r: r.turn_id), sorted(evicted, key=lambda r: r.turn_id), strict=True):
        assert_same_turn(one, other)


def test_an_evicted_session_is_computed_anew_by_the_version_of_the_day() -> None:
    engine = an_engine(version=1, kv_tokens=40)
    play(engine, [a_turn(1, (1, 1), appended=some_tokens(1, 10))])
    engine.install(2, a_decoder(seed=2).state_dict())
    play(engine, [a_turn(2, (2, 1), appended=some_tokens(2, 20))])
    result = play(engine, [a_turn(3, (1, 1), appended=(1, 2), held=18)])[3]
    assert result.kv_spans == (VersionSpan(0, 27, 2),)


def test_kv_never_exceeds_its_budget_and_everything_is_played() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    choice = random.Random(seed)
    engine = an_engine(kv_tokens=150, max_rows=6)
    most = 0

    def watch(step: int) -> None:
        nonlocal most
        most = max(most, engine.stats().kv_tokens)

    results = play(engine, [a_random_turn(choice, turn_id) for turn_id in range(1, 60)], watch)
    assert len(results) == 59
    assert most <= 150


def test_an_abort_frees_the_row_and_takes_the_session_back() -> None:
    engine = an_engine(max_rows=1)
    first = play(engine, [a_turn(1, (1, 1))])[1]
    engine.submit(a_turn(2, (1, 1), appended=(4, 5), held=11))
    engine.submit(a_turn(3, (2, 1)))
    for _ in range(3):
        engine.step()
    assert engine.stats().running == 1
    assert engine.abort(2)
    assert not engine.abort(2)
    assert engine.held((1, 1)) == 11
    assert list(play(engine)) == [3]
    again = play(engine, [a_turn(2, (1, 1), appended=(4, 5), held=11)])[2]
    expected = play(an_engine(), [a_turn(2, (1, 1), appended=[1, 2, 3, *first.tokens, 4, 5])])[2]
    assert again.tokens.tolist() == expected.tokens.tolist()


def test_a_waiting_turn_can_be_aborted() -> None:
    engine = an_engine(max_rows=1)
    engine.submit(a_turn(1))
    engine.step()
    engine.submit(a_turn(2))
    assert engine.abort(2)
    assert engine.stats().waiting == 0
    assert list(play(engine)) == [1]


def test_a_closed_session_is_forgotten_with_its_turn() -> None:
    engine = an_engine()
    engine.submit(a_turn(1))
    engine.step()
    engine.close_session((1, 1))
    engine.close_session((9, 9))
    stats = engine.stats()
    assert (stats.running, stats.sessions, stats.kv_tokens) == (0, 0, 0)
    assert not engine.has_work()
    with pytest.raises(SessionMismatchError):
        engine.submit(a_turn(2, (1, 1), held=3))


def test_a_turn_played_again_goes_back_in_its_session() -> None:
    engine = an_engine()
    first = play(engine, [a_turn(1, (1, 1))])[1]
    again = play(engine, [a_turn(5, (1, 1), seed=101)])[5]
    assert again.tokens.tolist() == first.tokens.tolist()
    assert again.kv_spans == first.kv_spans


def test_a_generation_goes_on_from_a_part_of_it() -> None:
    """The draw at a position depends on the position in the session, so a moved turn ends as it would have."""
    whole = play(an_engine(), [a_turn(1, max_new_tokens=10)])[1]
    rest = play(an_engine(), [a_turn(1, appended=[1, 2, 3, *whole.tokens[:4]], max_new_tokens=6)])[1]
    assert rest.tokens.tolist() == whole.tokens[4:].tolist()


def test_a_paused_engine_does_nothing_and_then_goes_on_where_it_was() -> None:
    engine = an_engine()
    engine.submit(a_turn(1))
    engine.step()
    engine.pause()
    assert not engine.has_work()
    assert engine.step() == []
    engine.resume()
    assert play(engine)[1].tokens.tolist() == play(an_engine(), [a_turn(1)])[1].tokens.tolist()


def test_the_greater_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    engine = an_engine(max_rows=1)
    turns = [(1, 0.0), (2, 0.0), (3, 2.0), (4, 1.0), (5, 2.0)]
    results = play(engine, [a_turn(i, priority=priority, max_new_tokens=1) for i, priority in turns])
    assert list(results) == [3, 5, 4, 1, 2]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"held": 1}, SessionMismatchError),
        ({"held": -1}, SessionMismatchError),
        ({"appended": ()}, TurnRefusedError),
        ({"appended": (1, VOCABULARY)}, TurnRefusedError),
        ({"appended": (-1,)}, TurnRefusedError),
        ({"max_new_tokens": 98}, TurnTooLongError),
        ({"max_new_tokens": 0}, TurnRefusedError),
        ({"temperature": -0.1}, TurnRefusedError),
        ({"top_p": 0.0}, TurnRefusedError),
        ({"top_k": -2}, TurnRefusedError),
    ],
)
def test_a_turn_that_cannot_be_played_is_refused_and_changes_nothing(change: dict[str, Any], error: type[Exception]) -> None:
    engine = an_engine(max_context_tokens=100)
    with pytest.raises(error):
        engine.submit(a_turn(1, **change))
    assert engine.stats().sessions == engine.stats().waiting == 0
    assert list(play(engine, [a_turn(1)])) == [1]


def test_a_session_plays_one_turn_at_a_time() -> None:
    engine = an_engine()
    engine.submit(a_turn(1, (1, 1)))
    with pytest.raises(TurnRefusedError, match="one at a time"):
        engine.submit(a_turn(2, (1, 1)))
    with pytest.raises(TurnRefusedError, match="already here"):
        engine.submit(a_turn(1, (2, 1)))


def test_one_step_does_a_bounded_amount_of_work() -> None:
    engine = an_engine(prefill_tokens=16, least_chunk_tokens=4)
    engine.submit(a_turn(1, max_new_tokens=50))
    engine.step()
    engine.submit(a_turn(2, appended=some_tokens(2, 100)))
    before = engine.stats()
    engine.step()
    after = engine.stats()
    assert after.prefilled_tokens - before.prefilled_tokens == 16
    assert after.generated_tokens - before.generated_tokens == 1


def test_a_diverged_version_stops_the_engine_by_name() -> None:
    engine = an_engine()
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in a_decoder().state_dict().items()}
    engine.install(7, broken)
    engine.submit(a_turn(1))
    with pytest.raises(EngineError, match="version 7"):
        engine.step()
