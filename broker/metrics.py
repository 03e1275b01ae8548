"""The page `/metrics` for Prometheus, and `families`, which draws it from a status.

The driver hands in a status once a tick; the thread that answers over HTTP reads that snapshot alone, so it neither waits
for the loop nor sees half a change. Listens on 127.0.0.1 unless configured otherwise. The names stand in METRICS.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.errors import ConfigError

Status = dict[str, Any]
Figures = dict[str, float]

QUEUE_GAUGES = {
    "depth": ("depth", "Records that wait."),
    "leased": ("leased", "Records under a lease."),
    "ready_groups": ("ready_groups", "Groups that are ready and untrained (the pond)."),
    "interval_s": ("arrival_interval_seconds", "Smoothed time between two puts."),
    "jitter_s": ("arrival_jitter_seconds", "Smoothed deviation of that."),
    "age_s": ("head_age_seconds", "Age of the record that is next."),
    "wait_s": ("wait_seconds", "Smoothed time in the queue."),
    "service_s": ("service_seconds", "Smoothed time under a lease."),
    "dead_letters": ("dead_letters", "Dead letters kept of this queue."),
}
QUEUE_COUNTERS = {
    "puts": ("puts", "Records put."),
    "deliveries": ("deliveries", "Records delivered."),
    "redeliveries": ("redeliveries", "Records given back by a lost lease."),
    "waited_s": ("waited_seconds", "Time in the queue, summed over deliveries."),
    "starved_s": ("starved_seconds", "Time in which a consumer had room and found nothing, summed over consumers."),
    "blocked_s": ("blocked_seconds", "Time in which a record waited and nobody could take it."),
}
RUN_GAUGES = {
    "step": ("step", "Last committed step."),
    "steps": ("steps_asked", "Steps of the whole run."),
    "version": ("version", "Newest version that a replica has a receipt for."),
    "lineage": ("lineage", "The trainer's history."),
    "goodput_tokens_per_second": ("goodput_tokens_per_second", "Trained tokens a second since the first train ticket."),
    "stalled_s": ("stalled_seconds", "Time since anything moved."),
}
JOURNAL = {
    "bytes": (GaugeMetricFamily, "bytes", "Bytes on disk."),
    "entries": (CounterMetricFamily, "entries", "Events journaled."),
    "commits": (CounterMetricFamily, "commits", "Group commits."),
    "sync_seconds": (CounterMetricFamily, "sync_seconds", "Time that the disk took to make them durable."),
}
STATES = ("starting", "ready", "suspect", "gone")


def families(status: Status, journal: Figures) -> Iterator[Metric]:
    """All that the page shows."""
    yield from _queues(status["queues"])
    yield from _clients(status["processes"])
    yield from _run(status)
    yield _refusals(status["refusals"])
    yield from _ledger(status["ledger"])
    for key, (kind, name, text) in JOURNAL.items():
        if key in journal:
            yield _one(kind, f"tidemill_journal_{name}", text, journal[key])


def _one(kind: type[Any], name: str, text: str, value: float) -> Metric:
    family: Metric = kind(name, text, value=value)
    return family


def _queues(queues: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    for kind, table in ((GaugeMetricFamily, QUEUE_GAUGES), (CounterMetricFamily, QUEUE_COUNTERS)):
        for key, (name, text) in table.items():
            family = kind(f"tidemill_queue_{name}", text, labels=["queue"])
            for queue, row in queues.items():
                if row[key] is not None:
                    family.add_metric([queue], row[key])
            yield family


def _clients(processes: list[dict[str, Any]]) -> Iterator[Metric]:
    window = GaugeMetricFamily("tidemill_client_window", "Leases that a client wants to hold at most.", labels=["client", "role", "queue"])
    held = GaugeMetricFamily("tidemill_client_held", "Leases that it holds.", labels=["client", "role", "queue"])
    for row in processes:
        for queue in {**row["windows"], **row["held"]}:
            window.add_metric([row["name"], row["role"], queue], row["windows"].get(queue, 0))
            held.add_metric([row["name"], row["role"], queue], row["held"].get(queue, 0))
    yield from (window, held)
    for key, name, text in (
        ("progress_s", "progress_age_seconds", "Time since it last did something."),
        ("silent_s", "silent_seconds", "Time since it was last heard of."),
    ):
        family = GaugeMetricFamily(f"tidemill_client_{name}", text, labels=["client", "role"])
        for row in processes:
            family.add_metric([row["name"], row["role"]], row[key])
        yield family
    state = GaugeMetricFamily("tidemill_client_state", "1 for the state that it is in.", labels=["client", "role", "state"])
    for row in processes:
        for each in STATES:
            state.add_metric([row["name"], row["role"], each], float(row["state"] == each))
    yield state


def _refusals(rows: list[dict[str, Any]]) -> Metric:
    family = CounterMetricFamily("tidemill_refusals", "Messages refused since the broker started.", labels=["client", "reason"])
    for row in rows:
        family.add_metric([row["client"], row["reason"]], row["count"])
    return family


def _run(status: Status) -> Iterator[Metric]:
    for key, (name, text) in RUN_GAUGES.items():
        if status[key] is not None:
            yield _one(GaugeMetricFamily, f"tidemill_{name}", text, status[key])
    yield _one(CounterMetricFamily, "tidemill_trained_tokens", "Tokens under the loss mask in committed steps.", status["trained_tokens"])
    phase = GaugeMetricFamily("tidemill_phase", "1 for the phase that the run is in.", labels=["phase"])
    phase.add_metric([status["phase"]], 1.0)
    findings = GaugeMetricFamily("tidemill_findings", "What `tidemill doctor` finds, by severity.", labels=["severity"])
    for severity, count in Counter(finding["severity"] for finding in status["findings"]).items():
        findings.add_metric([severity], count)
    letters = status["dead_letters"]
    yield from (phase, findings)
    yield _one(GaugeMetricFamily, "tidemill_dead_letters", "Dead letters kept.", letters["kept"])
    yield _one(CounterMetricFamily, "tidemill_dead_letters_dropped", "Dead letters that had to make room.", letters["dropped"])
    step = GaugeMetricFamily("tidemill_step_metric", "Metrics of the last step, by their own names.", labels=["name"])
    for metric, value in status["metrics"].items():
        step.add_metric([metric], value)
    yield step


def _ledger(ledger: dict[str, Any]) -> Iterator[Metric]:
    yield _one(CounterMetricFamily, "tidemill_tickets_issued", "Tickets issued.", ledger["issued"])
    yield _one(GaugeMetricFamily, "tidemill_tickets_in_flight", "Tickets without an ending.", ledger["in_flight"])
    yield _one(GaugeMetricFamily, "tidemill_tickets_provisional", "Trained tickets whose checkpoint is to come.", ledger["provisional"])
    ended = CounterMetricFamily("tidemill_tickets_ended", "Tickets by ending and reason.", labels=["ending", "reason"])
    ended.add_metric(["trained", ""], ledger["trained"] - ledger["provisional"])
    ended.add_metric(["evaluated", ""], ledger["evaluated"])
    for ending in ("dropped", "failed"):
        for reason, count in ledger[ending].items():
            ended.add_metric([ending, reason], count)
    yield ended


class MetricsPage(Collector):
    """Serves the last status. Raises ConfigError where it cannot listen."""

    def __init__(self, port: int, address: str, status: Callable[[], Status], journal: Callable[[], Figures]) -> None:
        self._status, self._journal = status, journal
        self._snapshot: tuple[Status, Figures] | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            what = f"{address} port {port} cannot be listened at ({error.strerror})"
            raise ConfigError(f"broker.metrics_port: {what}; choose another port, or 0 for no metrics") from error
        self.port = int(self._server.server_port)

    def refresh(self) -> None:
        """Takes a new snapshot. Called by the thread that owns the state, and by no other."""
        self._snapshot = (self._status(), self._journal())

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Called by the HTTP thread."""
        if self._snapshot is not None:
            yield from families(*self._snapshot)

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
