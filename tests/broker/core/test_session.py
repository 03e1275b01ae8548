"""One session with a death and a restart, row by row; and what sessions promise beside it."""

from collections.abc import Callable

from broker.core.actions import Attachment, Send
from broker.core.state import Stand
from schemas import messages as wire
from tests.broker.core.mill import Mill, a_header, whose

MakeMill = Callable[..., Mill]


def test_a_session_survives_the_brokers_death_and_its_ticket_the_envs(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "reward-1", "trainer", "sync", "host", schedule__members=2, schedule__max_lag=0)
    first, second = mill.held("env-1", "tickets")  # 1: the admitted tickets
    assert first.header.attempt == 1

    mill.turn(first, "env-1")  # 2: the first turn is placed with its frames
    turn = mill.held("rollout-1", "turns")[0]
    assert (turn.held_tokens, turn.context) == (0, 0)

    mill.action("rollout-1", turn)  # 3: the action is keyed to its env
    action = mill.held("env-1", "actions")[0]
    assert action.header.turn == 0

    mill.restart()  # 4: the broker comes back
    seq = mill.state.clients["env-1"].next_seq
    mill.hello("env-1", holds=(first.lease, second.lease, action.lease), next_seq=seq)  # 5: what is held goes on
    welcome = mill.last("env-1", wire.Welcome)
    assert (welcome.epoch, welcome.next_seq, welcome.stale) == (1, seq, ())
    mill.hello("rollout-1", installed=0, sessions=((first.header.ticket, 1),))
    mill.hello("host")
    mill.hello("reward-1")

    mill.turn(first, "env-1", answers=action.lease, number=1)  # 6: the replica that holds the session gets no old frames
    turn = mill.held("rollout-1", "turns")[0]
    assert (turn.held_tokens, turn.context) == (8, 0)

    mill.hello("env-2")
    mill.send("host", wire.ProcessExited(name="env-1", code=-9))  # 7: the env was killed
    assert mill.last("rollout-1", wire.Abort).lease == turn.lease
    assert mill.last("rollout-1", wire.CloseSession) == wire.CloseSession(ticket=first.header.ticket, attempt=1)
    again = next(d for d in mill.held("env-2", "tickets") if d.header.ticket == first.header.ticket)
    assert again.header.attempt == 2

    mill.action("rollout-1", turn)  # 8: the late action is refused whole, its number spent
    refusal = mill.last("rollout-1", wire.Refuse)
    assert (refusal.reason, refusal.seq, refusal.fatal) == ("stale_lease", mill.seqs["rollout-1"], False)
    assert mill.state.clients["rollout-1"].next_seq == mill.seqs["rollout-1"] + 1

    episode = mill.play(again, "env-2")  # 9: the new attempt is played to its end
    assert mill.state.tickets[first.header.ticket].stand is Stand.SCORING
    mill.score(episode, 1.0)  # 10: scored, and waits for the rest of its group
    assert mill.state.tickets[first.header.ticket].stand is Stand.SCORED


def test_what_an_env_holds_is_not_played_twice_because_its_action_was_lost_on_the_way(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    mill.turn(ticket, "env-1")
    mill.action("rollout-1", mill.held("rollout-1", "turns")[0])
    lost = mill.held("env-1", "actions")[0]
    mill.restart()
    mill.hello("env-1", holds=tuple(d.lease for d in mill.held("env-1", "tickets")))
    again = mill.held("env-1", "actions")
    assert [d.header.ticket for d in again] == [ticket.header.ticket]
    assert again[0].lease != lost.lease
    assert mill.state.tickets[ticket.header.ticket].attempt == 1


def test_a_session_that_moves_brings_all_its_frames_to_the_new_replica(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "rollout-2", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    mill.turn(ticket, "env-1")
    home = mill.state.leases[mill.turns_held()[0].lease].client
    mill.action(home, mill.turns_held()[0])
    mill.say(home, wire.Bye())
    action = mill.held("env-1", "actions")[0]
    orders = mill.commit("env-1", acks=[action.lease], puts=[a_header("turns", **whose(ticket.header), turn=1, new_tokens=4)])
    turn = mill.turns_held()[0]
    assert mill.state.leases[turn.lease].client != home
    assert (turn.held_tokens, turn.context) == (0, 2)
    sent = next(order for order in orders if isinstance(order, Send) and order.message == turn)
    assert [part.tokens_only for part in sent.attach] == [True, True, False]
    assert isinstance(sent.attach[0], Attachment)


def test_a_turn_whose_replica_is_too_late_is_forgotten_there(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "rollout-2", "trainer", "sync", broker__lease_s={"turns": 30.0})
    ticket = mill.held("env-1", "tickets")[0]
    mill.turn(ticket, "env-1")
    late = mill.turns_held()[0]
    replica = mill.state.leases[late.lease].client
    mill.wait(31, "env-1", "rollout-1", "rollout-2")
    assert late.lease not in mill.state.leases
    assert mill.last(replica, wire.Abort).lease == late.lease
    assert mill.last(replica, wire.CloseSession).ticket == ticket.header.ticket
    assert len(mill.turns_held()) == 1


def test_a_replicas_new_process_is_not_taken_for_the_holder_of_old_sessions(a_mill: MakeMill) -> None:
    mill = a_mill("env-1", "rollout-1", "trainer", "sync")
    ticket = mill.held("env-1", "tickets")[0]
    mill.turn(ticket, "env-1")
    mill.action("rollout-1", mill.turns_held()[0])
    action = mill.held("env-1", "actions")[0]
    mill.restart()
    mill.hello("env-1", holds=tuple(d.lease for d in [*mill.held("env-1", "tickets"), action]))
    mill.hello("rollout-1", incarnation="b", windows={})
    mill.install("rollout-1")
    mill.send("rollout-1", wire.Credit(queue="turns", window=8))
    mill.turn(ticket, "env-1", answers=action.lease, number=1)
    turn = mill.turns_held()[0]
    assert (turn.held_tokens, turn.context) == (0, 2)
