"""`--set key=value`: the value is TOML, a bare word is a string, and a later override wins."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config.overrides import apply_overrides, parse_override, parse_value
from schemas.errors import ConfigError
from tests.schemas.config.builders import a_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("5e-4", 5e-4),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ('"8"', "8"),
        ("sync", "sync"),
        ("my_module:MyClass", "my_module:MyClass"),
        ("/some/folder", "/some/folder"),
        ("2026-03-01", "2026-03-01"),
        ("12:30:00", "12:30:00"),
        ("", ""),
        ("1\nb = 2", "1\nb = 2"),
        ("[1,", "[1,"),
    ],
)
def test_a_value_is_toml_and_a_bare_word_is_a_string(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_a_value_may_hold_equals_signs() -> None:
    assert parse_override("run.name=a=b") == (("run", "name"), "a=b")


@pytest.mark.parametrize("text", ["schedule.members", "=4", "schedule.=4", ""])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected key=value"):
        parse_override(text)


def test_nothing_can_be_set_inside_a_value() -> None:
    with pytest.raises(ConfigError, match=r"members is not a table"):
        apply_overrides({"schedule": {"members": 8}}, ["schedule.members.x=1"])


def test_an_override_changes_one_key_and_leaves_its_source_alone() -> None:
    raw = {"schedule": {"members": 8, "steps": 3}}
    changed, keys = apply_overrides(raw, ["schedule.members=2", "schedule.members=4"])
    assert changed == {"schedule": {"members": 4, "steps": 3}}
    assert keys == {("schedule", "members")}
    assert raw == {"schedule": {"members": 8, "steps": 3}}


def test_an_override_reaches_a_section_that_the_file_does_not_have(tmp_path: Path) -> None:
    config = a_config(tmp_path, "stages.rollout.max_running=4096", "schedule.kind=sync")
    assert (config.stages.rollout.max_running, config.schedule.kind, config.schedule.lag_bound) == (4096, "sync", 0)
