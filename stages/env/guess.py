"""Find the hidden number: the smallest whole environment, and proof that the protocol is not shaped around one task.

    env     1-64?            the range
    policy  32               a guess
    env     +                the hidden number is higher (`-`: lower, `?`: that was no number)
    policy  40               ... until it is found or the guesses are spent

It speaks in the calculator's characters, so the quickstart's model can read it as it is.
"""

from __future__ import annotations

import re
from random import Random

from stages.env.environment import Done, Observation, Purpose, Task


class Guess:
    """One session; the verifier finds the last guess in `outcome["answer"]`."""

    def __init__(self, *, max_guesses: int = 8) -> None:
        if max_guesses < 1:
            raise ValueError(f"max_guesses is at least 1, not {max_guesses}")
        self._left = max_guesses
        self._spent = 0
        self._hidden = 0

    @staticmethod
    def task(index: int, purpose: Purpose, seed: int, highest: int = 64) -> Task:
        """`{"highest": 64, "answer": "17"}`. Eval hides multiples of 5 and train the others: they share no task."""
        if highest < 5:
            raise ValueError(f"highest is at least 5, or eval has nothing to hide; it is {highest}")
        hidden = Random(f"guess {purpose} {seed} {index}").choice(
            [number for number in range(1, highest + 1) if (number % 5 == 0) == (purpose == "eval")]
        )
        return {"highest": highest, "answer": str(hidden)}

    async def reset(self, task: Task) -> Observation:
        self._hidden, self._spent = int(task["answer"]), 0
        return Observation(f"1-{task['highest']}?\n")

    async def step(self, text: str) -> Observation | Done:
        self._spent += 1
        guess = re.fullmatch(r"([0-9]{1,9})\n?", text)
        number = int(guess.group(1)) if guess else None
        if number == self._hidden or self._spent == self._left:
            answer = None if number is None else str(number)
            return Done(outcome={"answer": answer, "guesses": self._spent}, truncated=number != self._hidden)
        if number is None:
            return Observation("?\n")
        return Observation("+\n" if self._hidden > number else "-\n")
