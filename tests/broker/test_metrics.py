"""The page for Prometheus: drawn from a snapshot, read over HTTP, refused where the port is taken."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from broker.metrics import JOURNAL, MetricsPage, families
from broker.refusals import NAMES_MAX, Refusals
from broker.status import status
from schemas import messages as wire
from schemas.errors import ConfigError
from tests.broker.core.mill import ALL, Mill
from tests.skeleton.broker_process import BrokerProcess, a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until

HOUSE = Path(__file__).resolve().parents[2]
FIGURES = {"bytes": 1000.0, "entries": 7.0, "commits": 3.0, "sync_seconds": 0.5}


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def samples(mill: Mill) -> dict[str, float]:
    """What the page says, `name{labels}` to value."""

    class Page(Collector):
        def collect(self):  # type: ignore[no-untyped-def]
            return families(status(mill.state, mill.now), FIGURES)

    registry = CollectorRegistry()
    registry.register(Page())
    found = text_string_to_metric_families(generate_latest(registry).decode())
    return {f"{s.name}{sorted(s.labels.values())}": s.value for family in found for s in family.samples}


def test_queues_clients_and_the_ledger_are_shown() -> None:
    mill = Mill(broker__dead_s=1000.0).up(*ALL)
    mill.turn(mill.held("env-1", "tickets")[0], "env-1")
    mill.send("rollout-1", wire.Credit(queue="turns", window=5))
    mill.tick(4.0)
    said = samples(mill)
    assert said["tidemill_queue_leased['turns']"] == 1
    assert said["tidemill_queue_starved_seconds_total['episodes']"] == 4.0
    assert said["tidemill_client_window['rollout', 'rollout-1', 'turns']"] == 5
    assert said["tidemill_client_held['rollout', 'rollout-1', 'turns']"] == 1
    assert said["tidemill_client_state['ready', 'rollout', 'rollout-1']"] == 0.0  # silent for 4 s
    assert said["tidemill_client_state['rollout', 'rollout-1', 'suspect']"] == 1.0
    assert said["tidemill_client_progress_age_seconds['rollout', 'rollout-1']"] == 4.0
    assert said["tidemill_tickets_issued_total[]"] == mill.state.ledger.issued
    assert said["tidemill_journal_sync_seconds_total[]"] == 0.5
    assert said["tidemill_version[]"] == 0.0


def test_refusals_are_counted_by_client_and_reason_and_never_by_more_names_than_a_page_holds() -> None:
    refused = Refusals()
    for number in range(1000):
        refused.note(f"stranger-{number}/0a".encode(), "bad_message")
    refused.note(b"env-0/1f", "late")
    refused.note(b"stranger-1/0b", "bad_message")
    rows = refused.rows()
    assert len(rows) == NAMES_MAX + 2
    assert rows[0] == {"client": "(others)", "reason": "bad_message", "count": 1000 - NAMES_MAX}
    assert {"client": "stranger-1", "reason": "bad_message", "count": 2} in rows
    (family,) = [each for each in families(status(Mill().up(*ALL).state, 1.0, rows), FIGURES) if each.name == "tidemill_refusals"]
    assert sum(sample.value for sample in family.samples) == 1002


def test_every_name_stands_on_the_page_about_metrics() -> None:
    mill = Mill().up(*ALL)
    page = (HOUSE / "broker" / "METRICS.md").read_text(encoding="utf-8")
    names = {family.name for family in families(status(mill.state, 1.0), FIGURES)}
    assert len(names) > len(JOURNAL)
    assert sorted(name for name in names if not re.search(rf"`{name}(_total)?`", page)) == []


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_the_page_shows_the_last_snapshot_and_nothing_newer() -> None:
    mill = Mill().up(*ALL)
    page = MetricsPage(a_free_port(), "127.0.0.1", lambda: status(mill.state, mill.now), lambda: FIGURES)
    try:
        assert "tidemill_step " not in read(page.port)
        page.refresh()
        mill.state.trainer.step = 3
        assert "tidemill_step 0.0" in read(page.port)
        page.refresh()
        assert "tidemill_step 3.0" in read(page.port)
    finally:
        page.close()


def test_a_port_in_use_is_refused_by_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=r"broker\.metrics_port.*choose another port"):
        MetricsPage(taken.getsockname()[1], "127.0.0.1", dict, dict)


def test_a_broker_whose_port_is_in_use_ends_with_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = BrokerProcess(tmp_path / "run", a_run_config(tmp_path, f"broker.metrics_port={taken.getsockname()[1]}"))
        try:
            with pytest.raises(AssertionError, match="metrics_port"):
                broker.start()
            assert broker.wait() == 2
        finally:
            broker.close()


def test_a_run_can_be_watched_by_prometheus(tmp_path: Path) -> None:
    port = a_free_port()
    config = a_run_config(tmp_path, f"broker.metrics_port={port}", "schedule.steps=1000")
    with a_broker_process(tmp_path / "run", config) as broker, a_crew(broker.endpoint):
        until(lambda: re.search(r"^tidemill_step [1-9]", read(port), re.MULTILINE), "a step shows", broker.log)
        text = read(port)
    assert 'tidemill_queue_puts_total{queue="turns"}' in text
    assert re.search(r"^tidemill_journal_commits_total [1-9]", text, re.MULTILINE)
