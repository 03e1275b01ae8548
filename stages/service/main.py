"""What every stage's `__main__` calls: arguments, logs, the loop, and the one error boundary of a stage process.

Exit codes: 0 sent home by the broker, or it has been gone for `--patience`; 1 a failure that a restart may mend, no broker ever met; 2 bad
input or refused by the broker: a restart would not help; 3 fenced: another process took the name, its host may take it back by a restart.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import socket
import sys
from typing import NoReturn, Protocol

import structlog

from broker.keys import KEY_VARIABLE, SERVER_KEY_VARIABLE, ClientKeys, client_keys
from broker.lifeline import die_with_parent
from broker.logs import configure_logs
from schemas.config.broker import check_broker_named
from schemas.errors import BlobError, BrokerRefusedError, ConfigError, FencedError, ModelError
from schemas.messages import Welcome
from stages.service.loop import Loop, NeverMetError, NoBrokerError
from stages.service.stage import Stage

EXIT_FENCED = 3


class Prepare(Protocol):
    """Brings what the first welcome names and this machine lacks; returns the welcome as the stage should see it.

    Raises BlobError; NotServedError where nobody has it so far, which a process that no host restarts waits out.
    """

    def __call__(self, welcome: Welcome, keys: ClientKeys | None) -> Welcome: ...


def run(stage: Stage, arguments: argparse.Namespace | None = None, prepare: Prepare | None = None) -> NoReturn:
    """Runs the stage and ends the process. `arguments`: those of `argument_parser`, where the stage has read them itself.

    Without the interpreter's own teardown: with torch it takes 1 to 2 s, and all that had to be saved was saved by the stage's `close`.
    """
    code = _run(stage, arguments, prepare)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(stage: Stage, given: argparse.Namespace | None, prepare: Prepare | None) -> int:
    die_with_parent()
    arguments = given or argument_parser(stage.role).parse_args()
    configure_logs(process=arguments.name, stage=stage.role.value)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN if arguments.host else signal.default_int_handler)
    log = structlog.get_logger()
    try:
        check_broker_named(arguments.broker, "--broker")
        _hand_down(arguments)
        keys = client_keys()
        loop = Loop(stage, arguments.broker, arguments.name, arguments.host, keys)
        loop.patience_s = arguments.patience
        if prepare is not None:
            loop.prepare = functools.partial(prepare, keys=keys)
        loop.run()
        return 0
    except NoBrokerError as error:
        log.warning("no_broker", error=str(error))
        return 0
    except NeverMetError as error:
        log.error("no_broker", error=str(error))
        return 1
    except FencedError as error:
        log.error("fenced", error=str(error))
        return EXIT_FENCED
    except BlobError as error:
        log.error("files_not_here", error=str(error))
        return 1
    except (ConfigError, ModelError, BrokerRefusedError) as error:
        log.error("cannot_run", error=str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit:
        return 0
    except Exception:  # the error boundary: whatever it is, it is logged with its story, and the host decides about a restart
        log.exception("crashed")
        return 1


def _hand_down(arguments: argparse.Namespace) -> None:
    """What a host was given goes on to its stages, through the environment: a file's path or a public key, never a secret."""
    for variable, value in ((KEY_VARIABLE, arguments.key), (SERVER_KEY_VARIABLE, arguments.server_key)):
        if value:
            os.environ[variable] = os.path.abspath(value) if os.path.exists(value) else value


def _leave(*_: object) -> None:
    """SIGTERM: the leases go back by our exit's report or by our silence; nothing here needs saving."""
    sys.exit(0)


def _name(given: str) -> str:
    return given.replace("{hostname}", socket.gethostname())


def _seconds(given: str) -> float:
    value = float(given)
    if not value >= 0.0:
        raise argparse.ArgumentTypeError(f"{given}: expected seconds, 0 or more")
    return value


def argument_parser(role: str) -> argparse.ArgumentParser:
    """What every process of a run is told on its command line."""
    parser = argparse.ArgumentParser(prog=f"python -m stages.{role.replace('-', '_')}", description=f"One {role} process.")
    parser.add_argument("--broker", required=True, help="the broker's endpoint, such as tcp://127.0.0.1:7700")
    parser.add_argument("--name", default=f"{role}-{socket.gethostname()}-{os.getpid()}", type=_name,
                        help="this process's name in the run; {hostname} in it becomes this machine's")  # fmt: skip
    parser.add_argument("--patience", type=_seconds, default=0.0, help="seconds without a broker after which it ends; 0: it waits for ever")
    parser.add_argument("--key", default="", help=f"file with this client's secret key (else {KEY_VARIABLE})")
    parser.add_argument("--server-key", default="", help=f"the broker's public key, or a file with it (else {SERVER_KEY_VARIABLE})")
    parser.add_argument("--host", default="", help="name of the host agent that starts it")
    return parser
