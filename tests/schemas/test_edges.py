"""The loop's edges hang together: what one stage puts, another leases."""

from __future__ import annotations

from schemas.edges import EDGES, SLOT_ROLES, STAGES, Delivery, Role
from schemas.records import RECORDS


def test_every_queue_carries_a_known_record_and_is_named_once() -> None:
    for name, edge in EDGES.items():
        assert edge.queue == name
        assert edge.record in RECORDS
        assert edge.consumers


def test_every_record_has_a_queue() -> None:
    assert {edge.record for edge in EDGES.values()} == RECORDS.keys()


def test_every_stage_takes_part_and_a_ticket_finds_its_way_to_the_trainer() -> None:
    assert {edge.producer for edge in EDGES.values()} - {None} <= set(STAGES)
    assert {role for edge in EDGES.values() for role in edge.consumers} == set(STAGES)
    reached, frontier = set(), {Role.ENV}
    while frontier:
        reached |= frontier
        frontier = {role for edge in EDGES.values() if edge.of_ticket and edge.producer in frontier for role in edge.consumers} - reached
    assert Role.ACTOR_TRAIN in reached


def test_only_the_broker_issues_tickets() -> None:
    assert [edge.queue for edge in EDGES.values() if edge.producer is None] == ["tickets"]


def test_records_without_a_ticket_are_those_of_versions() -> None:
    assert [edge.queue for edge in EDGES.values() if not edge.of_ticket] == ["versions", "installs"]


def test_deliveries_are_as_the_design_says() -> None:
    assert {name: edge.delivery for name, edge in EDGES.items()} == {
        "tickets": Delivery.FAIR, "turns": Delivery.PLACED, "actions": Delivery.KEYED, "episodes": Delivery.FAIR, "scored": Delivery.FAIR,
        "samples": Delivery.PLANNED, "versions": Delivery.FAIR, "installs": Delivery.EACH,
    }  # fmt: skip


def test_slots_are_for_stages_that_compute() -> None:
    assert set(SLOT_ROLES) < set(STAGES)
