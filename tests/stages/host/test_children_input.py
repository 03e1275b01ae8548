"""A child that is told something: what it reads first, what it is told later, and the end of its input."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.host.children import Children
from tests.skeleton.waiting import until

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)\nprint('end', flush=True)"


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path)
    yield made
    made.close()


def test_a_child_hears_its_first_words_then_more_then_the_end(children: Children) -> None:
    children.start("echo", (sys.executable, "-c", ECHO), first=b"one\n")
    until(lambda: children.last_lines("echo") == ("heard one",), "the first line is heard")
    children.say("echo", b"two\n")
    until(lambda: children.last_lines("echo") == ("heard one", "heard two"), "the second line is heard")
    children.hush()
    until(lambda: children.last_lines("echo")[-1:] == ("end",), "its input ends")
    assert list(children.reap(20.0)) == [("echo", 0)]


def test_a_child_without_words_has_no_input_and_one_that_does_not_read_stops_nobody(children: Children) -> None:
    children.start("silent", (sys.executable, "-c", ECHO))
    until(lambda: children.last_lines("silent") == ("end",), "it finds no input")
    children.say("silent", b"lost\n")
    children.start("deaf", (sys.executable, "-c", "import time; time.sleep(600)"), first=b"x\n")
    for _ in range(100):
        children.say("deaf", b"x" * 65_536)  # the pipe is full soon: a wait would last for ever
    children.say("nobody", b"lost\n")
    assert list(children.living) == ["silent", "deaf"]
