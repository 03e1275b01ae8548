"""Recordings of an older version, made by that version: read as far as is honest, and not one record taken for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.lock import schema_fingerprint
from tests.tools.records.older import older_house, older_run
from tests.tools.records.recorded import tidemill
from tools.records.cutting import cut
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.record import Opened
from tools.records.selection import Selection
from tools.records.story import subject_of
from tools.records.telling import tell


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    return older_run(older_house(folder / "house"), folder / "run")


def first(look: Look, queue: str) -> Opened:
    row = look.all_rows(Selection(queue=queue))[0]
    return look.record(int(row["number"]), int(row["part"]))


def test_it_is_of_another_lock(run: Path) -> None:
    assert json.loads((run / "schema.lock").read_text())["schema"] != schema_fingerprint()


def test_fields_that_are_unknown_now_and_those_it_lacks_are_named(run: Path) -> None:
    with open_run(str(run)) as opened, Look(opened) as look:
        episode, scored = first(look, "episodes"), first(look, "scored")
    assert episode.unknown == ["body.weather"]
    assert episode.body["weather"] == "fine"
    assert episode.arrays["tokens"].size
    assert scored.unknown == ["body.parts_of_reward"]
    assert scored.absent == ["body.reward_parts"]
    assert any("another schema" in remark for remark in [*episode.remarks, *scored.remarks])


def test_its_processes_are_no_strangers_to_the_fold(run: Path) -> None:
    shown = tidemill("inspect", str(run), "--json")
    assert shown.returncode == 0, shown.stderr
    body = json.loads(shown.stdout)
    assert (body["phase"], body["followed"], body["said"]) == ("closed", True, [])
    assert body["endings"]["trained"] == 8
    assert all(queue["refused"] == 0 < queue["records"] for queue in body["queues"].values())


def test_its_stories_and_cuts_are_whole(run: Path, tmp_path: Path) -> None:
    with open_run(str(run)) as opened, Look(opened) as look:
        ticket = int(look.all_rows(Selection(queue="samples"))["ticket"][0])
        story = tell(look, subject_of(f"ticket:{ticket}"))
        assert story.note == ""
        assert (story.facts[0].kind, story.facts[-1].kind) == ("issued", "ended")
        cut(look, subject_of(f"ticket:{ticket}"), tmp_path / "out.tide", redact=False)
    with open_run(str(tmp_path / "out.tide")) as opened, Look(opened) as look:
        assert tell(look, subject_of(f"ticket:{ticket}")).facts == story.facts
        mine = next(row for row in look.all_rows(Selection(queue="episodes")) if row["ticket"] == ticket)  # others' bodies are not in it
        assert look.record(int(mine["number"]), int(mine["part"])).unknown == ["body.weather"]
