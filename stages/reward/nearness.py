"""The verifier of tasks whose answer is a number, where a near miss is worth something: `guess` uses it."""

from __future__ import annotations

from stages.reward.verifier import FinishedEpisode, gives


@gives("found", "near")
def nearness(episode: FinishedEpisode) -> dict[str, float]:
    """Two parts, to be weighted by the config: `found`, 1 for the very number; `near`, from 1 there to 0 at `task["highest"]` away."""
    wanted, span = int(episode.task["answer"]), float(episode.task["highest"])
    given = episode.outcome.get("answer")
    if given is None:
        return {"found": 0.0, "near": 0.0}
    distance = abs(int(given) - wanted)
    return {"found": float(distance == 0), "near": max(0.0, 1.0 - distance / span)}
