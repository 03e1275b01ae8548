"""Find the hidden number: the smallest whole environment, and proof that the protocol is not shaped around one task.

    env     16?              the number lies between 1 and this
    policy  A8               a guess; a bare 8 is one too
    env     +                the hidden number is higher (`-`: lower, `?`: that was no number)
    policy  A12              ... until it is found or the guesses are spent

It speaks in the calculator's characters and takes the calculator's way to answer, so the quickstart's model guesses at random from the
start and has something to learn from.
"""

from __future__ import annotations

import re
from random import Random

from stages.env.environment import Done, Observation, Purpose, Task
from stages.env.errors import whole

MOST_GUESSES = 1_000_000
"""More is a slip of the hand: `stages.env.max_turns` cuts an episode long before."""
LOWEST_HIGHEST, MOST_HIGHEST = 5, 999
"""Below, eval has nothing to hide; above, drawing a task takes longer than playing it: each draw lists all pairs."""


class Guess:
    """One session; the verifier finds the last guess in `outcome["answer"]`."""

    def __init__(self, *, max_guesses: int = 5) -> None:
        self._left = whole("max_guesses", max_guesses, 1, MOST_GUESSES)
        self._spent = 0
        self._hidden = 0

    @staticmethod
    def task(index: int, purpose: Purpose, seed: int, highest: int = 16) -> Task:
        """`{"highest": 12, "answer": "7"}`, a range of at most `highest`. Every fifth pair of the two is for eval: they share no task."""
        whole("highest", highest, LOWEST_HIGHEST, MOST_HIGHEST)
        ranges = range((highest + 1) // 2, highest + 1)
        pairs = [(top, hidden) for top in ranges for hidden in range(1, top + 1) if ((top + 3 * hidden) % 5 == 0) == (purpose == "eval")]
        top, hidden = Random(f"guess {purpose} {seed} {index}").choice(pairs)
        return {"highest": top, "answer": str(hidden)}

    async def reset(self, task: Task) -> Observation:
        self._hidden, self._spent = int(task["answer"]), 0
        return Observation(f"{task['highest']}?\n")

    async def step(self, text: str) -> Observation | Done:
        self._spent += 1
        guess = re.fullmatch(r"A?(-?[0-9]{1,9})\n?", text)
        number = int(guess.group(1)) if guess else None
        if number == self._hidden or self._spent == self._left:
            answer = None if number is None else str(number)
            return Done(outcome={"answer": answer, "guesses": self._spent}, truncated=number != self._hidden)
        if number is None:
            return Observation("?\n")
        return Observation("+\n" if self._hidden > number else "-\n")
