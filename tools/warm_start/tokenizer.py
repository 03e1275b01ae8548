"""The quickstart's tokenizer: one token a character, as the files that Hugging Face libraries load.

Promises that encoding and decoding give any text of its characters back exactly, the newline included. The newline ends
a turn; `<eos>` exists because libraries ask for one, and is never learnt.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+-=[]A?\n .:"
"""The calculator's characters, and three to spare for an environment of one's own."""
VOCABULARY = (PAD, EOS, UNKNOWN, *CHARACTERS)
IDS = {token: number for number, token in enumerate(VOCABULARY)}
STOP_ID = IDS["\n"]


def encode(text: str) -> list[int]:
    """Token ids of a text, as the tokenizer file gives them; a character that it does not know becomes `<unk>`."""
    return [IDS.get(character, IDS[UNKNOWN]) for character in text]


def write_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json into an existing directory."""
    build_tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "eos_token": EOS,
            "unk_token": UNKNOWN,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1_000_000,
        },
    )
    _write_json(
        directory / "generation_config.json",
        {"eos_token_id": [STOP_ID, IDS[EOS]], "pad_token_id": IDS[PAD], "do_sample": True, "temperature": 1.0},
    )


def build_tokenizer() -> Tokenizer:
    """Splits into single characters, newlines too; joins without spaces."""
    tokenizer = Tokenizer(WordLevel(IDS, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens([PAD, EOS, UNKNOWN])
    return tokenizer


def _write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
