"""What the histories of lanes have brought to light, each as its own test."""

from __future__ import annotations

import pytest

from ottla.model import TopicPartition
from ottla.produce.lane import CHECK_AFTER, MOST_IN_FLIGHT, Lane

from .lane_world import AFTER_APPEND, OK, TOO_LARGE, World


def _world(*counts: int) -> World:
    world = World()
    for records in counts:
        world.add(records)
    return world


def _acknowledged_world(*counts: int) -> World:
    """A lane whose producer id the broker knows."""
    world = _world(1)
    world.heal()
    for records in counts:
        world.add(records)
    return world


def test_until_a_broker_knows_the_producer_a_batch_goes_alone() -> None:
    # It accepts any number from an unknown id: with two in flight and the first refused, the second would come first.
    world = _world(1, 1, 1)
    world.send()
    assert not world.can_send()
    assert world.lane.waits
    world.process(0)
    world.answer(0)
    world.send()
    assert world.can_send()


def test_after_a_pause_a_batch_goes_alone_again() -> None:
    # The id may have expired meanwhile.
    world = _acknowledged_world(1, 1)
    world.expire_ids()
    world.send()
    assert not world.can_send()


def test_batches_of_two_producer_ids_are_never_in_flight_together() -> None:
    world = World()
    world.inherit([1, 1], stored=0, kept=0, expired=False)
    world.add(1)
    world.start_check()
    world.read_log()
    world.finish_check()
    sent = []
    while world.lane.queue:
        if world.can_send():
            world.send()
        ids = {sending.identity.producer_id for sending in world.wires[0].requests}
        assert len(ids) == 1
        sent += [sending.identity.producer_id for sending in world.wires[0].requests]
        world.process(0)
        world.answer(0)
    assert sent == [1, 1, 7]


def test_up_to_five_batches_are_in_flight() -> None:
    world = _acknowledged_world(*[1] * 7)
    for _ in range(MOST_IN_FLIGHT):
        world.send()
    assert not world.can_send()


def test_an_acknowledged_batch_behind_an_open_one_does_not_hide_it_from_the_search() -> None:
    world = _acknowledged_world(*[1] * 5)
    for _ in range(5):
        world.send()
    world.process(0, AFTER_APPEND[0])
    for _ in range(4):
        world.process(0)
    for _ in range(5):
        world.answer(0)
    front = world.lane.queue[0]
    assert front.identity is not None
    # The first one is in the log before the four that were acknowledged: the floor must be below it.
    assert world.broker.find(world.lane.floor, {front.identity}) == {front.identity: 1}


def test_parts_of_a_batch_take_over_its_numbers() -> None:
    world = _acknowledged_world()
    world.add(7, TOO_LARGE)
    world.send()
    whole = world.lane.queue[0]
    assert whole.identity is not None
    world.process(0)
    world.answer(0)
    identities = [part.identity for part in world.lane.queue]
    assert identities == [whole.identity, whole.identity._replace(sequence=whole.identity.sequence + 3)]
    world.heal()
    assert world.lane.epoch == 0


def test_numbers_that_were_never_sent_are_reused() -> None:
    world = _acknowledged_world(2, 3, 4)
    world.number_all()
    world.give_up(0)
    world.heal()
    world.check_promises()
    assert world.lane.epoch == 0
    assert [stored.identity.sequence for stored in world.broker.log] == [0, 1, 4]


def test_what_is_in_doubt_for_long_is_looked_for_before_it_is_sent_again() -> None:
    # A broker that has forgotten the producer would write it again.
    world = _acknowledged_world(1)
    world.send()
    world.process(0)
    world.lose(0, 0)
    world.expire_ids()
    assert not world.can_send()
    assert world.lane.ready_to_check
    world.heal()
    world.check_promises()
    assert world.lane.epoch == 0


def test_old_records_in_doubt_are_looked_for_before_they_are_sent_again() -> None:
    """Found: a broker that is started again forgets the producer of records that are older than a day."""
    world = _acknowledged_world(1)
    batch = world.lane.queue[0]
    assert batch.header is not None
    batch.created = batch.header.max_timestamp / 1000 + CHECK_AFTER + 1
    world.send()
    world.process(0)
    world.lose(0, 0)
    world.pass_time(10.0)
    assert world.can_send(), "nothing is in doubt"
    batch.is_doubtful = True
    assert not world.can_send()
    assert world.lane.ready_to_check
    world.heal()
    world.check_promises()
    assert world.lane.epoch == 0


def test_a_log_that_begins_again_takes_the_floor_back() -> None:
    """Found: after a topic was recreated, batches that may have been written were searched past the end of its log."""
    world = _acknowledged_world(1)
    world.lane.floor = 5_000
    world.send()
    world.process(0)
    world.lose(0, 0)
    world.heal()
    world.check_promises()
    assert world.lane.floor == world.broker.log[-1].offset + 1


def test_a_disowned_producer_id_is_not_taken_again() -> None:
    lane = Lane(TopicPartition("t", 0))
    lane.adopt(7)
    assert not lane.may_adopt(7)
    lane.disown()
    assert lane.needs_identity
    assert not lane.may_adopt(7)
    assert lane.may_adopt(8)
    assert lane.may_adopt(7, 1)  # the same id of a transactional producer, in a newer epoch


def test_an_epoch_that_is_used_up_asks_for_another_id() -> None:
    lane = Lane(TopicPartition("t", 0))
    lane.adopt(7, 32_767)
    lane.renumber()
    assert lane.needs_identity
    assert not lane.may_adopt(7)


def test_without_numbers_nothing_is_stamped() -> None:
    lane = Lane(TopicPartition("t", 0), max_in_flight=1, numbered=False)
    batches = [World()._new((i,), 1, OK) for i in range(2)]
    for batch in batches:
        lane.add(batch)
    assert not lane.needs_identity
    assert lane.number(batches[0]) is None
    lane.sent(batches[0], 0.0)
    assert lane.sendable(0.0) is None
    lane.acknowledged(batches[0], 5)
    assert lane.sendable(0.0) is batches[1]
    assert lane.floor == 6


@pytest.mark.parametrize("on_disk", [0, 1])
def test_the_number_of_a_batch_that_is_on_disk_is_not_given_again(on_disk: int) -> None:
    # If its mark is lost, it comes back from disk, under a number that is in use.
    world = _acknowledged_world(1, 1, 1)
    batches = list(world.lane.queue)
    for batch in batches:
        world.lane.number(batch)
    numbers = [batch.identity for batch in batches]
    batches[on_disk].stored_identity = batches[on_disk].identity
    world.lane.given_up(batches[0])
    assert [batch.identity for batch in world.lane.queue] == numbers[1:]
    world.heal()
    assert not world.lane.queue
