"""The broker process: `python -m broker --run-directory DIR --config RESOLVED.json [--endpoint ENDPOINT]`.

Writes `DIR/endpoint` once it is bound. Exits 0 when the run ended well or was stopped, 1 when it failed (`DIR/failure.json` says why; a
damaged journal is such a failure), 2 on bad input. SIGTERM ends the run; with `--leave-on-sigterm` only the process, with status 143, and
the next one on the directory goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from broker.core.events import Started
from broker.core.settings import settings_from_config
from broker.core.state import Phase
from broker.driver import Driver
from broker.journal import Journal
from broker.journal.spares import SparedFiles
from broker.keys import directory_for
from broker.lifeline import die_with_parent
from broker.logs import configure_logs
from broker.pulse import Pulse
from broker.reports import Reports, write_json, write_text
from broker.status import failure, phase_word, status, summary
from broker.transport import Transport
from broker.tuning import tune
from schemas.errors import ConfigError, InvariantError, JournalDamagedError, JournalError, TidemillError

if TYPE_CHECKING:
    from broker.metrics import MetricsPage

EXIT_LEFT = 128 + signal.SIGTERM
"""What a shell shows for a process that SIGTERM ended: the run is not over."""
SOCKET_PATH_MAX = 100
"""Linux allows 107 bytes for a socket's path; a little is left for the C library's own use."""


def main() -> int:
    """Returns the exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m broker")
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True, help="the resolved config, as JSON")
    parser.add_argument("--endpoint", default="", help="overrides broker.endpoint")
    parser.add_argument("--leave-on-sigterm", action="store_true", help="SIGTERM ends this process, not the run")
    parser.add_argument("--accept-loss", action=argparse.BooleanOptionalAction, help="overrides broker.accept_loss")
    arguments = parser.parse_args()
    configure_logs(process="broker")
    try:
        config = json.loads(arguments.config.read_text())
        return serve(
            arguments.run_directory.resolve(), config, arguments.endpoint, leave_on_sigterm=arguments.leave_on_sigterm,
            accept_loss=arguments.accept_loss,
        )  # fmt: skip
    except (OSError, ConfigError, json.JSONDecodeError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
    except JournalDamagedError as error:
        return _fail_of_damage(arguments.run_directory.resolve(), error)
    except (JournalError, InvariantError) as error:
        structlog.get_logger().error("broker_stopped", error=str(error))
        print(f"broker: {error}", file=sys.stderr)
        return 1


def serve(
    run_directory: Path, config: dict[str, Any], endpoint: str, *, leave_on_sigterm: bool = False, accept_loss: bool | None = None
) -> int:  # fmt: skip
    """Runs the broker until its run has ended, or it is told to leave. `accept_loss`: where None, as configured."""
    try:
        settings_from_config(config)
        broker = config["broker"]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the resolved config lacks {error}; it is written by `tidemill up` and read by this version only") from error
    place = run_directory / "journal"
    journal = Journal(place, broker["segment_bytes"], broker["journal_quota_bytes"], SparedFiles(place))
    transport = open_transport(endpoint or broker["endpoint"] or private_endpoint(), broker)
    reports = Reports(run_directory)
    started = Started(config=config, run_directory=str(run_directory))
    accept_loss = broker["accept_loss"] if accept_loss is None else accept_loss
    driver = Driver(journal, transport, reports, started, commit_batch=broker["commit_batch"], accept_loss=accept_loss)
    page = _metrics_page(driver, journal, broker)
    tune()
    write_text(run_directory / "broker.pid", f"{os.getpid()}\n")
    write_text(run_directory / "endpoint", transport.endpoint)
    _keep_config(run_directory, config)
    signal.signal(signal.SIGTERM, lambda *_: driver.leave() if leave_on_sigterm else driver.stop("signal"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pulse = Pulse()
    driver.watchers.append(lambda: pulse.beat(f"{phase_word(driver.state)}, step {driver.state.trainer.step}"))
    failed = driver.run()
    over = driver.state.phase is Phase.CLOSED
    if over:
        reports.end(summary(driver.state, driver.now()), failure(driver.state))
    driver.close()
    reports.close()
    if page is not None:
        page.close()
    return EXIT_LEFT if not over else 0 if failed is None else 1


def _fail_of_damage(run_directory: Path, error: JournalDamagedError) -> int:
    """The exit code. Another start would end the same: whoever starts brokers again reads in the file that this is final."""
    structlog.get_logger().error("broker_stopped", error=str(error))
    advice = f"put the file back from a copy, or begin another run, from the newest weights in {run_directory / 'versions'} (model.path)"
    if error.acceptable:
        again = f"--name {run_directory.name} --resume --set broker.accept_loss=true"
        advice += f"; or go on without what is lost and all that hung on it, acknowledged work too: the same command with {again}"
    with contextlib.suppress(OSError):  # the log has it, too
        write_json(run_directory / "failure.json", {"stage": "broker", "reason": str(error), "last_lines": [], "advice": advice})
    return 1


def _keep_config(run_directory: Path, config: dict[str, Any]) -> None:
    """A run directory is complete; by this file a host knows, too, that the directory is on its machine."""
    if not (run_directory / "config.json").exists():
        write_text(run_directory / "config.json", json.dumps(config, indent=2))


def _metrics_page(driver: Driver, journal: Journal, broker: dict[str, Any]) -> MetricsPage | None:
    if not broker["metrics_port"]:
        return None
    from broker.metrics import MetricsPage  # a few megabytes that a broker without the page need not load

    page = MetricsPage(
        broker["metrics_port"],
        broker["metrics_address"],
        lambda: status(driver.state, driver.now(), driver.refusals.rows()),
        journal.figures,
    )
    driver.watchers.append(page.refresh)
    return page


def open_transport(endpoint: str, broker: dict[str, Any]) -> Transport:
    """The socket, with keys where the address or the configuration asks for them."""
    keys = directory_for(endpoint, broker.get("keys", ""))
    if keys is None and endpoint.startswith("tcp://"):
        structlog.get_logger().warning("no_keys", endpoint=endpoint, meaning="every user of this machine may connect; see broker.keys")
    return Transport(endpoint, broker["max_frame_bytes"], keys)


def private_endpoint() -> str:
    """An ipc endpoint in a fresh directory that only this user may enter; short, for a socket's path is."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    directory = tempfile.mkdtemp(prefix="tidemill-", dir=base if base and len(base) < SOCKET_PATH_MAX - 30 else "/tmp")
    return f"ipc://{directory}/broker"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidemillError as error:
        print(f"broker: {error}", file=sys.stderr)
        sys.exit(1)
