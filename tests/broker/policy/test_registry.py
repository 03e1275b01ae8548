"""Policies by name: the first of each decision is what runs; the others stand beside it."""

from broker.policy.grouping import GroupView, Verdict
from broker.policy.placement import Placement, ReplicaView
from broker.policy.registry import DEFAULT, NAMES, choose


def test_the_first_name_of_each_decision_is_what_runs() -> None:
    assert choose({decision: names[0] for decision, names in NAMES.items()}) == DEFAULT
    assert choose({}) == DEFAULT


def test_every_name_can_be_chosen() -> None:
    for decision, names in NAMES.items():
        for name in names:
            assert (choose({decision: name}) == DEFAULT) == (name == names[0])


def test_least_in_flight_leaves_a_sessions_kv_behind() -> None:
    replicas = [ReplicaView(name=name, in_flight=count, window=4, installed=0) for name, count in (("a", 1), ("b", 2))]
    assert DEFAULT.place("b", None, replicas) == Placement("b", sticky=True)
    assert choose({"placement": "least_in_flight"}).place("b", None, replicas) == Placement("a", sticky=False)


def test_keep_all_trains_groups_without_a_spread() -> None:
    view = GroupView(rewards=(1.0, 1.0), min_members=2, drop_uniform=True, refills=0, max_refills=4)
    assert DEFAULT.judge(view) is Verdict.DROP_AND_REFILL
    assert choose({"grouping": "keep_all"}).judge(view) is Verdict.KEEP
