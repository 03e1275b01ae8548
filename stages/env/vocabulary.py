"""Text to tokens and back, with the model directory's own tokenizer; only appended text is ever tokenised.

Owns: the tokenizer, and which tokens end a turn. Promises: no special tokens are added, none are hidden when decoding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from schemas.errors import ConfigError
from schemas.records import Array

UNKNOWN_TOKENS = frozenset({"<unk>", "[UNK]", "<UNK>", "<|unk|>"})
"""What tokenizers put in the place of text that they cannot say."""
UNKNOWN_SHOWN = 8


class Vocabulary:
    """The tokenizer of one model directory."""

    def __init__(self, tokenizer: Tokenizer, end_of_text: tuple[int, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._end_of_text = end_of_text
        self._known: set[str] = set()

    @classmethod
    def open(cls, model: Path | str) -> Vocabulary:
        """Reads `tokenizer.json` and the end-of-text ids of a model directory. Raises ConfigError."""
        file = Path(model) / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise ConfigError(f"model.path: {file} cannot be read ({error}); give a folder with a tokenizer") from error
        return cls(tokenizer, _end_of_text(Path(model)))

    def encode(self, text: str) -> Array:
        """int32 ids of `text` alone. Raises ValueError where it has no token for a character: the policy would read past it."""
        if unknown := self._unknown(text):
            named = ", ".join(map(repr, sorted(unknown)[:UNKNOWN_SHOWN]))
            raise ValueError(f"it has no token for {named}; say it in characters that the model knows, or take another [model] path")
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: Array) -> str:
        """The text of `tokens`, special tokens included."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    def stop_tokens(self, stop_text: str | None) -> tuple[int, ...]:
        """Ids that end a turn: end of text, and every token whose text holds `stop_text`.

        A token may hold more than the stop text (`"]\\n"`): it ends the turn all the same. Raises ConfigError where no
        token ends a turn, so each would run to its token limit.
        """
        found = set(self._end_of_text)
        if stop_text:
            found.update(index for index, text in enumerate(self._texts()) if stop_text in text)
        if not found:
            raise ConfigError(
                f"no token of the model's tokenizer holds the environment's stop text {stop_text!r} and its config.json"
                " names no eos_token_id; choose a stop_text that is one token"
            )
        return tuple(sorted(found))

    def _unknown(self, text: str) -> set[str]:
        """Characters of `text` that become no token, or the one for what is unknown. White space may be normalised away."""
        unknown = set()
        for character in set(text) - self._known:
            tokens = self._tokenizer.encode(character, add_special_tokens=False).tokens
            if character.isspace() or (tokens and set(tokens).isdisjoint(UNKNOWN_TOKENS)):
                self._known.add(character)
            else:
                unknown.add(character)
        return unknown

    def _texts(self) -> Sequence[str]:
        ids = [[index] for index in range(self._tokenizer.get_vocab_size(with_added_tokens=True))]
        return list(self._tokenizer.decode_batch(ids, skip_special_tokens=False))


def _end_of_text(model: Path) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json; none where neither names one."""
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((model / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"model.path: {model / name} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"model.path: {model / name} holds no JSON object")
        named = found.get("eos_token_id")
        if named is not None:
            return tuple(named) if isinstance(named, list) else (named,)
    return ()
