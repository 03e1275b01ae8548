from __future__ import annotations

import torch

from stages.model.config import config_from_hugging_face
from stages.rollout.torch_engine import TorchEngine
from tests.stages.model.builders import a_transformers_model
from tests.stages.rollout.builders import a_turn, play, some_tokens


def test_greedy_tokens_equal_transformers_generate() -> None:
    theirs = a_transformers_model(seed=3, tie_word_embeddings=False)
    config = config_from_hugging_face(theirs.config.to_dict())
    engine = TorchEngine(config, 1, theirs.state_dict())
    requests = [a_turn(i, appended=some_tokens(i, 4 + i), temperature=0.0, max_new_tokens=20) for i in range(1, 6)]
    results = play(engine, requests)
    for request in requests:
        prompt = torch.from_numpy(request.appended).long()[None]
        how = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
        expected = theirs.generate(prompt, **how)  # type: ignore[operator]
        assert results[request.turn_id].tokens.tolist() == expected[0, prompt.shape[1] :].tolist()
