"""What a person reads at the end: pure."""

from pathlib import Path

from rich.console import Console

from tools.up.ending import RunFailure, failure_text, last_word, readable, summary_page, summary_rows

SUMMARY = {
    "accuracy_before": 0.284,
    "accuracy_after": 0.951,
    "evaluation_problems": 500,
    "train_seconds": 42.0,
    "wall_seconds": 75.3,
    "steps": 24,
    "goodput_tokens_per_second": 5120.0,
    "ledger": {"issued": 4000, "trained": 3072, "dropped": {"no_spread": 128}, "failed": {}, "evaluated": 1000},
    "time": {"rollout": {"busy_seconds": 30.0, "wait_seconds": 9.5}, "env": {"busy_seconds": 4.0, "wait_seconds": 60.0}},
}


def test_what_is_no_accuracy_is_not_called_one() -> None:
    graded = summary_rows({**SUMMARY, "evaluation_measure": "mean reward"})
    assert ("mean reward", "0.284 before, 0.951 after on 500 held-out problems") in graded
    assert "accuracy" not in dict(graded)


def test_the_summary_shows_accuracy_before_and_after() -> None:
    assert ("accuracy", "0.284 before, 0.951 after on 500 held-out problems") in summary_rows(SUMMARY)


def test_the_summary_of_a_run_that_was_stopped_early_says_what_is_unknown() -> None:
    rows = dict(summary_rows({"accuracy_before": 0.3, "accuracy_after": None, "steps": 2}))
    assert rows == {"accuracy": "0.300 before, unknown after", "steps": "2"}


def test_an_evaluation_of_which_all_failed_is_not_summed_up_as_a_zero() -> None:
    nothing = {"accuracy_before": None, "accuracy_after": None, "evaluation_problems": 5}
    both = dict(summary_rows({**nothing, "evaluation_failed_before": 5, "evaluation_failed_after": 5}))
    assert both["accuracy"] == "not measured before (all 5 held-out problems failed), not measured after (all 5 held-out problems failed)"
    one = dict(summary_rows({**nothing, "accuracy_after": 0.5, "evaluation_failed_before": 5, "evaluation_failed_after": 1}))
    assert one["accuracy"] == "not measured before (all 5 held-out problems failed), 0.500 after (1 failed) on 5 held-out problems"


def test_a_run_without_an_evaluation_says_nothing_of_one() -> None:
    assert "accuracy" not in dict(summary_rows({"accuracy_before": None, "accuracy_after": None, "evaluation_problems": 5}))


def test_the_summary_shows_times_tickets_and_the_run_directory() -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(summary_page(SUMMARY, Path("/runs/calculator-1")))
    text = console.export_text()
    for words in ("0:42", "1:15", "5,120 trained tokens/s", "128 dropped (no_spread)", "/runs/calculator-1"):
        assert words in text
    assert ["rollout", "30.0", "9.5"] in [line.split() for line in text.splitlines()]


def test_a_failure_names_the_stage_its_last_words_and_what_to_try(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rollout-0.log").touch()
    lines = ('{"event": "out of memory", "level": "error", "slot": "cpu:0", "timestamp": "t"}', "Killed")
    failure = RunFailure(stage="rollout-0", reason="ended with status -9", last_lines=lines, advice="use less kv_tokens")
    assert failure_text(failure, tmp_path).splitlines() == [
        "the run failed: rollout-0: ended with status -9",
        f"last lines of {tmp_path}/logs/rollout-0.log:",
        "  error out of memory slot=cpu:0",
        "  Killed",
        "what to try: use less kv_tokens",
        f"the run directory: {tmp_path}",
    ]
    (tmp_path / "logs" / "rollout-0.log").unlink()
    assert "last lines of rollout-0:" in failure_text(failure, tmp_path).splitlines()  # its log is on another host


def test_a_line_that_is_no_log_entry_stays_as_it_is() -> None:
    assert [readable(line) for line in ("{", "[1]", "plain")] == ["{", "[1]", "plain"]


INFO = '{"client": "rollout-0", "event": "client_left", "level": "info", "timestamp": "2026-03-01T09:05:07Z"}'
WARNING = '{"path": "x.checkpoint", "event": "checkpoint_damaged", "level": "warning", "timestamp": "2026-03-01T09:05:07Z"}'


def test_a_last_word_is_of_something_wrong_and_no_json() -> None:
    assert last_word([WARNING, INFO, ""]) == "warning checkpoint_damaged path=x.checkpoint"
    assert last_word([WARNING, "ValueError: no", INFO]) == "ValueError: no"
    assert last_word([INFO, "  "]) == last_word([]) == ""
