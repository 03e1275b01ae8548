"""The verifier of tasks that have one right answer: `calculator` uses it."""

from __future__ import annotations

from stages.reward.verifier import SINGLE_PART, FinishedEpisode, gives


@gives(SINGLE_PART)
def exact_match(episode: FinishedEpisode) -> float:
    """1.0 where `outcome["answer"]` is the task's `answer` to the letter (outer white space aside), else 0.0."""
    given, wanted = episode.outcome.get("answer"), episode.task.get("answer")
    if given is None or wanted is None:
        return 0.0
    return float(str(given).strip() == str(wanted).strip())
