"""The run at a glance: one JSON-ready snapshot of the state, for the live view and for people. Pure; reads, never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from broker.core import evaluations, groups, ledger, versions
from broker.core.clients import TIMES
from broker.core.state import Client, Evaluation, Phase, Stand, State
from broker.core.waiting import counted
from broker.diagnosis import diagnose, graph
from broker.waits import waits
from schemas.edges import STAGES, Role


def status(state: State, now: float, refusals: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """See `tools/up` for a reader of every key."""
    return {
        "phase": phase_word(state), "elapsed_s": now - state.started_at, "processes": [_process(c, now) for c in state.clients.values()],
        "wanted": {name: process.role for name, process in state.processes.items()},
        "step": state.trainer.step, "steps": state.settings.steps, "version": versions.in_use(state), "lineage": state.trainer.lineage,
        "metrics": dict(state.metrics), "evaluation": [_evaluation(e) for e in state.evaluations], "queues": _queues(state, now),
        "ledger": ledger_counts(state), "goodput_tokens_per_second": goodput(state), "trained_tokens": state.ledger.trained_tokens,
        "stalled_s": max(0.0, now - state.progress_at), "stall_notice_s": state.settings.stall_notice_s, "waits": waits(state, now),
        "pond": len(groups.ready(state)), "failure": failure(state), "findings": to_builtins(diagnose(state, now)),
        "graph": to_builtins(graph(state, now)), "dead_letters": {"kept": len(state.dead), "dropped": state.dead_dropped},
        "disk_full": state.disk_full, "refusals": list(refusals),
    }  # fmt: skip


def phase_word(state: State) -> str:
    """The phase as people know it."""
    if state.failure is not None:
        return "failed"
    if state.phase is Phase.RUNNING:
        return "evaluating" if evaluations.open_one(state) is not None and state.first_train_at is None else "training"
    return state.phase.value


def _process(client: Client, now: float) -> dict[str, Any]:
    stand = "gone" if not client.connected else "suspect" if client.suspect else "ready" if client.ready else "starting"
    return {
        "name": client.name, "role": client.role, "pid": client.pid, "host": client.host, "slots": list(client.slots), "state": stand,
        "since_s": now - client.since, "waiting": client.waiting, "stats": dict(client.stats), "epoch": client.epoch,
        "held": {queue: count for queue, count in client.held.items() if count}, "installed": client.installed,
        "windows": dict(client.windows), "progress_s": now - max(client.progress_at, client.since), "silent_s": now - client.last_seen,
        "lost": client.lost, "place": client.place,
    }  # fmt: skip


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    ended = evaluation.scored + evaluation.failed
    return {
        "version": evaluation.version, "problems": evaluation.problems, "scored": ended, "done": evaluation.ended_at is not None,
        "failed": evaluation.failed, "accuracy": evaluations.accuracy(evaluation), "measure": evaluations.measure(evaluation),
    }  # fmt: skip


def _queues(state: State, now: float) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, queue in state.queues.items():
        head = next(iter(queue.back), None) or next(iter(queue.ready), None)
        age = now - state.messages[head].put_at if head is not None else 0.0
        rows[name] = {
            "depth": len(queue.ready) + len(queue.back), "leased": queue.leased, "interval_s": queue.interval_s, "jitter_s": queue.jitter_s,
            "age_s": age, "wait_s": queue.wait_s, "service_s": queue.service_s, "puts": queue.puts, "redeliveries": queue.redeliveries,
            "deliveries": queue.deliveries, "waited_s": queue.waited_s, "ready_groups": 0, "dead_letters": 0,
        }  # fmt: skip
        rows[name]["starved_s"], rows[name]["blocked_s"] = counted(queue.waiting, now)
    for letter in state.dead.values():
        rows[letter.queue]["dead_letters"] += 1
    rows["samples"]["ready_groups"] = len(groups.ready(state))
    rows["samples"]["depth"] = sum(1 for ticket in state.tickets.values() if ticket.stand is Stand.READY)
    return rows


def ledger_counts(state: State) -> dict[str, Any]:
    """Issued tickets and their endings; `closed` where nothing is in flight and the sum holds."""
    book = state.ledger
    flying = ledger.in_flight(state)
    return {
        "issued": book.issued, "trained": book.trained + book.provisional, "provisional": book.provisional, "evaluated": book.evaluated,
        "dropped": dict(book.dropped), "failed": dict(book.failed), "in_flight": flying,
        "closed": flying == 0 and book.provisional == 0 and not ledger.violations(state),
        "lengths": {ending: {str(2**bucket): n for bucket, n in sorted(counts.items())} for ending, counts in book.lengths.items()},
    }  # fmt: skip


def goodput(state: State) -> float:
    """Tokens under the loss mask in committed steps, per second from the first train ticket to the last committed step."""
    if state.first_train_at is None or state.last_step_at is None or state.last_step_at <= state.first_train_at:
        return 0.0
    return state.ledger.trained_tokens / (state.last_step_at - state.first_train_at)


def failure(state: State) -> dict[str, Any] | None:
    """Why the run cannot go on."""
    if state.failure is None:
        return None
    f = state.failure
    return {"stage": f.stage, "reason": f.reason, "last_lines": list(f.last_lines), "advice": f.advice}


def summary(state: State, now: float) -> dict[str, Any]:
    """The contents of `summary.json`."""
    done = [e for e in state.evaluations if e.scored + e.failed == e.problems and e.problems]
    before = next((e for e in done if e.version == 0), None)
    after = next((e for e in reversed(done) if e.version == state.trainer.step and e.version > 0), None)
    trained = state.last_step_at - state.first_train_at if state.last_step_at and state.first_train_at is not None else 0.0
    return {
        "pipeline": state.settings.pipeline, "seed": state.settings.seed, "ended": _ended(state), "wall_seconds": now - state.started_at,
        "accuracy_before": evaluations.accuracy(before) if before else None,
        "accuracy_after": evaluations.accuracy(after) if after else None,
        "evaluation_failed_before": before.failed if before else None, "evaluation_failed_after": after.failed if after else None,
        "evaluation_measure": "mean reward" if any(e.graded for e in state.evaluations) else "accuracy",
        "evaluation_problems": state.settings.evaluation_problems, "train_seconds": trained, "steps": state.trainer.step,
        "steps_asked": state.settings.steps, "goodput_tokens_per_second": goodput(state), "trained_tokens": state.ledger.trained_tokens,
        "lineage": state.trainer.lineage, "ledger": ledger_counts(state), "time": _where_time_went(state), "failure": failure(state),
        "metrics": state.metrics,
    }  # fmt: skip


def _ended(state: State) -> str:
    if state.failure is not None:
        return "failed"
    return "stopped" if state.stop_reason is not None else "done"


def _where_time_went(state: State) -> dict[str, dict[str, float]]:
    """Per stage, over its processes: seconds of work, of waiting, and of processor time, as they reported them."""
    rows: dict[str, dict[str, float]] = {}
    for role in (*STAGES, Role.HOST):
        row: dict[str, float] = {}
        for client in state.clients.values():
            if client.role == role:
                for key in TIMES:
                    row[key] = row.get(key, 0.0) + client.spent.get(key, 0.0) + client.stats.get(key, 0.0)
        if row:
            rows[role.value] = row
    return rows
