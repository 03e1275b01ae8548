"""Whether a run came through its storm as promised: what is wrong, sentence by sentence, and the figures to print."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from broker.core.state import State
from broker.journal import Entry, Journal
from broker.journal import checkpoint as checkpoints
from broker.status import summary
from stages.env.arithmetic import terms
from stages.env.calculator import Calculator
from tests.chaos.account import Account
from tests.chaos.lengths import compare
from tests.chaos.storm import Result

KILLED = -9
ORDINARY_EXITS = (0, KILLED, -15)
"""Sent home, struck, or ended by its host."""


@dataclass
class Verdict:
    """`wrong` is empty where every promise held."""

    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)


def judge(result: Result, least_accuracy: float | None = None, exits: Collection[int] = ORDINARY_EXITS) -> Verdict:
    """Reads the run directory; `least_accuracy` None asks for none; `exits`: codes with which a process may have ended."""
    verdict = Verdict()
    verdict.demand(result.exit_code == 0, f"exit code {result.exit_code}; see {result.run.with_suffix('.out')}")
    verdict.demand(not result.left, f"processes were left behind: {result.left}")
    if not (result.run / "summary.json").exists():
        verdict.wrong.append("there is no summary")
        return verdict
    told = json.loads((result.run / "summary.json").read_text())
    _judge_summary(verdict, told, least_accuracy)
    account, kept = _read_again(result.run)
    state = account.close()
    verdict.wrong += account.broken
    _judge_fold(verdict, account, state, kept, told)
    _judge_training(verdict, account, state)
    _judge_lengths(verdict, account, state)
    _judge_exits(verdict, account, exits)
    _tell_lost_time(verdict, account, result)
    return verdict


def _judge_summary(verdict: Verdict, told: dict[str, Any], least_accuracy: float | None) -> None:
    ledger = told["ledger"]
    ended = ledger["trained"] + ledger["evaluated"] + sum(ledger["dropped"].values()) + sum(ledger["failed"].values())
    verdict.demand(told["ended"] == "done" and told["steps"] == told["steps_asked"], f"{told['ended']} after {told['steps']} steps")
    verdict.demand(ledger["closed"] and ledger["in_flight"] == 0, f"the ledger is not closed: {ledger}")
    verdict.demand(ledger["issued"] == ended, f"{ledger['issued']} tickets were issued, {ended} ended")
    after = told["accuracy_after"]
    verdict.demand(least_accuracy is None or (after or 0.0) >= least_accuracy, f"accuracy {after}, asked for {least_accuracy}")
    verdict.told.append(f"accuracy {told['accuracy_before']} before, {after} after {told['steps']} steps, {told['wall_seconds']:.0f} s")
    verdict.told.append(
        f"{ledger['issued']} tickets: {ledger['trained']} trained, {ledger['evaluated']} evaluated, "
        f"dropped {ledger['dropped']}, failed {ledger['failed']}"
    )


def _read_again(run: Path) -> tuple[Account, dict[int, bytes]]:
    """The account of the whole journal, and the state in each checkpoint, by the number of entries it covers."""
    kept = {found.number: found.state for found in checkpoints.valid(run / "journal")}
    account = Account(wanted=frozenset(kept))
    for entry in entries_of(run):
        account.take(entry)
    return account, kept


def entries_of(run: Path) -> Iterator[Entry]:
    """All entries, read from a copy."""
    copy = run / "journal.copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run / "journal", copy)
    journal = Journal(copy)
    try:
        yield from journal.read()
    finally:
        journal.close()
        shutil.rmtree(copy)


def _judge_fold(verdict: Verdict, account: Account, state: State, kept: dict[int, bytes], told: dict[str, Any]) -> None:
    verdict.demand(
        bool(kept) and max(kept) == account.entries, f"the last checkpoint is not of the end: {sorted(kept)} of {account.entries}"
    )
    for number, live in kept.items():
        verdict.demand(account.snapshots.get(number) == live, f"the live state at entry {number} is not the fold of the journal")
    folded = json.loads(json.dumps(summary(state, 0.0)))
    verdict.demand({**folded, "wall_seconds": 0} == {**told, "wall_seconds": 0}, "the summary is not what the fold says")
    verdict.demand(not (state.tickets or state.leases or state.sessions), "the state still holds tickets, leases or sessions")
    verdict.told.append(f"{account.entries} entries folded, {len(kept)} checkpoints compared byte for byte")


def _judge_training(verdict: Verdict, account: Account, state: State) -> None:
    counts = Counter(ticket for tickets in account.committed.values() for ticket in tickets)
    twice = sorted(ticket for ticket, count in counts.items() if count > 1)
    verdict.demand(not twice, f"trained twice within the surviving lineage: tickets {twice[:10]}")
    steps = sorted(account.committed)
    verdict.demand(steps == list(range(1, state.trainer.step + 1)), f"committed steps are {steps}")
    if not account.steps_lost:
        verdict.demand(len(counts) == state.ledger.trained, f"{len(counts)} samples in committed plans, {state.ledger.trained} trained")
    verdict.told.append(f"{len(counts)} samples in {len(steps)} committed plans, none twice; {account.steps_lost} steps lost")


def _judge_lengths(verdict: Verdict, account: Account, state: State) -> None:
    lengths = {group: task_length(state, index) for group, index in account.issued.items()}
    through = [lengths[group] for group in account.through if group in lengths]
    if not through:
        verdict.wrong.append("no group came through")
        return
    compared = compare(through, list(lengths.values()))
    verdict.demand(compared.alike, str(compared))
    verdict.told.append(str(compared))
    came, issued = Counter(through), Counter(lengths.values())
    verdict.told.append("numbers in the task: " + ", ".join(f"{n}: {came[n]} of {issued[n]}" for n in sorted(issued)))


def task_length(state: State, index: int) -> int:
    """Numbers in the task's sum: its turns, and within a few its tokens, come from that."""
    stages: Any = state.config["stages"]
    options = dict(stages["env"].get("options") or {})
    laws = {key: options[key] for key in ("tail_exponent", "largest", "most_numbers") if key in options}
    return len(terms(Calculator.task(index, "train", state.settings.seed, **laws)["expression"]))


def _judge_exits(verdict: Verdict, account: Account, exits: Collection[int]) -> None:
    """A storm must not hide a stage that dies by itself."""
    others = [f"{name} ({code})" for name, code in account.exits if code not in exits]
    verdict.demand(not others, f"processes that died by themselves: {', '.join(others)}")


def _tell_lost_time(verdict: Verdict, account: Account, result: Result) -> None:
    """For each kill of the broker, from the last record that came before to the first after it; measured, not judged."""
    away = _seconds_away(result)
    for restarted, seconds in zip(account.restarts, away, strict=False):
        before = max((at for at in account.puts if at <= restarted), default=0.0)
        after = min((at for at in account.puts if at > restarted), default=restarted)
        verdict.told.append(
            f"broker killed: {seconds:.2f} s until another had read the journal, {after - restarted:.2f} s more to the first record, "
            f"{seconds + after - before:.2f} s between the records before and after"
        )


def _seconds_away(result: Result) -> list[float]:
    kills = [at for blow, at in result.struck if blow.target == "broker" and not blow.freeze_s]
    back = list(_recoveries(result.run / "logs" / "broker.log"))
    return [min((moment - at for moment in back if moment > at), default=0.0) for at in kills]


def _recoveries(log: Path) -> Iterator[float]:
    for line in log.read_bytes().splitlines():
        try:
            found = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue
        if found.get("event") == "recovered":
            yield datetime.fromisoformat(found["timestamp"]).timestamp()
