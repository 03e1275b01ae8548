"""What a journal lost behind its checkpoint is said once, with real journals and none of them scanned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.journal import Entry
from broker.journal.reading import Scan
from tests.broker.journal.lives import Life, segments
from tools.up.losses import Quarantine, missing_segments

ROOMY = 1 << 40


def lived(folder: Path) -> None:
    life = Life(folder)
    life.play()
    life.close()


def test_a_whole_journal_and_a_new_one_lack_nothing(tmp_path: Path) -> None:
    assert missing_segments(tmp_path / "none", ROOMY) == ""
    lived(tmp_path)
    assert missing_segments(tmp_path, ROOMY) == ""
    assert Quarantine(tmp_path).news() == ""


@pytest.mark.parametrize(("gone", "words"), [([0], "00000000.log: "), ([1], "00000001.log: "), ([0, 1, 2], "00000000.log, 00000001.log, ")])
def test_segments_that_are_gone_are_named(tmp_path: Path, gone: list[int], words: str) -> None:
    lived(tmp_path)
    for index in gone:
        segments(tmp_path)[0 if gone[0] == 0 else index].unlink()
    assert missing_segments(tmp_path, ROOMY).startswith(f"the journal lacks {words}")


def test_all_that_a_checkpoint_knows_of_may_be_gone(tmp_path: Path) -> None:
    lived(tmp_path)
    for path in segments(tmp_path):
        path.unlink()
    assert missing_segments(tmp_path, ROOMY).startswith("the journal lacks 00000000.log, 00000001.log, 00000002.log and 1 more: ")


def test_what_the_quota_drops_is_no_loss(tmp_path: Path) -> None:
    lived(tmp_path)
    segments(tmp_path)[0].unlink()
    assert missing_segments(tmp_path, sum(path.stat().st_size for path in segments(tmp_path))) == ""


def test_what_the_broker_finds_damaged_while_it_works_is_said_once(tmp_path: Path) -> None:
    lived(tmp_path)
    quarantine = Quarantine(tmp_path)
    victim = next(item for item in Scan(tmp_path) if isinstance(item, Entry) and item.number == 10)
    path = segments(tmp_path)[victim.position.segment]
    data = bytearray(path.read_bytes())
    data[victim.position.offset + 20] ^= 1
    path.write_bytes(data)
    assert quarantine.news() == ""
    life = Life(tmp_path)
    life.journal.finish_looking()
    life.close()
    assert quarantine.news().startswith("the journal is damaged, entry 10 lost (journal/quarantine.json): the run goes on")
    assert quarantine.news() == ""


@pytest.mark.parametrize("text", ["{", "[7]", "7", '[{"first": "a", "last": 1}]', json.dumps([{"first": 5, "last": 4}])])
def test_a_list_that_cannot_be_read_or_names_no_entry_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "quarantine.json").write_text(text)
    assert Quarantine(tmp_path).news() == ""
