"""The live page: what stands on it, not how it looks."""

from rich.console import Console

from tests.tools.up.builders import a_process, a_snapshot
from tools.up.page import Page
from tools.up.snapshot import Snapshot


def text_of(snapshot: Snapshot) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the console
    with console.file:
        console.print(Page(stall_notice_s=10.0).of(snapshot, {"broker": 40, "host": 39}, now=5.0))
    return console.export_text()


def test_the_page_names_every_process_and_what_it_waits_for() -> None:
    rows = [a_process("host", pid=39), a_process("rollout-0", slots=("cpu:0",), waiting="turns")]
    text = text_of(a_snapshot(processes=rows))
    assert "broker" in text
    assert "rollout-0  41   cpu:0  ready  turns" in text
    assert text.count("39") == 1


def test_the_page_shows_the_numbers_of_the_run() -> None:
    text = text_of(a_snapshot())
    for words in ("step 3/24", "reward 0.500", "tool calls an episode 1.25", "lag 0.75", "turns 7+2", "1,234 trained"):
        assert words in text
    assert "90 issued · 20 in flight · 64 trained · 6 dropped (no_spread)" in text


def test_the_page_says_who_waits_once_nothing_moves() -> None:
    waits = ["reward waits for episodes from env since 12 s"]
    assert waits[0] not in text_of(a_snapshot(stalled_s=9.0, waits=waits))
    assert waits[0] in text_of(a_snapshot(stalled_s=12.0, waits=waits))


def test_an_empty_status_is_a_page_too() -> None:
    assert "step 0/0" in text_of(Snapshot())
