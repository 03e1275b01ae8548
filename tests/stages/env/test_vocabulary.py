"""Text that the model cannot read is said so, character by character, and not read past."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from schemas.errors import ConfigError
from stages.env.vocabulary import Vocabulary

SHIPPED = Path(__file__).resolve().parents[3] / "compose" / "models" / "calculator"


def byte_level() -> Vocabulary:
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Vocabulary(tokenizer)


def test_a_character_without_a_token_is_named() -> None:
    vocabulary = Vocabulary.open(SHIPPED)
    with pytest.raises(ValueError, match=r"no token for 'G', 'e', 's', 'u'; .*another \[model\] path"):
        vocabulary.encode("Guess 12")
    assert vocabulary.decode(vocabulary.encode("12+3=\n")) == "12+3=\n"


def test_a_tokenizer_of_bytes_reads_everything() -> None:
    text = "Grüße, 你好 \t☃\r\n"
    vocabulary = byte_level()
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_a_file_of_token_ids_that_is_no_object_is_named(tmp_path: Path) -> None:
    for file in SHIPPED.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"generation_config\.json holds no JSON object"):
        Vocabulary.open(str(tmp_path)).stop_tokens(None)
