"""Chaos runs: `python -m tests.chaos --seed 1 --minutes 2 --runs 3`. Exit code 1 where a promise was broken.

Each run trains the quickstart to its end while its processes are struck, then its journal is read again and judged.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.schedule import LONGEST_FREEZE_S, schedule
from tests.chaos.storm import Storm
from tests.chaos.verdict import judge

LEAST_ACCURACY = 0.90


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="decides who is struck when; default: drawn and printed")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the storm lasts; the run then goes on in peace")
    parser.add_argument("--kills-per-minute", type=float, default=10.0, help="blows a minute, freezes among them")
    parser.add_argument("--freeze-share", type=float, default=0.4, help="share of blows that are SIGSTOP instead of kill -9")
    parser.add_argument("--longest-freeze", type=float, default=LONGEST_FREEZE_S, help="seconds of the longest freeze")
    parser.add_argument("--runs", type=int, default=1, help="runs, with seeds one after the other")
    parser.add_argument("--accuracy", type=float, default=LEAST_ACCURACY, help="to be reached; 0 asks for none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the pipeline")
    parser.add_argument("--directory", type=Path, help="where run directories go; default: a folder in the temporary one")
    return parser.parse_args()


def say(line: str) -> None:
    print(f"  {line}", flush=True)


def one_run(asked: argparse.Namespace, seed: int, directory: Path) -> bool:
    """Whether every promise held."""
    blows = schedule(seed, asked.minutes, asked.kills_per_minute, asked.freeze_share, asked.longest_freeze)
    print(f"seed {seed}: {len(blows)} blows in {asked.minutes:g} minutes, in {directory / f'chaos-{seed}'}", flush=True)
    result = Storm(directory / f"chaos-{seed}", [f"run.seed={seed}", *asked.set], blows, say).play()
    verdict = judge(result, asked.accuracy or None)
    for line in verdict.told:
        say(line)
    for line in verdict.wrong:
        say(f"BROKEN: {line}")
    struck = f"{len(result.struck)} blows struck, {len(result.missed)} missed"
    print(f"seed {seed}: {'every promise held' if not verdict.wrong else f'{len(verdict.wrong)} BROKEN'}; {struck}, "
          f"{result.seconds:.0f} s", flush=True)  # fmt: skip
    return not verdict.wrong


def main() -> int:
    asked = arguments()
    first = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="tidemill-chaos-"))
    held = [one_run(asked, first + number, directory) for number in range(asked.runs)]
    print(f"{sum(held)} of {len(held)} runs held every promise; their directories are in {directory}")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
