"""Each rule of the diagnosis, on a core that is fed by hand."""

from __future__ import annotations

from msgspec.structs import replace

from broker.core.events import DiskFull
from broker.diagnosis import RULES, Finding, Severity, diagnose, graph
from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill, a_header

PATIENCE = {"broker__stall_notice_s": 10.0, "broker__dead_s": 1000.0, "broker__suspect_s": 500.0}
OTHERS = tuple(name for name in ALL if name != "reference-1")


def a_mill(*names: str, **overrides: object) -> Mill:
    mill = Mill(**{**PATIENCE, **overrides})
    for name in names:
        mill.hello(name)
    return mill


def running(*names: str, **overrides: object) -> Mill:
    """All stages at work, two tickets of one group at the env."""
    return Mill(**{**PATIENCE, **overrides}).up(*(names or ALL))


def first(mill: Mill) -> Finding:
    return diagnose(mill.state, mill.now)[0]


def test_a_run_of_which_nothing_is_wrong_has_no_findings() -> None:
    assert [finding for finding in diagnose(running().state, 0.0) if finding.severity is not Severity.NOTICE] == []


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_failed_run_is_named_before_anything_else() -> None:
    mill = running("host", *ALL)
    mill.send("host", wire.ProcessExited(name="env-1", code=1, final=True, restarts=5, last_lines=("boom",)))
    finding = first(mill)
    assert (finding.rule, finding.severity) == ("run_failed", Severity.FAILED)
    assert "env-1" in finding.what
    assert "boom" in finding.what


def test_a_full_disk_explains_all_the_rest() -> None:
    mill = running(*OTHERS)
    mill.feed(DiskFull())
    mill.tick(60.0)
    assert first(mill).rule == "disk_full"


def test_a_broker_that_came_back_says_for_whom_it_waits() -> None:
    mill = running()
    mill.restart()
    rules = {finding.rule: finding for finding in diagnose(mill.state, mill.now)}
    assert "env-1" in rules["broker_restarted"].what


def test_hosts_that_are_gone_start_nobody() -> None:
    mill = running("host", *ALL)
    mill.say("host", wire.Bye(reason="machine"))
    assert first(mill).rule == "host_gone"


def test_a_role_that_never_came_is_missing() -> None:
    mill = running(*OTHERS)
    mill.tick(30.0)
    finding = first(mill)
    assert finding.rule == "role_gone"
    assert finding.what.startswith("reference is missing")


def test_a_role_whose_processes_are_gone_is_named_with_each_end() -> None:
    mill = running("env-2", *ALL)
    mill.say("env-1", wire.Bye(reason="broken"))
    assert first(mill).rule == "process_gone"
    mill.say("env-2", wire.Bye())
    assert first(mill).rule == "role_gone"
    assert "all 2 processes" in first(mill).what
    assert "env-1 (bye broken)" in first(mill).what


def test_a_silent_process_is_named() -> None:
    mill = running(broker__suspect_s=3.0)
    mill.wait(20, *(name for name in ALL if name != "reward-1"))
    finding = first(mill)
    assert (finding.rule, finding.severity, finding.subject) == ("silent", Severity.STALL, "reward-1")


def test_a_silent_host_with_its_stages_is_a_machine() -> None:
    mill = a_mill("host", *(name for name in ALL if name != "env-1"), broker__suspect_s=3.0)
    mill.hello("env-1", host="host")
    mill.wait(20, *(name for name in ALL if name != "env-1"))
    assert first(mill).rule == "silent"
    assert first(mill).what.startswith("host host is silent")
    assert "env-1 with it" in first(mill).what


def test_a_stage_that_still_loads_is_named_once_nothing_else_moves() -> None:
    mill = running(*OTHERS)
    mill.hello("reference-1", ready=False)
    mill.tick(30.0)
    assert first(mill).rule == "starting"
    mill.say("reference-1", wire.Heartbeat(waiting="on files: nobody serves the model"))
    assert first(mill).what.endswith(": it waits on files: nobody serves the model")


def test_a_trainer_without_a_version_is_named() -> None:
    mill = a_mill(*ALL)
    mill.tick(30.0)
    assert first(mill).rule == "version_unpublished"


def test_a_version_that_nobody_verifies_is_named() -> None:
    mill = a_mill(*ALL)
    mill.commit("trainer", puts=[a_header("versions", newest_version=0, weights="w0")])
    mill.tick(30.0)
    assert first(mill).rule == "version_unverified"
    assert "sync works on it" in first(mill).what


def test_a_replica_without_a_receipt_is_named_with_the_version() -> None:
    mill = a_mill(*ALL)
    mill.publish(0)
    mill.tick(30.0)
    assert first(mill).rule == "no_receipt"
    assert "rollout-1 has sent no receipt for version 0" in first(mill).what


def test_installs_that_fail_are_named() -> None:
    mill = a_mill(*ALL)
    mill.publish(0)
    mill.send("rollout-1", wire.InstallFailed(number=0, reason="no such file"))
    assert first(mill).rule == "install_failed"


def test_a_reference_without_its_receipt_is_only_worth_a_notice() -> None:
    mill = running()
    mill.tick(30.0)
    notices = {finding.rule: finding.severity for finding in diagnose(mill.state, mill.now)}
    assert notices["reference_unproven"] is Severity.NOTICE


def test_an_evaluation_that_no_replica_can_play_is_named() -> None:
    mill = running(evaluation__at_start=True)
    mill.state.clients["rollout-1"].installed = 4
    mill.state.installs.clear()
    mill.now += 30.0
    finding = first(mill)
    assert finding.rule == "evaluation_pinned"
    assert "rollout-1 has 4, and it is not kept any more" in finding.what


