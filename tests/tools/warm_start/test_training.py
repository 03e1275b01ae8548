"""The warm start gives a weak player that can be taught, and the shipped checkpoint is one of its making."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.env.arithmetic import ProblemLaw
from stages.model.checkpoint import load_decoder, overall_digest, read_state, tensor_digests
from stages.model.decoder import Decoder
from stages.model.errors import CheckpointError
from tools.warm_start.command import run, summary
from tools.warm_start.demonstrations import with_tool
from tools.warm_start.quality import quality
from tools.warm_start.tokenizer import VOCABULARY, encode
from tools.warm_start.training import calculator_config, learn, learning_rate, warm_start

SHIPPED = Path(__file__).resolve().parents[3] / "compose/models/calculator"
TWO_NUMBERS = ProblemLaw(most_numbers=2)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def a_learner(seed: int, steps: int) -> Decoder:
    decoder = Decoder(calculator_config()).initialise(seed)
    learn(decoder, seed, steps)
    return decoder


def digest_of(decoder: Decoder) -> str:
    return overall_digest(tensor_digests(decoder.state_dict()))


def an_indifferent_decoder() -> Decoder:
    """Every token is equally likely at every position."""
    decoder = Decoder(calculator_config()).initialise(0)
    with torch.no_grad():
        decoder.model.norm.weight.zero_()
    return decoder


def test_the_shipped_checkpoint_seldom_uses_the_tool_but_can() -> None:
    found = quality(load_decoder(SHIPPED))
    assert 0.25 <= found.accuracy <= 0.40
    assert 0.2 <= found.tool_share <= 0.4
    assert found.tool_accuracy >= 0.97


def test_the_shipped_checkpoint_keeps_its_place_in_long_problems() -> None:
    long = quality(load_decoder(SHIPPED), problems=200, law=ProblemLaw(tail_exponent=-3.0))
    assert long.tool_accuracy >= 0.85


def test_the_shipped_checkpoint_is_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= 2_000_000
    assert sum(tensor.numel() for tensor in read_state(SHIPPED).values()) < 250_000


def test_transformers_loads_the_shipped_checkpoint_and_agrees_with_our_decoder() -> None:
    theirs = AutoModelForCausalLM.from_pretrained(SHIPPED)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    tokens = torch.tensor([tokenizer.encode(with_tool("12+34-5").text)])
    with torch.inference_mode():
        assert torch.allclose(theirs(tokens).logits, load_decoder(SHIPPED)(tokens), atol=1e-4)


def test_the_tokenizer_of_the_shipped_checkpoint_is_the_one_it_was_trained_with() -> None:
    text = with_tool("50-49+8").text
    assert AutoTokenizer.from_pretrained(SHIPPED).encode(text) == encode(text)


def test_quality_is_the_exact_probability_of_a_right_episode() -> None:
    found = quality(an_indifferent_decoder(), problems=3, law=TWO_NUMBERS)
    assert found.tool_share == pytest.approx(1 / len(VOCABULARY))
    assert found.accuracy < 1e-4


def test_a_few_steps_already_learn_the_form_of_a_turn(tmp_path: Path) -> None:
    report = warm_start(tmp_path / "made", seed=1, steps=60)
    print("seed 1:", report)
    assert report.loss < 2.15  # guessing among the digits alone costs 2.3 nats a token, among all characters 3.2
    assert 0.15 < report.quality.tool_share < 0.5


def test_the_same_seed_makes_the_same_weights_and_another_seed_others() -> None:
    first, again, other = (digest_of(a_learner(seed, steps=2)) for seed in (5, 5, 6))
    assert first == again != other


def test_every_step_is_reported() -> None:
    seen: list[int] = []
    learn(an_indifferent_decoder(), seed=0, steps=3, progress=lambda done, loss: seen.append(done))
    assert seen == [1, 2, 3]


def test_an_existing_directory_is_kept_unless_its_replacement_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        warm_start(tmp_path / "made", steps=1)
    warm_start(tmp_path / "made", steps=1, replace=True)
    assert (tmp_path / "made" / "tokenizer.json").is_file()


def test_the_learning_rate_rises_then_falls_to_its_last_value() -> None:
    rates = [learning_rate(step, 1000) for step in range(1000)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4, rel=0.05)


def test_the_command_says_how_good_its_result_is(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    report = run(tmp_path / "made", steps=1, console=console)
    assert "1/1" in console.export_text(clear=False)
    assert summary(report).splitlines()[1] in console.export_text()


@pytest.mark.slow
def test_the_command_reproduces_the_quality_of_the_shipped_checkpoint(tmp_path: Path) -> None:
    made, shipped = run(tmp_path / "made").quality, quality(load_decoder(SHIPPED))
    print("made:", made, "shipped:", shipped)
    assert made.tool_accuracy >= shipped.tool_accuracy - 0.02
    assert made.tool_share == pytest.approx(shipped.tool_share, abs=0.1)
    assert made.accuracy <= 0.45
