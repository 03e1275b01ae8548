"""The dedupe knows no window: numbers are remembered for a producer's whole life, over hours and restarts."""

from collections.abc import Callable

from schemas import messages as wire
from tests.broker.core.mill import ALL, Mill, a_header, whose

MakeMill = Callable[..., Mill]
A_MONTH = 30 * 86_400.0


def test_a_message_that_comes_again_a_month_a_restart_and_thousands_of_messages_later_is_not_taken(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    ticket = mill.held("env-1", "tickets")[0]
    first = wire.Commit(epoch=1, seq=1, puts=(a_header("turns", **whose(ticket.header), turn=0, new_tokens=5),))
    mill.send("env-1", first)
    for window in range(1, 3_001):
        mill.send("env-1", wire.Credit(queue="tickets", window=8 + window % 2))
    held = tuple(lease.id for lease in mill.state.leases.values() if lease.client == "env-1")
    mill.restart()
    mill.now += A_MONTH
    mill.hello("env-1", holds=held)
    puts = {name: queue.puts for name, queue in mill.state.queues.items()}
    mill.say("env-1", first)
    assert mill.last("env-1", wire.Committed).seq == 3_001
    assert {name: queue.puts for name, queue in mill.state.queues.items()} == puts
    assert mill.state.clients["env-1"].next_seq == 3_002


def test_a_producer_that_starts_anew_counts_from_1_and_its_old_self_is_fenced(a_mill: MakeMill) -> None:
    mill = a_mill(*ALL)
    for window in (5, 6, 7):
        mill.send("env-1", wire.Credit(queue="tickets", window=window))
    zombie = mill.identity("env-1")
    mill.hello("env-1", incarnation="b")
    welcome = mill.last("env-1", wire.Welcome)
    assert (welcome.epoch, welcome.next_seq) == (2, 1)
    mill.send("env-1", wire.Credit(queue="tickets", window=3))
    assert mill.last("env-1", wire.Committed).seq == 1
    assert mill.state.clients["env-1"].windows["tickets"] == 3
    mill.say("env-1", wire.Credit(epoch=1, seq=4, queue="tickets", window=9), sender=zombie)
    told = mill.replies[-1]
    assert isinstance(told, wire.Refuse)
    assert (told.reason, told.fatal) == ("fenced", True)
    assert mill.state.clients["env-1"].windows["tickets"] == 3
