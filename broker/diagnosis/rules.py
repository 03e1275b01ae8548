"""The table of root causes. Order is causal: what stands above explains what stands below, so the first finding is the cause.

A rule that says `sure` is as bad as the table says whatever else moves; the others stall a run only while nothing moves at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from broker.core.state import Phase, State
from broker.diagnosis import hosts, processes, work
from broker.diagnosis.scene import Finding, Scene, Seen, Severity

FAILED, STALL, TROUBLE, NOTICE = Severity.FAILED, Severity.STALL, Severity.TROUBLE, Severity.NOTICE


class Rule(Struct, frozen=True):
    """A cause: its name, how bad it is, and how to see it."""

    name: str
    severity: Severity
    look: Callable[[Scene], Iterable[Seen]]
    sure: bool = False


RULES = (
    Rule("run_failed", FAILED, work.failed, sure=True),
    Rule("disk_full", STALL, work.disk_full, sure=True),
    Rule("broker_restarted", NOTICE, work.restarted),
    Rule("hosts_awaited", STALL, hosts.hosts_awaited, sure=True),
    Rule("host_gone", TROUBLE, hosts.hosts_gone),
    Rule("host_unfit", TROUBLE, hosts.hosts_unfit),
    Rule("role_gone", STALL, processes.roles_gone, sure=True),
    Rule("silent", STALL, processes.silent),
    Rule("starting", STALL, processes.starting),
    Rule("version_unpublished", STALL, processes.unpublished),
    Rule("version_unverified", STALL, processes.unverified),
    Rule("install_failed", TROUBLE, processes.installs_failed),
    Rule("no_receipt", STALL, processes.no_receipt),
    Rule("reference_unproven", NOTICE, processes.unproven),
    Rule("evaluation_pinned", STALL, processes.pinned),
    Rule("no_credit", STALL, work.no_credit),
    Rule("slot_held", STALL, processes.slots_held),
    Rule("step_voided", TROUBLE, work.step_voided),
    Rule("step_late", STALL, work.step_late),
    Rule("straggler", STALL, work.straggler),
    Rule("overdue", STALL, work.overdue),
    Rule("budget_full", STALL, work.budget_full),
    Rule("dead_letters", TROUBLE, work.letters_grow),
    Rule("last_member", NOTICE, work.last_member),
    Rule("process_gone", TROUBLE, processes.some_gone),
    Rule("no_slot", NOTICE, hosts.slots_lacking),
    Rule("trainer_starved", STALL, work.starved),
    Rule("unexplained", STALL, work.unexplained),
)
LEAVING = (RULES[0], Rule("ending", NOTICE, work.ending))
"""Of a run that is about to end."""
ORDER = list(Severity)


def diagnose(state: State, now: float) -> tuple[Finding, ...]:
    """Findings, the root cause first. A run that ends is left in peace, unless it failed."""
    scene = Scene(state, now)
    table = LEAVING if state.phase in (Phase.CLOSING, Phase.CLOSED) else RULES
    found = [finding for rule in table for finding in _findings(rule, scene)]
    explained = [finding for finding in found if finding.rule not in ("trainer_starved", "unexplained")]
    if any(finding.severity in (FAILED, STALL) for finding in explained):
        found = explained
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity)))


def _findings(rule: Rule, scene: Scene) -> Iterable[Finding]:
    severity = rule.severity
    if severity is STALL and not rule.sure and not scene.stalled:
        severity = TROUBLE
    for seen in rule.look(scene):
        yield Finding(rule=rule.name, severity=severity, what=seen.what, since_s=seen.since_s, subject=seen.subject, advice=seen.advice)
