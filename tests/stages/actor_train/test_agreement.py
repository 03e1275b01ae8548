"""Sampler and trainer agree: what the engine says of its tokens is what the trainer and the reference compute again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.messages import Grant, Voted
from schemas.records import Sample
from stages.actor_train.stage import ActorTrain
from stages.model.checkpoint import load_decoder
from stages.reference.settings import reference_settings
from stages.reference.worker import FrozenModel
from stages.rollout.engine import TurnRequest, TurnResult
from stages.rollout.torch_engine import TorchEngine
from tests.stages.fake_link import FakeLink
from tests.stages.training_builders import VOCABULARY, a_config, a_plan, a_starting_model, a_welcome

WAYS: list[dict[str, Any]] = [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"temperature": 1.3, "top_k": 9, "top_p": 0.9}]
SESSIONS = 16


def play_turn(engine: TorchEngine, appended: list[np.ndarray], number: int, **sampling: Any) -> list[TurnResult]:
    """One turn of every session, all in one batch."""
    for session, tokens in enumerate(appended):
        engine.submit(
            TurnRequest(
                turn_id=1000 * number + session,
                session=(session, 1),
                appended=tokens,
                held=engine.held((session, 1)),
                seed=session,
                max_new_tokens=4 + session % 9,
                stop_tokens=(3,),
                **sampling,
            )
        )
    results = {}
    while engine.has_work():
        results |= {result.session[0]: result for result in engine.step()}
    return [results[session] for session in range(len(appended))]


def an_episode(turns: list[TurnResult], given: list[np.ndarray], reward: float, temperature: float) -> Sample:
    """Two turns as env would write them down."""
    parts = [part for observation, turn in zip(given, turns, strict=True) for part in (observation, turn.tokens)]
    mask = [np.full(len(part), at % 2, np.uint8) for at, part in enumerate(parts)]
    logprobs = [
        part for observation, turn in zip(given, turns, strict=True) for part in (np.zeros(len(observation), np.float32), turn.logprobs)
    ]
    tokens = np.concatenate(parts).astype(np.int32)
    return Sample(
        reward=reward,
        reward_parts={},
        segments=((0, len(tokens)),),
        sample_spans=tuple(span for turn in turns for span in turn.sample_spans),
        kv_spans=turns[-1].kv_spans,
        temperature=temperature,
        tokens=tokens,
        loss_mask=np.concatenate(mask),
        logprobs=np.concatenate(logprobs).astype(np.float32),
        ref_logprobs=np.empty(0, np.float32),
        kept_ids=np.concatenate([turn.kept_ids for turn in turns]).astype(np.int32),
        kept_counts=np.concatenate([turn.kept_counts for turn in turns]).astype(np.int32),
    )


def episodes(model: Path, **sampling: Any) -> list[Sample]:
    decoder = load_decoder(model)
    engine = TorchEngine(decoder.config, 0, decoder.state_dict())
    rng = np.random.default_rng(7)
    given = [[rng.integers(4, VOCABULARY, 3 + s % 5).astype(np.int32) for s in range(SESSIONS)] for _ in range(2)]
    turns = [play_turn(engine, given[number], number, **sampling) for number in range(2)]
    return [
        an_episode([turn[s] for turn in turns], [g[s] for g in given], float(s % 2), sampling.get("temperature", 1.0))
        for s in range(SESSIONS)
    ]


@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_the_trainer_recomputes_what_the_engine_said(tmp_path: Path, sampling: dict[str, Any]) -> None:
    model = a_starting_model(tmp_path / "model")
    link = FakeLink(str(tmp_path))
    stage = ActorTrain()
    stage.start(a_welcome(a_config(model, algorithm={"kl_coefficient": 0.0}), tmp_path), link)
    samples = episodes(model, **sampling)
    stage.order(*a_plan(1, [samples[:8], samples[8:]]))
    stage.order(Grant(grant=1), ())
    while stage.work():
        pass
    (vote,) = link.messages(Voted)
    assert vote.metrics["mismatch/tokens"] == sum(sample.loss_mask.sum() for sample in samples) > 100
    assert vote.metrics["mismatch/mean_abs_logprob_difference"] < 1e-5


@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_the_reference_at_the_same_weights_says_the_same(tmp_path: Path, sampling: dict[str, Any]) -> None:
    model = a_starting_model(tmp_path / "model")
    samples = episodes(model, **sampling)
    for sample, found in zip(samples, FrozenModel(reference_settings(a_config(model))).logprobs(samples), strict=True):
        np.testing.assert_allclose(found, sample.logprobs, rtol=0, atol=1e-4)
