"""A story says what the broker did: held against the core's own ledger, state and decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.tools.records.recorded import entries_of, write_run
from tests.tools.sim.scenarios import a_scenario
from tools.records.lives import Fact
from tools.records.looking import Look
from tools.records.opening import open_run
from tools.records.selection import Selection
from tools.records.story import RELEASES, lines, subject_of, summary
from tools.records.telling import tell
from tools.records.trace import trace_of
from tools.sim.scenario import BrokerKill, Faults, Kill


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    """A run in which processes and the broker die."""
    kills = tuple(Kill(name=name, at=at) for name, at in (("env-0", 3.0), ("rollout-0", 4.0), ("env-1", 5.0), ("actor-train-0", 6.0)))
    scenario = a_scenario(3, faults=Faults(kills=kills, broker=(BrokerKill(at=4.5),), votes=(2,)))
    run = write_run(tmp_path_factory.mktemp("told") / "run", entries_of(scenario))
    with Look(open_run(str(run))) as opened:
        opened.catch_up()
        yield opened


def told(look: Look, text: str) -> list[Fact]:
    story = tell(look, subject_of(text))
    assert story.note == ""
    return story.facts


def test_every_ticket_has_a_story_with_one_beginning_and_one_end(look: Look) -> None:
    tickets = {int(ticket) for ticket in look.all_rows(Selection(queue="tickets"))["ticket"]}
    endings: Counter[str] = Counter()
    for ticket in sorted(tickets)[::3]:
        facts = told(look, f"ticket:{ticket}")
        kinds = Counter(fact.kind for fact in facts)
        assert (kinds["issued"], kinds["ended"]) == (1, 1), ticket
        assert facts[0].kind == "issued"
        assert kinds["leased"] == sum(kinds[kind] for kind in RELEASES), ticket
        endings[facts[-1].detail.partition("(")[0]] += 1
    assert set(endings) >= {"trained", "evaluated"}


def test_times_in_a_story_never_fall_and_leases_hold_as_long_as_they_say(look: Look) -> None:
    facts = told(look, "ticket:9")
    assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
    granted = {fact.lease: fact.at for fact in facts if fact.kind == "leased"}
    for fact in facts:
        if fact.kind in RELEASES:
            assert fact.at - granted[fact.lease] == pytest.approx(fact.seconds)


def test_a_ticket_whose_env_died_has_two_sessions_and_the_cause(look: Look) -> None:
    rows = look.all_rows(Selection(queue="turns"))
    ticket = int(rows["ticket"][rows["attempt"] > 1][0])
    facts = told(look, f"ticket:{ticket}")
    lost = [fact for fact in facts if fact.kind == "lost"]
    assert lost
    assert all(fact.detail for fact in lost)
    first, second = told(look, f"session:{ticket}.1"), told(look, f"session:{ticket}.2")
    assert {fact.attempt for fact in first} == {None, 1}
    assert {fact.attempt for fact in second} == {None, 2}


def test_a_step_tells_of_all_its_tickets_its_vote_and_its_checkpoint(look: Look) -> None:
    facts = told(look, "step:2")
    kinds = [fact.kind for fact in facts]
    assert kinds.count("voided") == 1
    assert kinds.count("planned") == 1
    assert kinds.count("committed") == 1
    planned = next(fact for fact in facts if fact.kind == "planned")
    ended = [fact.ticket for fact in facts if fact.kind == "ended"]
    assert set(ended) == set(planned.tickets)
    assert len(ended) == len(planned.tickets)
    assert {fact.detail for fact in facts if fact.kind == "ended"} == {"trained(2)"}


def test_a_group_tells_of_its_members_and_its_verdict(look: Look) -> None:
    group = int(look.all_rows(Selection(step=1, queue="episodes"))["group"][0])
    facts = told(look, f"group:{group}")
    assert [fact.kind for fact in facts].count("judged") == 1
    assert len({fact.ticket for fact in facts if fact.ticket is not None}) == 4


def test_a_version_tells_of_its_step_its_installs_and_receipts(look: Look) -> None:
    kinds = Counter(fact.kind for fact in told(look, "version:1"))
    assert kinds["committed"] == 1
    assert kinds["put"] >= 2
    assert kinds["installed"] >= 2


def test_a_table_and_its_sums_say_the_same(look: Look) -> None:
    facts = told(look, "ticket:9")
    shown = list(lines(subject_of("ticket:9"), facts))
    assert len([line for line in shown if " leased " in line]) == sum(of.deliveries for of in summary(facts).queues.values())
    assert f"became of it: {facts[-1].detail}" in shown


def test_bars_of_a_trace_do_not_overlap_in_their_lane(look: Look) -> None:
    trace = json.loads(json.dumps(trace_of(told(look, "step:1"))))
    lanes: dict[tuple[int, int], float] = {}
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(bars) > 20
    for bar in sorted(bars, key=lambda bar: bar["ts"]):
        lane = (bar["pid"], bar["tid"])
        assert bar["ts"] >= lanes.get(lane, 0.0) - 1e-3
        lanes[lane] = bar["ts"] + bar["dur"]
    named = {event["pid"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert named == {event["pid"] for event in trace["traceEvents"]}


def test_a_ticket_is_opened_as_the_broker_made_it(look: Look) -> None:
    rows = look.all_rows(Selection(queue="tickets"))
    assert len({(int(row["number"]), int(row["part"])) for row in rows}) == len(rows)
    row = rows[len(rows) // 2]
    record = look.record(int(row["number"]), int(row["part"]))
    assert record.header["ticket"] == row["ticket"]
    assert record.body["task_index"] >= 0


def test_a_versions_story_ends_when_nobody_has_it_any_more(look: Look) -> None:
    facts = told(look, "version:1")
    shown = list(lines(subject_of("version:1"), facts))
    assert any(line.startswith("became of it: installed on rollout-0, rollout-1") for line in shown)
    assert {fact.version for fact in facts} == {1}
