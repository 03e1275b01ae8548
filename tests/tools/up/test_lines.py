"""A run as lines of text: pure."""

from tests.tools.up.builders import a_process, a_snapshot
from tools.up.facts import where
from tools.up.lines import QUIET_S, Lines


def some_lines() -> Lines:
    return Lines(began=100.0, stall_notice_s=10.0)


def test_each_process_is_named_once_when_it_is_ready() -> None:
    lines = some_lines()
    starting = a_snapshot(processes=[a_process(state="starting", pid=0)])
    ready = a_snapshot(processes=[a_process(slots=("cpu:1",), since_s=0.5)])
    assert not any("env-0" in line for line in lines.new(starting, 101.0))
    assert "env-0: env, process 41, cpu:1, ready after 1.5 s" in lines.new(ready, 102.0)
    assert not any("env-0" in line for line in lines.new(ready, 103.0))


def test_a_process_that_goes_and_comes_back_is_told_of() -> None:
    lines = some_lines()
    lines.new(a_snapshot(processes=[a_process()]), 101.0)
    assert "env-0: gone" in lines.new(a_snapshot(processes=[a_process(state="gone")]), 102.0)
    again = lines.new(a_snapshot(processes=[a_process(pid=77)]), 103.0)
    assert any(line.startswith("env-0: env, process 77") for line in again)


def test_a_step_is_one_line_with_its_numbers() -> None:
    (line,) = [line for line in some_lines().new(a_snapshot(), 101.0) if line.startswith("step")]
    assert line == (
        "step 3/24  reward 0.500  tool calls an episode 1.25  lag 0.75  accuracy 0.250 (version 0)  "
        "goodput 1,234 trained tokens/s  turns 7+2"
    )


def test_nothing_is_said_twice_and_silence_is_broken_now_and_then() -> None:
    lines = some_lines()
    lines.new(a_snapshot(), 101.0)
    assert lines.new(a_snapshot(), 101.5) == []
    assert len(lines.new(a_snapshot(), 101.0 + QUIET_S)) == 1


def test_an_evaluation_is_followed_and_its_result_told_once() -> None:
    lines = some_lines()
    playing = [{"version": 0, "accuracy": 0.5, "problems": 500, "scored": 120, "done": False}]
    ended = [{"version": 0, "accuracy": 0.28, "problems": 500, "scored": 500, "done": True}]
    said = lines.new(a_snapshot(step=0, phase="evaluating", evaluation=playing), 100.0 + QUIET_S)
    assert said == ["0:05 evaluating", "evaluating version 0: 120 of 500 problems"]
    result = "version 0: accuracy 0.280 on 500 held-out problems"
    assert result in lines.new(a_snapshot(step=0, evaluation=ended), 106.0)
    assert result not in lines.new(a_snapshot(step=1, evaluation=ended), 107.0)


def test_an_evaluation_of_which_all_failed_is_not_told_as_a_zero() -> None:
    failed = [{"version": 0, "accuracy": None, "problems": 16, "scored": 16, "failed": 16, "done": True}]
    said = some_lines().new(a_snapshot(step=1, evaluation=failed), 106.0)
    assert "version 0: not measured: all 16 held-out problems failed" in said
    assert not any("accuracy" in line for line in said)


def test_an_evaluation_of_which_some_failed_says_how_many() -> None:
    some = [{"version": 4, "accuracy": 0.25, "problems": 16, "scored": 16, "failed": 3, "done": True}]
    said = some_lines().new(a_snapshot(evaluation=some), 106.0)
    assert "version 4: accuracy 0.250 on 16 held-out problems, 3 of which failed" in said


def test_what_an_environment_does_not_tell_is_not_shown() -> None:
    said = some_lines().new(a_snapshot(metrics={"reward/mean": 0.5, "lag/mean": 0.75}), 101.0)
    (line,) = [line for line in said if line.startswith("step")]
    assert "tool calls" not in line
    assert "reward 0.500  lag 0.75" in line


def test_a_stall_says_who_waits_for_whom() -> None:
    lines = some_lines()
    lines.new(a_snapshot(), 101.0)
    wait = "actor-train waits for samples from reference since 11 s"
    said = lines.new(a_snapshot(stalled_s=11.0, waits=[wait]), 112.0)
    assert said[-2:] == ["no progress for 11 s:", f"  {wait}"]


def test_a_stall_names_its_cause_before_the_waits() -> None:
    lines = some_lines()
    lines.new(a_snapshot(), 101.0)
    found = [{"rule": "silent", "severity": "stall", "what": "env-0 is silent for 11 s"}]
    said = lines.new(a_snapshot(stalled_s=11.0, waits=["the rest waits"], findings=found), 112.0)
    assert said[-3:] == ["no progress for 11 s:", "  cause: env-0 is silent for 11 s", "  the rest waits"]


def test_time_left_follows_from_the_steps_seen() -> None:
    lines = some_lines()
    lines.new(a_snapshot(step=1), 101.0)
    (line,) = lines.new(a_snapshot(step=3), 105.0)
    assert "left 0:42" in line  # 21 steps of 2 s


def test_where_a_run_has_several_hosts_a_process_is_named_with_its_own() -> None:
    hosts = [a_process("head", role="host"), a_process("far", role="host")]
    env, replica = a_process("env-0", host="far"), a_process("rollout-0", host="far", slots=("cpu:0",))
    snapshot = a_snapshot(processes=[*hosts, env, replica])
    assert [where(row, snapshot) for row in (env, replica)] == ["far: all cores", "far: cpu:0"]
    alone = a_snapshot(processes=[hosts[1], env, replica])
    assert [where(row, alone) for row in (env, replica)] == ["", "cpu:0"]
