"""What the doctor says of hosts: who is awaited, who is gone, who cannot, where there is no room."""

from broker.diagnosis import diagnose
from broker.diagnosis.scene import Finding, Severity
from broker.waits import waits
from schemas import messages as wire
from tests.broker.core.mill import Mill
from tests.broker.core.test_fleet import a_far_host, ordered, the_head


def found(mill: Mill, rule: str) -> Finding:
    return next(finding for finding in diagnose(mill.state, mill.now) if finding.rule == rule)


def test_hosts_that_are_awaited_are_counted_and_those_here_named() -> None:
    mill = Mill(host__wait_for=3)
    the_head(mill)
    a_far_host(mill)
    assert found(mill, "hosts_awaited").what == "the run waits for hosts: 2 of 3 are here (host-head, host-far)"
    assert found(mill, "hosts_awaited").severity is Severity.STALL
    assert waits(mill.state, mill.now)[0].startswith("the run waits for 3 hosts; here: host-head, host-far")


def test_a_role_that_no_host_may_run_is_named_with_where_it_runs() -> None:
    mill = Mill()
    a_far_host(mill)
    finding = found(mill, "hosts_awaited")
    assert "may run actor-train, weight-sync" in finding.what
    assert f"only where the run directory is reached, {mill.state.run_directory}" in finding.what
    assert "without --directory" in finding.advice


def test_a_host_that_is_gone_is_named_with_what_waits_for_it() -> None:
    mill = Mill(host__wait_for=2)
    the_head(mill)
    a_far_host(mill)
    mill.wait(12, "host-far")
    finding = found(mill, "host_gone")
    assert finding.what.startswith("host host-head is gone since")
    assert "actor-train-0" in finding.what


def test_a_host_that_could_not_run_a_role_is_named_with_its_words() -> None:
    mill = Mill(host__wait_for=2, stages__env__replicas=2)
    the_head(mill)
    a_far_host(mill)
    (far,) = [name for name in ordered(mill, "host-far") if name.startswith("env")]
    mill.send("host-far", wire.ProcessExited(name=far, code=2, final=True, last_lines=("no module named mine",)))
    finding = found(mill, "host_unfit")
    assert finding.what == "host host-far cannot run env: no module named mine"
    assert "/far/host-far/logs/env-*.log on host host-far" in finding.advice


def test_a_replica_without_a_slot_is_named() -> None:
    mill = Mill(stages__rollout__replicas=3)
    the_head(mill)
    assert found(mill, "no_slot").what == "rollout-1, rollout-2 wait for a host: 2 slots are offered, and none that may serve is free"
