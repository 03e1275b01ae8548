"""A cut says of its id what the whole run says, opens anywhere, and gives away nothing where it is redacted."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.core.events import Received, decode_event, encode_event
from broker.journal.reading import Damage, Scan
from schemas.errors import ConfigError
from schemas.messages import Commit, Failure
from tests.tools.records.recorded import entries_of, write_run
from tests.tools.records.test_damage import changed, of_another_schema
from tests.tools.sim.scenarios import a_scenario
from tools.records import views
from tools.records.conversing import conversation
from tools.records.cutting import cut
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.records.story import subject_of
from tools.records.tail import tail_of
from tools.records.telling import tell
from tools.sim.driver import Entry
from tools.sim.scenario import Faults, Kill

SUBJECTS = ("ticket:9", "session:9.1", "group:9", "step:2", "version:2")


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    kills = (Kill(name="env-0", at=3.0), Kill(name="rollout-0", at=4.0))
    return entries_of(a_scenario(3, faults=Faults(kills=kills)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> Iterator[Look]:
    with Look(open_run(str(write_run(tmp_path_factory.mktemp("cut") / "run", entries, segment_bytes=60_000)))) as look:
        look.catch_up()
        yield look


@pytest.mark.parametrize("text", SUBJECTS)
def test_a_cut_tells_the_same_story(text: str, run: Look, tmp_path: Path) -> None:
    manifest = cut(run, subject_of(text), tmp_path / "out.tide", redact=False)
    with open_run(str(tmp_path / "out.tide")) as opened, Look(opened) as look:
        found, wanted = tell(look, subject_of(text)), tell(run, subject_of(text))
        assert (found.note, wanted.note) == ("", "")
        assert found.facts == wanted.facts
        assert manifest["first"] == wanted.facts[0].number
        assert list(views.warnings(look.index, tail_of(look), manifest=opened.manifest)) == [views.manifest_line(manifest)]
    assert not opened.directory.exists()


def test_the_records_of_its_id_are_whole_and_others_have_no_frames(run: Look, tmp_path: Path) -> None:
    cut(run, subject_of("ticket:9"), tmp_path / "out.tide", redact=False)
    with open_run(str(tmp_path / "out.tide")) as opened, Look(opened) as look:
        rows = look.all_rows(Selection(queue="episodes"))
        for row in rows:
            record = look.record(int(row["number"]), int(row["part"]))
            assert bool(record.arrays) == (row["ticket"] == 9)
            assert bool(record.remarks) != (row["ticket"] == 9)
        assert conversation(look, 9, None) == conversation(run, 9, None)


def test_a_cut_can_be_cut_again(run: Look, tmp_path: Path) -> None:
    cut(run, subject_of("step:2"), tmp_path / "step.tide", redact=True)
    with open_run(str(tmp_path / "step.tide")) as opened, Look(opened) as look:
        ticket = int(look.all_rows(Selection(step=2, queue="samples"))["ticket"][0])
        manifest = cut(look, subject_of(f"ticket:{ticket}"), tmp_path / "ticket.tide", redact=False)
    assert manifest["redacted"]
    with open_run(str(tmp_path / "ticket.tide")) as opened, Look(opened) as look:
        assert tell(look, subject_of(f"ticket:{ticket}")).facts[-1].detail == "trained(2)"


@pytest.mark.parametrize("text", ["group:9", "step:2"])
def test_a_redacted_cut_keeps_lengths_and_figures_and_no_token(text: str, run: Look, tmp_path: Path) -> None:
    cut(run, subject_of(text), tmp_path / "open.tide", redact=False)
    cut(run, subject_of(text), tmp_path / "out.tide", redact=True)
    with (
        open_run(str(tmp_path / "open.tide")) as first, Look(first) as plain,
        open_run(str(tmp_path / "out.tide")) as second, Look(second) as blank,
    ):  # fmt: skip
        assert second.manifest["redacted"]
        rows = plain.all_rows(Selection(begin=0.0))
        for row in rows[rows["bytes"] > 0][::7]:
            one, two = (look.record(int(row["number"]), int(row["part"])) for look in (plain, blank))
            assert [(name, len(array)) for name, array in one.arrays.items()] == [(name, len(array)) for name, array in two.arrays.items()]
            for name, array in two.arrays.items():
                assert not array.any() if name in ("tokens", "kept_ids") else np.array_equal(array, one.arrays[name])
            assert two.remarks == one.remarks
            assert two.body.get("reward") == one.body.get("reward")
            assert not two.body.get("task") or two.body["task"] != one.body["task"] or not any(one.body["task"].values())
        assert tell(blank, subject_of(text)).facts[-1] == tell(plain, subject_of(text)).facts[-1]


def failing_at_reward(entries: list[Entry]) -> tuple[list[Entry], int]:
    """The run up to the first answer of reward, which is a failure instead; and its ticket."""
    for place, entry in enumerate(entries):
        event = decode_event(entry.event)
        if not (isinstance(event, Received) and isinstance(event.message, Commit)):
            continue
        commit = event.message
        if [header.queue for header in commit.puts] == ["scored"]:
            failure = Failure(lease=commit.acks[0], boundary="verifier", reason="secret 42")
            failing = Received(sender=event.sender, message=Commit(epoch=commit.epoch, seq=commit.seq, fails=(failure,)))
            return [*entries[:place], Entry(entry.now, encode_event(failing), ())], commit.puts[0].ticket or 0
    raise AssertionError("reward scores one at a time somewhere in this run")


def test_what_failed_and_why_is_found_and_blanked(tmp_path: Path) -> None:
    entries, ticket = failing_at_reward(entries_of())
    with Look(open_run(str(write_run(tmp_path / "run", entries)))) as look:
        look.catch_up()
        assert [(failure.ticket, failure.reason) for failure in look.index.meta.followed.failures] == [(ticket, "verifier: secret 42")]
        cut(look, subject_of(f"ticket:{ticket}"), tmp_path / "out.tide", redact=True)
    with zipfile.ZipFile(tmp_path / "out.tide") as archive:
        assert all(b"secret" not in archive.read(name) for name in archive.namelist())


def test_of_a_run_that_cannot_be_folded_only_the_ids_own_entries_are_cut(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_run(tmp_path / "run", [changed(entry, of_another_schema) for entry in entries])
    with Look(open_run(str(run))) as look:
        manifest = cut(look, subject_of("ticket:9"), tmp_path / "out.tide", redact=False)
        with pytest.raises(ConfigError, match="cannot be redacted"):
            cut(look, subject_of("ticket:9"), tmp_path / "other.tide", redact=True)
        talk = conversation(look, 9, None)
    assert not manifest["folds"]
    with open_run(str(tmp_path / "out.tide")) as opened, Look(opened) as look:
        assert set(look.all_rows(Selection(begin=0.0))["ticket"]) == {9}
        assert conversation(look, 9, None) == talk


def test_the_entries_of_a_cut_are_those_of_the_run(run: Look, tmp_path: Path, entries: list[Entry]) -> None:
    manifest = cut(run, subject_of("ticket:9"), tmp_path / "out.tide", redact=False)
    with open_run(str(tmp_path / "out.tide")) as opened:
        found = [item for item in Scan(opened.journal, expected=manifest["first"]) if not isinstance(item, Damage)]
    assert [(item.number, item.event, item.now) for item in found] == [
        (number, entries[number].event, entries[number].now) for number in range(manifest["first"], manifest["last"] + 1)
    ]
