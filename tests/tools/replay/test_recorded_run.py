"""A recorded run's stages are played again: they answer as they did, and what is otherwise is found."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import structlog

from broker.core.events import Received
from broker.journal import Position
from broker.journal import checkpoint as checkpoints
from broker.policy.registry import DEFAULT
from schemas.edges import Role
from schemas.errors import ConfigError
from schemas.messages import Commit, Welcome
from tests.tools.replay.recorded import BUGGY, FIXED, HOUSE, SETTINGS, record, tidemill
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.replay import whatif
from tools.replay.asking import Asking
from tools.replay.command import Asked, run_replay
from tools.replay.configuration import replay_config
from tools.replay.errors import VersionGone
from tools.replay.lookahead import Part
from tools.replay.process import RECORDED, ProcessStand
from tools.replay.recording import Recording
from tools.replay.whatif import decisions, run_whatif

STAGES = ("reward", "reference", "env", "weight-sync", "actor-train", "rollout")


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def played(run: Path, stage: str, **asked: object) -> int:
    """In this process: torch is loaded once for all."""
    return run_replay(Asked(run=str(run), stage=stage, diff=True, in_process=True, **asked))  # type: ignore[arg-type]


def failed_session(run: Path) -> str:
    """The first session whose reward failed."""
    for moment in Recording(run / "journal").moments():
        if isinstance(moment.event, Received) and isinstance(moment.event.message, Commit) and moment.event.message.fails:
            lease = moment.event.message.fails[0].lease
            return next(session for given, session in _leases(run) if given == lease)
    raise AssertionError("no verifier failed in this run")


def _leases(run: Path) -> Iterator[tuple[int, str]]:
    for moment in Recording(run / "journal").moments():
        for order in moment.orders:
            if hasattr(order.message, "lease") and hasattr(order.message, "header"):
                yield order.message.lease, f"{order.message.header.ticket}.{order.message.header.attempt}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_answers_as_it_did(hunt: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(hunt, stage) == 0, capsys.readouterr().out


@pytest.mark.parametrize("stage", ["reward", "reference", "actor-train", "rollout"])
def test_a_replay_gives_the_same_bytes_twice(hunt: Path, stage: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        played(hunt, stage, output=tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("stage", ["reward", "env", "weight-sync"])
def test_a_stage_in_a_process_of_its_own_answers_as_it_did(hunt: Path, stage: str) -> None:
    done = tidemill(hunt.parents[1], "replay", "runs/hunt", "--stage", stage, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_run_is_changed_by_a_replay(hunt: Path) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in hunt.rglob("*") if path.is_file()}

    before = files()
    for stage in ("weight-sync", "actor-train"):
        played(hunt, stage)
    assert files() == before


def test_a_bug_in_a_users_reward_is_found_stepped_through_and_mended(hunt: Path) -> None:
    folder, session = hunt.parents[1], failed_session(hunt)
    replay = ("replay", "runs/hunt", "--stage", "reward", "--only", session)
    assert tidemill(folder, *replay, "--diff").returncode == 0, "the bug is reproduced"

    stepped = tidemill(folder, *replay, "--in-process", "--pdb", typed="c\nc\np answer\nq\n")
    assert "my_reward.py" in stepped.stdout
    assert "raise ValueError" in stepped.stdout, "the debugger stands where it was raised"
    assert "'-" in stepped.stdout, "and shows the answer"

    mended = tidemill(folder, *replay, "--code", "fixed", "--diff")
    assert mended.returncode == 1
    assert f"session {session}" in mended.stdout
    assert "not a number" in mended.stdout
    assert "'reward':" in mended.stdout


def test_a_wrong_parse_is_shown_with_both_rewards(hunt: Path) -> None:
    wrong = tidemill(hunt.parents[1], "replay", "runs/hunt", "--stage", "reward", "--code", "wrong", "--diff")
    assert wrong.returncode == 1
    assert re.search(r"\d+ answers differ in puts.record.reward, first in: sample of session \d+\.1 ", wrong.stdout), wrong.stdout


def test_another_learning_rate_gives_other_weights_and_says_by_how_much(hunt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(hunt, "actor-train", only="step:2", overrides=("algorithm.learning_rate=1e-3",)) == 1
    said = capsys.readouterr().out
    # Step 2 of 3, where the rate falls to a tenth: 0.55 of 4e-4, and of 1e-3.
    rates = re.search(r"metrics.optim/learning_rate: recorded (\S+), now ([0-9.e-]+)", said)
    assert rates is not None, said
    assert [float(rate) for rate in rates.groups()] == pytest.approx([2.2e-4, 5.5e-4])
    assert "version 0-2:" in said
    assert "by at most" in said


def test_one_step_is_played_from_the_checkpoint_before_it(hunt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(hunt, "actor-train", only="step:3") == 0
    assert "1 records and orders given" in capsys.readouterr().out


def test_a_version_that_is_gone_stops_it_with_its_name(hunt: Path, tmp_path: Path) -> None:
    shutil.copytree(hunt, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "versions" / "0-0")
    for stage in ("rollout", "weight-sync"):
        with pytest.raises(VersionGone, match="version_gone: .*version 0"):
            played(tmp_path / "cut", stage)


def test_a_session_cut_out_of_a_run_is_played_from_the_cut_alone(hunt: Path) -> None:
    folder, session = hunt.parents[1], failed_session(hunt)
    cut = tidemill(folder, "cut", "runs/hunt", "--around", f"session:{session}", "out.tide")
    assert cut.returncode == 0, cut.stderr
    done = tidemill(folder, "replay", "out.tide", "--stage", "reward", "--only", session, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "records and orders given" in done.stdout


def test_a_cut_is_judged_where_its_model_is_not(hunt: Path, tmp_path: Path) -> None:
    """As on the machine of whom it was sent to."""
    folder, session = hunt.parents[1], failed_session(hunt)
    assert tidemill(folder, "cut", "runs/hunt", "--around", f"session:{session}", str(tmp_path / "whole.tide")).returncode == 0
    with zipfile.ZipFile(tmp_path / "whole.tide") as whole, zipfile.ZipFile(tmp_path / "case.tide", "w") as case:
        for name in whole.namelist():
            data = whole.read(name)
            if name == "config.json":
                config = json.loads(data)
                data = json.dumps({**config, "model": {**config["model"], "path": "/nowhere"}}).encode()
            case.writestr(name, data)
    replay = ("replay", str(tmp_path / "case.tide"), "--only", session, "--diff", "--stage")
    judged = tidemill(folder, *replay, "reward")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    refused = tidemill(folder, *replay, "env")
    assert refused.returncode == 2
    assert "/nowhere is not on this machine; say where it is: --set model.path=FOLDER" in refused.stderr


def test_a_stage_in_a_process_of_its_own_is_told_which_part_of_the_journal_is_played(hunt: Path) -> None:
    """A rollout looks up there how its turns were sampled: in that part, not in all of a large run."""
    with open_run(str(hunt)) as run:
        config = replay_config(run, ())
        part = Part(journal=str(run.journal), start=Position(0, 4096), last=7)
    stand = ProcessStand(Role.REWARD, Welcome(epoch=1, next_seq=1, config=config, run_directory=str(hunt)), "reward-0", part)
    try:
        environment = Path(f"/proc/{stand.pid}/environ").read_bytes().split(b"\0")
    finally:
        stand.close()
    told = next(value for name, _, value in (variable.partition(b"=") for variable in environment) if name.decode() == RECORDED)
    assert msgspec.json.decode(told, type=Part) == part


def test_what_was_not_recorded_is_refused(hunt: Path) -> None:
    with pytest.raises(ConfigError, match="nothing of"):
        played(hunt, "reward", only="99999")
    with pytest.raises(ConfigError, match="there are env, rollout"):
        played(hunt, "host")


def test_an_answer_that_stdout_does_not_take_is_told_of(hunt: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -P -m tools replay runs/hunt --stage reward --in-process > /dev/full"
    done = subprocess.run(command, shell=True, cwd=hunt.parents[1], stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (1, "tidemill: stdout: No space left on device; what was printed is not all\n")


def test_the_recorded_policies_reproduce_the_recorded_decisions(hunt: Path) -> None:
    asking = Asking(DEFAULT, None)
    with open_run(str(hunt)) as run:
        recording = Recording(run.journal, asking.policies)
        found = list(decisions(run, recording, asking))
    assert {dated.decision.kind for dated in found} == {"placement", "admission", "grouping"}
    assert not [dated for dated in found if dated.decision.differs]
    assert recording.note == ""
    [last] = list(checkpoints.valid(hunt / "journal"))[:1]
    assert msgspec.msgpack.encode(recording.state) == last.state, "the fold is the broker's own state, byte for byte"


def asked_otherwise(
    run: Path, *overrides: str, policies: tuple[str, ...] = (), begin: float | None = None, end: float | None = None
) -> int:
    return run_whatif(whatif.Asked(run=str(run), policies=policies, overrides=overrides, begin=begin, end=end))


def test_another_bound_admits_otherwise_at_the_recorded_states(hunt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_otherwise(hunt, "schedule.max_lag=0") == 0
    said = capsys.readouterr().out
    decided = re.search(
        r"admission .*\n +recorded +groups=(\d+) .*scores admitted=\d+ .*\n +other +groups=(\d+) .*scores admitted=\d+ ", said
    )
    assert decided is not None, said
    assert int(decided[1]) > int(decided[2])
    assert "placement:" in said
    with pytest.raises(ConfigError, match="no decision depends on"):
        asked_otherwise(hunt, "algorithm.learning_rate=1")
    with pytest.raises(ConfigError, match="there are placement=sticky"):
        asked_otherwise(hunt, policies=("placement=nearest",))


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("schedule.max_lag=0", "admission"), ("schedule.kind=sync", "admission"), ("schedule.groups_per_step=2", "admission"),
        ("schedule.members=40000", "admission"), ("broker.budget_bytes=40000", "admission"), ("schedule.drop_uniform=false", "grouping"),
        ("schedule.max_refills=0", "grouping"),
    ],
)  # fmt: skip
def test_every_constant_of_a_decision_can_be_asked_about(hunt: Path, override: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_otherwise(hunt, override) == 0
    (differ,) = re.findall(rf"{kind}: \d+ decisions, (\d+) differ", capsys.readouterr().out)
    assert int(differ) > 0


def test_a_part_of_the_run_is_asked_about(hunt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for begin, end in ((None, None), (None, 12.0), (12.0, None)):
        assert asked_otherwise(hunt, "schedule.max_lag=0", begin=begin, end=end) == 0
        counts.append(int(re.findall(r"placement: (\d+) decisions", capsys.readouterr().out)[0]))
    assert counts[0] == counts[1] + counts[2]


def commands_of_the_page() -> list[tuple[str, str, int]]:
    """Each command of docs/replay.md: the command, what is typed into it, and its exit code."""
    found: list[tuple[str, str, int]] = []
    for line in (HOUSE / "docs/replay.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("$ tidemill "):
            command, _, remark = line.removeprefix("$ tidemill ").partition("#")
            found.append((command.strip(), "", 1 if "exit code 1" in remark else 0))
        elif line.startswith("(Pdb) "):
            command, typed, code = found[-1]
            found[-1] = (command, f"{typed}{line.removeprefix('(Pdb) ')}\n", code)
    return found


def test_the_run_of_the_walk_through_is_the_one_that_is_recorded_for_it() -> None:
    page = (HOUSE / "docs/replay.md").read_text(encoding="utf-8")
    (up,) = (command for command, _, _ in commands_of_the_page() if command.startswith("up "))
    assert up.split()[1:4] == ["compose/pipelines/calculator.toml", "--name", "hunt"]
    settings = [setting for before, setting in pairwise(shlex.split(up)) if before == "--set"]
    assert [*settings, "run.directory=runs"] == list(SETTINGS)
    assert f"# then/my_reward.py\n{BUGGY.lstrip()}" in page
    assert f"# fixed/my_reward.py{FIXED}" in page


@pytest.mark.slow
@pytest.mark.parametrize(("command", "typed", "code"), [asked for asked in commands_of_the_page() if not asked[0].startswith("up ")])
def test_each_command_of_the_walk_through_does_what_the_page_says(hunt: Path, command: str, typed: str, code: int) -> None:
    command = command.replace("43.1", failed_session(hunt)).replace("45.1", slow_session(hunt))
    if " case.tide" in command and command.startswith("cut"):
        (hunt.parents[1] / "case.tide").unlink(missing_ok=True)
    done = tidemill(hunt.parents[1], *shlex.split(command), typed=typed)
    assert done.returncode == code, f"tidemill {command}\n{done.stdout}{done.stderr}"


def slow_session(run: Path) -> str:
    """The session whose reward took longest."""
    with open_run(str(run)) as opened, Look(opened) as look:
        look.catch_up()
        rows = look.all_rows(Selection(queue="scored"))
        row = rows[int(np.nanargmax(rows["took"]))]
    return f"{row['ticket']}.{row['attempt']}"


def test_a_slow_path_is_seen_in_the_run_and_in_its_replay(hunt: Path) -> None:
    folder, session = hunt.parents[1], slow_session(hunt)
    listed = tidemill(folder, "inspect", "runs/hunt", "--stage", "reward", "--slowest", "1")
    assert f" {session} " in listed.stdout
    replay = ("replay", "runs/hunt", "--stage", "reward", "--in-process", "--slowest", "1")
    slow, mended = (tidemill(folder, *replay, *more).stdout for more in ((), ("--code", "fixed")))
    seconds = [float(found) for said in (slow, mended) for found in re.findall(r"^ +([0-9.]+) s  episode of session", said, re.MULTILINE)]
    assert len(seconds) == 2
    assert seconds[0] >= 0.2, "the sleep that the reward hides"
    with pytest.raises(ConfigError, match="one record at a time"):
        played(hunt, "rollout", slowest=1)
