"""A broker that is killed under a run leaves a journal that every command reads; so does one that is at work."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from broker.journal import checkpoint as checkpoints
from broker.policy.registry import DEFAULT
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.tools.records.recorded import tidemill
from tools.records import views
from tools.records.cutting import cut
from tools.records.ending import ending_of
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.records.story import subject_of
from tools.records.tail import tail_of
from tools.records.telling import tell
from tools.replay.asking import Asking
from tools.replay.recording import Recording
from tools.replay.whatif import decisions

STEPS = 25
KILLS = 3


def looked_at(run: Path) -> int:
    """Looks at all of it as far as it goes: records by the scan alone are those that the fold knows too. Returns how many there are."""
    with open_run(str(run)) as opened, Look(opened) as look:
        look.scan()
        scanned = look.all_rows(Selection(begin=0.0))
        ending = ending_of(look)
        known = look.index.meta.followed
        assert (ending.is_whole, known.note) == (True, "")
        assert list(views.warnings(look.index, tail_of(look), manifest={})) == []
        tickets = [int(ticket) for ticket in scanned["ticket"] if ticket >= 0]
        for ticket in dict.fromkeys(tickets[-1:] + tickets[:1]):
            story = tell(look, subject_of(f"ticket:{ticket}"))
            assert (story.note, story.facts[0].kind) == ("", "issued")
        return int((scanned["flags"] == 0).sum())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A run whose broker was killed and started again, to its end; and copies of what lay there after each kill."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("killed")
    run, copies = folder / "run", []
    config = a_run_config(folder, f"schedule.steps={STEPS}", "schedule.members=4", "schedule.groups_per_step=4")
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint) as crew:
        for kill in range(KILLS):
            crew.wait_for_answers(crew.answered + rng.randint(50, 250))
            if kill == 0:
                with broker.frozen():  # or the run would be over before all that was looked at
                    looked_at_live(run)
            broker.kill()
            copies.append(folder / f"copy-{kill}")
            shutil.copytree(run, copies[-1])
            broker.start()
        crew.wait_until_home()
        broker.wait()
    return run, copies


def looked_at_live(run: Path) -> None:
    with open_run(str(run)) as opened, Look(opened) as look:
        assert opened.is_live
        first = len(look.all_rows(Selection(begin=0.0)))
        ticket = int(look.all_rows(Selection(queue="episodes"))["ticket"][0])
        assert first > 0
        assert tell(look, subject_of(f"ticket:{ticket}")).facts[0].kind == "issued"
    with open_run(str(run)) as opened, Look(opened) as look:  # what was kept of the first look is of use to the next
        assert len(look.all_rows(Selection(begin=0.0))) >= first
    shown = tidemill("inspect", str(run))
    assert shown.returncode == 0, shown.stderr
    assert "its broker is at work" in shown.stdout


def test_what_a_kill_left_is_read_to_the_last_commit(killed: tuple[Path, list[Path]]) -> None:
    records = [looked_at(copy) for copy in killed[1]]
    assert records == sorted(records)
    assert records[0] > 0


def test_a_killed_broker_is_told_from_one_that_ended(killed: tuple[Path, list[Path]]) -> None:
    run, copies = killed
    assert "killed, or still to be resumed" in tidemill("inspect", str(copies[0])).stdout
    assert "the run has ended" in tidemill("inspect", str(run)).stdout


def test_a_run_through_several_deaths_is_followed_to_the_brokers_own_state(killed: tuple[Path, list[Path]]) -> None:
    run, _ = killed
    looked_at(run)
    assert checkpoints.paths(run / "journal"), "states of the broker were met on the way, and none was another"
    with open_run(str(run)) as opened, Look(opened) as look:
        look.catch_up()
        known, events = look.index.meta.followed, views.events_of(look.index.meta)
    assert events["restarted"] == KILLS
    assert {row.step for row in known.steps} == set(range(1, STEPS + 1))


def test_a_ticket_of_a_killed_run_is_cut_out_and_opens_elsewhere(killed: tuple[Path, list[Path]], tmp_path: Path) -> None:
    copy = killed[1][-1]
    with open_run(str(copy)) as opened, Look(opened) as look:
        ticket = int(look.all_rows(Selection(queue="samples"))["ticket"][-1])
        wanted = tell(look, subject_of(f"ticket:{ticket}")).facts
        cut(look, subject_of(f"ticket:{ticket}"), tmp_path / "out.tide", redact=False)
    with open_run(str(tmp_path / "out.tide")) as opened, Look(opened) as look:
        assert tell(look, subject_of(f"ticket:{ticket}")).facts == wanted


def test_the_recorded_policies_decide_as_they_did_through_several_deaths(killed: tuple[Path, list[Path]]) -> None:
    asking = Asking(DEFAULT, None)
    with open_run(str(killed[0])) as opened:
        recording = Recording(opened.journal, asking.policies)
        found = list(decisions(opened, recording, asking))
    assert recording.note == ""
    assert {dated.decision.kind for dated in found} == {"placement", "admission", "grouping"}
    assert not [dated for dated in found if dated.decision.differs]