def test_a_consumer_that_gives_no_credit_is_named() -> None:
    mill = running()
    mill.send("rollout-1", wire.Credit(queue="turns", window=0))
    mill.turn(mill.held("env-1", "tickets")[0], "env-1")
    mill.tick(30.0)
    finding = first(mill)
    assert finding.rule == "no_credit"
    assert "rollout-1 gives no credit for turns (window 0)" in finding.what


def test_a_slot_that_is_not_released_is_named_with_who_waits() -> None:
    mill = running()
    mill.send("reference-1", wire.GrantAsked(slots=("cpu:1",)))
    mill.send("trainer", wire.GrantAsked(slots=("cpu:1",)))
    mill.tick(30.0)
    finding = first(mill)
    assert finding.rule == "slot_held"
    assert "reference-1 has not released cpu:1" in finding.what
    assert "trainer waits for it" in finding.what


def test_a_step_that_takes_much_too_long_is_named() -> None:
    mill = running()
    mill.to_ready([1.0, 0.0])
    mill.tick(0.0)
    mill.tick(60.0)
    assert first(mill).rule == "step_late"
    assert "trainer computes step 1" in first(mill).what


def test_a_voided_step_is_told_of() -> None:
    mill = running()
    mill.to_ready([1.0, 0.0])
    mill.tick(0.0)
    mill.vote(1, ok=False)
    assert first(mill).rule == "step_voided"


def test_one_late_session_of_a_group_that_is_through_is_a_straggler() -> None:
    mill = running(schedule__steps=1)
    one, two = mill.held("env-1", "tickets")
    mill.score(mill.play(one), 1.0)
    mill.turn(two, "env-1")
    mill.tick(30.0)
    finding = first(mill)
    assert finding.rule == "straggler", finding
    assert f"ticket {two.header.ticket}" in finding.what
    assert "rollout-1" in finding.what


def test_what_is_held_too_long_is_named_by_what_its_holder_does() -> None:
    mill = running()
    for ticket in mill.held("env-1", "tickets"):
        mill.turn(ticket, "env-1")
    mill.tick(30.0)
    finding = first(mill)
    assert finding.rule == "overdue"
    assert "rollout-1: the generation has not answered for 30 s" in finding.what


def test_what_usually_takes_long_is_not_late() -> None:
    mill = running()
    for ticket in mill.held("env-1", "tickets"):
        mill.turn(ticket, "env-1")
    mill.state.queues["turns"].service_s = 20.0
    mill.now += 30.0
    assert "overdue" not in {finding.rule for finding in diagnose(mill.state, mill.now)}


def test_a_budget_without_room_for_a_group_is_named() -> None:
    mill = running("rollout-1", "reward-1", "reference-1", "trainer", "sync", "env-1")
    mill.state.ledger.charged = mill.state.settings.budget_bytes
    mill.state.leases.clear()
    mill.now += 30.0
    assert first(mill).rule == "budget_full"


def test_dead_letters_that_grow_are_named() -> None:
    mill = running(broker__member_retries=0, schedule__members=3)
    for ticket in mill.held("env-1", "tickets")[:3]:
        episode = mill.play(ticket)
        mill.commit("reward-1", fails=[wire.Failure(lease=episode.lease, boundary="verifier", reason="no such key")])
    finding = first(mill)
    assert finding.rule == "dead_letters"
    assert "no such key" in finding.what


def test_a_member_that_plays_on_is_told_of_while_the_trainer_waits() -> None:
    mill = running()
    one, two = (ticket for ticket in mill.held("env-1", "tickets") if ticket.header.group == 1)
    mill.score(mill.play(one), 1.0)
    mill.tick(30.0)
    mill.turn(two, "env-1")
    notices = [finding.what for finding in diagnose(mill.state, mill.now) if finding.rule == "last_member"]
    assert any(f"ticket {two.header.ticket}" in what for what in notices)


def test_a_stall_that_no_rule_explains_is_said_all_the_same() -> None:
    mill = running()
    mill.state.leases.clear()
    mill.state.trainer.idle = False
    mill.now += 30.0
    finding = first(mill)
    assert finding.rule == "unexplained"
    assert "nothing moved for 30 s" in finding.what


def test_an_idle_trainer_in_a_stall_starves() -> None:
    mill = running()
    mill.state.leases.clear()
    mill.now += 30.0
    assert first(mill).rule == "trainer_starved"


def test_what_moves_on_is_trouble_and_not_a_stall() -> None:
    mill = running()
    for ticket in mill.held("env-1", "tickets"):
        mill.turn(ticket, "env-1")
    mill.tick(30.0)
    mill.state.progress_at = mill.now
    assert first(mill).severity is Severity.TROUBLE


def test_a_run_that_ends_is_left_in_peace() -> None:
    mill = running()
    mill.say("observer", wire.StopAsked(reason="enough"), sender="observer/a")
    assert [finding.rule for finding in diagnose(mill.state, mill.now)] == ["ending"]


def test_the_graph_says_who_waits_for_whom() -> None:
    mill = running()
    mill.turn(mill.held("env-1", "tickets")[0], "env-1")
    mill.now += 5.0
    arrows = {(wait.who, wait.whom): wait for wait in graph(mill.state, mill.now)}
    assert arrows["env", "rollout-1"].since_s == 5.0
    assert "1 of turns" in arrows["env", "rollout-1"].what
    assert arrows["trainer", "complete groups"].what == "0 of 1 ready"


def test_looking_changes_nothing() -> None:
    mill = running()
    settings = replace(mill.state.settings)
    diagnose(mill.state, 99.0)
    graph(mill.state, 99.0)
    assert mill.state.settings == settings
    mill.check_fold()
