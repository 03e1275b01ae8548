"""Whoever has zmq, msgpack and `broker/README.md` can take part: a client with no code of ours plays whole runs."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from random import Random

import pytest
import xxhash

from schemas.edges import STAGES, Role
from schemas.lock import LOCK_FILE
from tests.broker import foreign_client
from tests.broker.foreign_client import ForeignClient, ForeignEnv, ForeignReward
from tests.broker.foreign_digest import xxh3_64
from tests.broker.test_restarts import check_that_every_ticket_ended_once
from tests.skeleton.broker_process import a_broker_process
from tests.skeleton.config import a_run_config
from tests.skeleton.crew import a_crew
from tests.skeleton.waiting import until

FOREIGN = {"json", "os", "struct", "time", "msgpack", "zmq", "tests.broker.foreign_digest"}


class AtWork:
    """A foreign client in a thread of its own."""

    def __init__(self, client: ForeignClient) -> None:
        self.client = client
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.client.run(60)
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def wait_until_home(self) -> None:
        until(lambda: not self.thread.is_alive(), "the foreign client is sent home", lambda: vars(self.client))
        assert self.error is None, self.error
        assert self.client.drained


def test_the_foreign_client_imports_nothing_of_ours() -> None:
    for file in (Path(foreign_client.__file__), Path(foreign_client.__file__).with_name("foreign_digest.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert names <= FOREIGN


def test_its_digest_is_xxh3() -> None:
    chance = Random(7)
    for length in (0, *range(17, 65)):
        data = chance.randbytes(length)
        assert xxh3_64(data) == xxhash.xxh3_64_intdigest(data), f"{length} bytes"


def others(*without: Role) -> list[Role]:
    return [role for role in STAGES if role not in without]


def test_a_foreign_env_plays_a_whole_run(tmp_path: Path) -> None:
    with a_broker_process(tmp_path / "run", a_run_config(tmp_path)) as broker, a_crew(broker.endpoint, others(Role.ENV)) as crew:
        env = AtWork(ForeignEnv(broker.endpoint, "env-of-another-tongue", LOCK_FILE))
        crew.wait_until_home()
        env.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(tmp_path / "run")
    assert env.client.refusals == []
    assert env.client.played >= 3 + 3 + 3 * 2 * 2  # two evaluations of three problems, three steps of two groups of two


def test_a_foreign_reward_scores_a_whole_run(tmp_path: Path) -> None:
    with a_broker_process(tmp_path / "run", a_run_config(tmp_path)) as broker, a_crew(broker.endpoint, others(Role.REWARD)) as crew:
        reward = AtWork(ForeignReward(broker.endpoint, "reward-of-another-tongue", LOCK_FILE))
        crew.wait_until_home()
        reward.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(tmp_path / "run")
    assert reward.client.refusals == []


@pytest.mark.parametrize("kills", [(1,), (5, 20), (20, 50)])
def test_foreign_clients_go_on_over_restarts_of_the_broker(tmp_path: Path, kills: tuple[int, ...]) -> None:
    run = tmp_path / "run"
    config = a_run_config(tmp_path, "schedule.steps=5")
    with a_broker_process(run, config) as broker, a_crew(broker.endpoint, others(Role.ENV, Role.REWARD)) as crew:
        env = AtWork(ForeignEnv(broker.endpoint, "env-a", LOCK_FILE))
        reward = AtWork(ForeignReward(broker.endpoint, "reward-a", LOCK_FILE))
        for answers in kills:
            crew.wait_for_answers(answers)
            broker.kill()
            broker.start()
        crew.wait_until_home()
        env.wait_until_home()
        reward.wait_until_home()
        assert broker.wait() == 0
    check_that_every_ticket_ended_once(run)
