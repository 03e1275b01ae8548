"""Episodes as a verifier reads them: the turns' texts, decoded with the model directory's own tokenizer."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from schemas.errors import ConfigError, VerifierFailure
from schemas.records import Array, Episode
from stages.reward.verifier import FinishedEpisode, Speaker


def open_reader(model: Path | str) -> Reader:
    """Reads `tokenizer.json` of a model directory. Raises ConfigError."""
    file = Path(model) / "tokenizer.json"
    try:
        return Reader(Tokenizer.from_file(str(file)))
    except Exception as error:  # tokenizers raises bare Exception for files it cannot read
        raise ConfigError(f"model.path: {file} cannot be read ({error}); give a folder with a tokenizer") from error


class Reader:
    """Turns tokens into text, special tokens included: what the environment saw."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def finished(self, episode: Episode) -> FinishedEpisode:
        """What the verifier judges. Raises VerifierFailure where a token is not of this vocabulary."""
        turns: list[tuple[Speaker, str]] = []
        for bounds in episode.turns:
            heard, said = episode.tokens[bounds.start : bounds.action], episode.tokens[bounds.action : bounds.end]
            turns += [("env", self._text(heard))] if heard.size else []
            turns += [("policy", self._text(said))] if said.size else []
        return FinishedEpisode(task=episode.task, outcome=episode.outcome, turns=turns, truncated=episode.truncated)

    def _text(self, tokens: Array) -> str:
        try:
            return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
        except (OverflowError, TypeError, ValueError) as error:
            raise VerifierFailure(f"the episode's tokens cannot be decoded: {error}") from error
