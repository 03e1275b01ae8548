"""Token ids as text, with the run's own tokenizer where it can be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.records.opening import Run

Words = Callable[[int], str]


def harmless(text: str) -> str:
    """For a terminal: what a model or a user wrote cannot move its cursor or change its colours; line ends stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def words_of(run: Run) -> Words | None:
    """One token's text by its id; None where no tokenizer is at hand, or the text was taken out."""
    if run.manifest.get("redacted"):
        return None
    path = tokenizer_of(run)
    if path is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def word(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False))

    return word


def tokenizer_of(run: Run) -> Path | None:
    """The file, in the run, in its checkpoints, or beside its model."""
    model = run.config.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    beside = [Path(path)] if isinstance(path, str) and path else []
    places = [run.directory, *sorted((run.directory / "checkpoints").glob("step-*"), reverse=True), *beside]
    return next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
