"""A disk that is far behind: nobody is read meanwhile, and nobody is given up for that."""

from __future__ import annotations

from pathlib import Path

from broker.core.events import Tick, encode_event
from schemas.edges import Role
from schemas.messages import Heartbeat, Welcome
from tests.broker.edge_doubles import a_hello
from tests.broker.journal.faulty_files import FaultyFiles
from tests.broker.journal.test_driver_and_disk import Counter, kinds
from tests.skeleton.config import a_run_config


def test_clients_that_wait_for_a_slow_disk_are_not_taken_for_dead(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "run", a_run_config(tmp_path), FaultyFiles())
    counter.hand_in("env-0", a_hello(Role.ENV, "env-0"))
    counter.turn_until(lambda: Welcome in kinds(counter.answers()), "env is welcomed")
    client = counter.driver.state.clients["env-0"]
    counter.files.sync_may_go.clear()
    while not counter.journal.is_behind:
        counter.journal.append(encode_event(Tick()), counter.driver.now(), [bytes(8 << 20)])
        counter.journal.want()
    for _ in range(int(3 * counter.driver.state.settings.dead_s)):
        counter.driver._began -= 1.0  # a second passes
        counter.driver.turn()
        assert client.connected
        assert not client.suspect
    counter.files.sync_may_go.set()
    counter.journal.commit()
    counter.hand_in("env-0", Heartbeat())
    counter.turn_until(lambda: not counter.journal.is_behind, "the disk is back")
    counter.driver.turn()
    assert client.connected
    counter.close()
