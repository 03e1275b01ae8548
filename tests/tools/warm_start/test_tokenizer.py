"""The tokenizer gives every text of its characters back, and is read by the libraries that people use."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tools.warm_start.tokenizer import CHARACTERS, IDS, STOP_ID, VOCABULARY, build_tokenizer, encode, write_tokenizer

TOKENIZER = build_tokenizer()


@given(st.text(alphabet=CHARACTERS))
def test_any_text_comes_back_exactly(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids) == text
    assert ids == encode(text)


@given(st.text(alphabet=CHARACTERS), st.text(alphabet=CHARACTERS))
def test_texts_encoded_apart_are_the_text_encoded_whole(first: str, second: str) -> None:
    assert encode(first) + encode(second) == TOKENIZER.encode(first + second).ids


def test_the_newline_is_one_token_and_the_stop() -> None:
    assert TOKENIZER.encode("\n").ids == [STOP_ID]


def test_an_unknown_character_is_one_unknown_token() -> None:
    assert TOKENIZER.encode("1é2").ids == [IDS["1"], IDS["<unk>"], IDS["2"]] == encode("1é2")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    # transformers finds a tokenizer's class through the model's config.
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    return tmp_path


def test_transformers_reads_it_with_its_special_tokens(directory: Path) -> None:
    read = AutoTokenizer.from_pretrained(directory)
    text = "12+34-5=\n[12+34]\n46\nA-41\n"
    assert read.encode(text) == encode(text)
    assert read.decode(read.encode(text)) == text
    assert (read.pad_token_id, read.eos_token_id, read.unk_token_id) == (0, 1, 2)
    assert len(read) == len(VOCABULARY) == 24


def test_the_tokenizers_library_reads_it(directory: Path) -> None:
    assert Tokenizer.from_file(str(directory / "tokenizer.json")).encode("A4\n").ids == encode("A4\n")


def test_generation_stops_at_the_newline(directory: Path) -> None:
    assert STOP_ID in json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
