"""The whole trainer, on a task small enough for a test: what is rewarded is said more often."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from schemas.messages import Grant, StepCommitted
from schemas.records import Sample, VersionSpan
from stages.actor_train.stage import ActorTrain
from stages.model.decoder import Decoder
from tests.stages.fake_link import FakeLink
from tests.stages.training_builders import VOCABULARY, a_config, a_plan, a_starting_model, a_welcome

WANTED = 7
PROMPT, ANSWER = 3, 4
GROUPS, MEMBERS, STEPS = 8, 8, 12


def play(decoder: Decoder, version: int, seed: int) -> list[list[Sample]]:
    """One group a prompt; a member's reward is the share of its tokens that are the wanted one."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, VOCABULARY, (GROUPS, PROMPT), generator=generator).repeat_interleave(MEMBERS, 0)
    tokens, logprobs = prompts, torch.zeros(prompts.shape)
    for _ in range(ANSWER):
        with torch.no_grad():
            distribution = torch.log_softmax(decoder(tokens)[:, -1].float(), -1)
        drawn = torch.multinomial(distribution.exp(), 1, generator=generator)
        tokens, logprobs = torch.cat((tokens, drawn), 1), torch.cat((logprobs, distribution.gather(1, drawn)), 1)
    samples = [an_episode(row, lps, version) for row, lps in zip(tokens.numpy(), logprobs.numpy(), strict=True)]
    return [samples[at : at + MEMBERS] for at in range(0, len(samples), MEMBERS)]


def an_episode(tokens: np.ndarray, logprobs: np.ndarray, version: int) -> Sample:
    size = PROMPT + ANSWER
    reward = float((tokens[PROMPT:] == WANTED).mean())
    fields: dict[str, Any] = {
        "tokens": tokens.astype(np.int32), "loss_mask": (np.arange(size) >= PROMPT).astype(np.uint8),
        "logprobs": logprobs.astype(np.float32), "ref_logprobs": logprobs.astype(np.float32),
        "kept_ids": np.empty(0, np.int32), "kept_counts": np.empty(0, np.int32),
    }  # fmt: skip
    return Sample(
        reward=reward,
        reward_parts={},
        segments=((0, size),),
        sample_spans=(VersionSpan(PROMPT, size, version),),
        kv_spans=(VersionSpan(0, size - 1, version),),
        **fields,
    )


def test_a_rewarded_token_is_said_more_often(tmp_path: Path) -> None:
    model = a_starting_model(tmp_path / "model")
    config = a_config(model, algorithm={"learning_rate": 2e-2, "kl_coefficient": 0.0})
    stage = ActorTrain()
    stage.start(a_welcome(config, tmp_path), FakeLink(str(tmp_path)))
    rewards = []
    for step in range(1, STEPS + 1):
        groups = play(stage.history.trainer.decoder, step - 1, seed=step)
        rewards.append(np.mean([sample.reward for group in groups for sample in group]))
        plan, frames = a_plan(step, groups)
        stage.order(plan, frames)
        stage.order(Grant(grant=step), ())
        while stage.work():
            pass
        stage.order(StepCommitted(step=step), ())
        while stage.work():
            pass
    print(f"rewards of the steps, seeds 1 to {STEPS}: {np.round(rewards, 3).tolist()}")
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.8
