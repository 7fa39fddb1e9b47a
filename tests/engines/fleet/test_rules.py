"""What may happen to units: each transition, and what holds after any of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ottla.engines.fleet.rules import LOST_LEASE, Rules
from ottla.engines.fleet.units import (
    Charter,
    Counts,
    Failure,
    Grant,
    Lease,
    Move,
    Node,
    Out,
    PartitionState,
    Pulse,
    Seen,
)
from ottla.model import OffsetRange, TopicPartition

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 3)


def unit(start: int, stop: int, partition: TopicPartition = CLICKS) -> OffsetRange:
    return OffsetRange(*partition, start, stop)


def failure(range_: OffsetRange, reason: str = "boom") -> Failure:
    return Failure(range_, 0, reason, "trace", "host", 12.5)


def planned(charter: Charter | None = None, *units: OffsetRange) -> Rules:
    """A group with these units; without any, three of one partition."""
    rules = Rules(charter or Charter())
    lease = rules.lead("planner")
    assert lease is not None
    for range_ in units or (unit(0, 10), unit(10, 20), unit(20, 30)):
        partition = range_.topic_partition
        before = next((state.planned for state in rules.look().partitions if state.partition == partition), None)
        assert rules.plan(lease, [Move(partition, before, range_.stop, (range_,))])
    return rules


def state_of(rules: Rules, partition: TopicPartition = CLICKS) -> PartitionState:
    return next(state for state in rules.look().partitions if state.partition == partition)


def only(grants: list[Grant]) -> Grant:
    (grant,) = grants
    return grant


# Topics


def test_a_topic_keeps_its_id_when_it_is_added_again_without_one() -> None:
    rules = Rules(Charter())
    rules.add_topics({"clicks": "", "views": "id-1"})
    assert rules.look().topics == {"clicks": "", "views": "id-1"}
    rules.add_topics({"clicks": "id-2", "views": ""})
    assert rules.look().topics == {"clicks": "id-2", "views": "id-1"}
    rules.remove_topics(["clicks", "nobody knows this one"])
    assert rules.look().topics == {"views": "id-1"}


# Planning


def test_one_plans_at_a_time() -> None:
    rules = Rules(Charter())
    first = rules.lead("a")
    assert first == Lease(1, "a")
    assert rules.lead("b") is None
    assert rules.look().planner == Seen(Lease(1, "a"), 0)


def test_a_planner_that_stood_still_is_replaced_and_one_that_goes_on_is_not() -> None:
    rules = Rules(Charter())
    first = rules.lead("a")
    assert first is not None
    seen = Seen(first, 0)
    assert rules.stay(first)
    assert rules.lead("b", seen) is None
    assert rules.lead("b", Seen(first, 1)) == Lease(2, "b")
    assert not rules.stay(first)
    assert not rules.resign(first)
    assert not rules.plan(first, [])
    assert rules.look().counts.refused == 3


def test_after_a_planner_resigned_anybody_may_plan() -> None:
    rules = Rules(Charter())
    first = rules.lead("a")
    assert first is not None
    assert rules.resign(first)
    assert rules.look().planner is None
    assert rules.lead("b", Seen(first, 0)) == Lease(2, "b")


def test_a_plan_is_taken_whole_or_not_at_all() -> None:
    rules = Rules(Charter())
    lease = rules.lead("a")
    assert lease is not None
    good = Move(CLICKS, None, 10, (unit(0, 10),))
    assert not rules.plan(lease, [good, Move(VIEWS, 5, 10)])
    assert rules.look().partitions == ()
    assert rules.plan(lease, [good, Move(VIEWS, None, 7)])
    assert rules.look().partitions == (PartitionState(CLICKS, 10, 0, 1, 0, 0), PartitionState(VIEWS, 7, 7, 0, 0, 0))
    assert not rules.plan(lease, [good])


def test_a_unit_that_is_planned_twice_waits_once() -> None:
    rules = planned(None, unit(0, 10))
    lease = rules.lead("b", rules.look().planner)
    assert lease is not None
    assert rules.plan(lease, [Move(CLICKS, 10, 10, (unit(0, 10),))])
    assert rules.waiting() == [unit(0, 10)]


def test_the_number_can_be_raised_and_never_lowered() -> None:
    rules = Rules(Charter())
    rules.raise_number(40)
    rules.raise_number(7)
    assert rules.lead("a") == Lease(41, "a")


# Working


def test_the_partition_served_longest_ago_comes_first_and_its_lowest_offsets() -> None:
    rules = planned(None, unit(0, 10), unit(10, 20), unit(0, 5, VIEWS), unit(5, 9, VIEWS))
    taken = rules.take("a", 9)
    assert [grant.range for grant in taken] == [unit(0, 10), unit(0, 5, VIEWS), unit(10, 20), unit(5, 9, VIEWS)]
    assert [grant.lease for grant in taken] == [Lease(number, "a") for number in (2, 3, 4, 5)]
    assert rules.take("a") == []


def test_where_order_matters_a_partition_has_one_unit_out() -> None:
    rules = planned(Charter(ordered=True, max_attempts=1), unit(0, 10), unit(10, 20), unit(0, 5, VIEWS))
    first, other = rules.take("a", 9)
    assert [first.range, other.range] == [unit(0, 10), unit(0, 5, VIEWS)]
    assert rules.take("b") == []
    assert rules.finish(first.range, first.lease, 4)
    again = only(rules.take("b"))
    assert again.range == unit(4, 10)
    assert rules.fail(again.range, again.lease, failure(again.range))
    assert rules.take("b") == []
    assert rules.drop(again.range)
    assert only(rules.take("b")).range == unit(10, 20)


def test_a_beat_is_only_for_the_holder_of_the_lease() -> None:
    rules = planned()
    mine, other = rules.take("a", 2)
    stranger = Lease(mine.lease.number, "b")
    assert rules.renew([(mine.range, mine.lease), (mine.range, stranger), (unit(77, 78), mine.lease)]) == [
        *(True, False, False)
    ]
    seen = {out.range: out.seen.beat for out in rules.pulse().out}
    assert seen == {mine.range: 1, other.range: 0}
    assert rules.look().counts.refused == 0


def test_what_must_not_stand_still_is_seen_at_a_glance() -> None:
    rules = planned()
    grant = only(rules.take("a"))
    assert rules.pulse() == Pulse(Seen(Lease(1, "planner"), 0), (Out(grant.range, Seen(grant.lease, 0), 1),))


@pytest.mark.parametrize(
    ("reached", "rest", "counts"),
    [
        (10, None, Counts(done=1, offsets=10)),
        (4, unit(4, 10), Counts(done=1, offsets=4)),
        (0, unit(0, 10), Counts(given_back=1)),
    ],
    ids=["all of it", "a part", "nothing"],
)
def test_what_is_left_of_a_unit_waits_again(reached: int, rest: OffsetRange | None, counts: Counts) -> None:
    rules = planned(None, unit(0, 10))
    grant = only(rules.take("a"))
    assert rules.finish(grant.range, grant.lease, reached)
    assert rules.waiting() == ([] if rest is None else [rest])
    assert rules.look().counts == counts
    assert state_of(rules).done == (reached if rest is not None else 10)
    assert [grant.attempt for grant in rules.take("b")] == ([] if rest is None else [1])


def test_a_unit_that_was_given_back_has_not_been_tried_but_its_earlier_attempts_count() -> None:
    rules = planned(None, unit(0, 10))
    for attempt in (1, 2):
        grant = only(rules.take("a"))
        assert grant.attempt == attempt
        assert rules.fail(grant.range, grant.lease, failure(grant.range))
    grant = only(rules.take("a"))
    assert rules.finish(grant.range, grant.lease, 0)
    assert only(rules.take("a")).attempt == 3


def test_a_lease_that_is_used_up_is_refused() -> None:
    rules = planned()
    grant = only(rules.take("a"))
    assert rules.finish(grant.range, grant.lease, 10)
    before = rules.look()
    assert not rules.finish(grant.range, grant.lease, 10)
    assert not rules.fail(grant.range, grant.lease, failure(grant.range))
    after = rules.look()
    assert after == before._replace(counts=before.counts._replace(refused=2))


def test_after_its_last_attempt_a_unit_is_on_the_error_list() -> None:
    rules = planned(Charter(max_attempts=2), unit(0, 10))
    for _ in range(2):
        grant = only(rules.take("a"))
        assert rules.fail(grant.range, grant.lease, failure(grant.range, "boom"))
    assert rules.failures() == [Failure(unit(0, 10), 2, "boom", "trace", "host", 12.5)]
    assert rules.look().counts == Counts(failed=2, given_up=1)
    assert state_of(rules) == PartitionState(CLICKS, 10, 0, 0, 0, 1)
    assert rules.take("a") == []


def test_a_unit_is_reclaimed_only_if_its_lease_stood_still() -> None:
    rules = planned(Charter(max_attempts=2), unit(0, 10))
    grant = only(rules.take("a"))
    seen = Seen(grant.lease, 0)
    rules.renew([(grant.range, grant.lease)])
    assert not rules.reclaim(grant.range, seen, failure(grant.range, LOST_LEASE))
    assert rules.reclaim(grant.range, Seen(grant.lease, 1), failure(grant.range, LOST_LEASE))
    assert not rules.finish(grant.range, grant.lease, 10)
    assert only(rules.take("b")).attempt == 2
    assert rules.look().counts == Counts(reclaimed=1, refused=1)


# The error list, and beginning anew


def test_the_error_list_can_be_tried_again_or_dropped() -> None:
    rules = planned(Charter(max_attempts=1), unit(0, 10), unit(10, 20))
    for grant in rules.take("a", 2):
        assert rules.fail(grant.range, grant.lease, failure(grant.range))
    assert rules.retry(unit(0, 10))
    assert not rules.retry(unit(0, 10))
    assert rules.drop(unit(10, 20))
    assert not rules.drop(unit(10, 20))
    assert rules.failures() == []
    assert state_of(rules) == PartitionState(CLICKS, 20, 0, 1, 0, 0)
    assert only(rules.take("a")).attempt == 1


@pytest.mark.parametrize("offset", [5, None])
def test_a_partition_that_is_reset_has_no_units(offset: int | None) -> None:
    rules = planned(Charter(max_attempts=1), unit(0, 10), unit(10, 20), unit(20, 30))
    out, failed = rules.take("a", 2)
    assert rules.fail(failed.range, failed.lease, failure(failed.range))
    rules.reset(CLICKS, offset)
    assert rules.look().partitions == (() if offset is None else (PartitionState(CLICKS, 5, 5, 0, 0, 0),))
    assert rules.failures() == []
    assert rules.waiting() == []
    assert not rules.finish(out.range, out.lease, 10)


# Nodes and notes


def test_nodes_are_counted_and_forgotten() -> None:
    rules = Rules(Charter())
    rules.hello("n", {"pid": 1})
    rules.hello("n", {"pid": 2})
    assert rules.look().nodes == (Node("n", 1, {"pid": 2}),)
    assert not rules.goodbye("n", 0)
    assert rules.goodbye("n", 1)
    assert not rules.goodbye("n")


def test_notes_are_found_by_how_their_keys_begin() -> None:
    rules = Rules(Charter())
    for key in ("a/1", "a/2", "b"):
        rules.note(key, key.encode())
    rules.note("a/2", None)
    assert rules.notes("a/") == {"a/1": b"a/1"}
    assert rules.notes() == {"a/1": b"a/1", "b": b"b"}


# What always holds

_LANES = (CLICKS, TopicPartition("clicks", 1), VIEWS)
_HOLDERS = st.sampled_from(["a", "b", "c"])


class Histories(RuleBasedStateMachine):
    """Nodes that plan, take, finish, fail, die and come back late, and what a bystander writes down."""

    @initialize(ordered=st.booleans(), max_attempts=st.integers(1, 3))
    def begin(self, ordered: bool, max_attempts: int) -> None:
        self.model = Rules(Charter(ordered=ordered, max_attempts=max_attempts))
        self.ordered = ordered
        self.planner: Lease | None = None
        self.grants: list[Grant] = []
        self.begun: dict[TopicPartition, int] = {}
        self.gone: dict[TopicPartition, set[int]] = {}
        """Offsets that are done or were dropped."""
        self.numbers: list[int] = []
        self.high: dict[TopicPartition, int] = {}

    @rule(holder=_HOLDERS)
    def lead(self, holder: str) -> None:
        lease = self.model.lead(holder, self.model.look().planner)
        assert lease is not None
        self.number_is_new(lease)
        self.planner = lease

    @precondition(lambda self: self.planner)
    @rule(partition=st.sampled_from(_LANES), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def plan(self, partition: TopicPartition, sizes: list[int]) -> None:
        assert self.planner is not None
        before = next((state.planned for state in self.model.look().partitions if state.partition == partition), None)
        start = stop = 0 if before is None else before
        units = []
        for size in sizes:
            units.append(unit(stop, stop + size, partition))
            stop += size
        assert self.model.plan(self.planner, [Move(partition, before, stop, tuple(units))])
        self.begun.setdefault(partition, start)

    @rule(holder=_HOLDERS, most=st.integers(1, 3))
    def take(self, holder: str, most: int) -> None:
        for grant in self.model.take(holder, most):
            self.number_is_new(grant.lease)
            self.grants.append(grant)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        reached = data.draw(st.integers(grant.range.start, grant.range.stop))
        if self.model.finish(grant.range, grant.lease, reached):
            self.are_gone(unit(grant.range.start, reached, grant.range.topic_partition))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        self.model.fail(grant.range, grant.lease, failure(grant.range))

    @precondition(lambda self: self.model.pulse().out)
    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        out = data.draw(st.sampled_from(self.model.pulse().out))
        assert self.model.reclaim(out.range, out.seen, failure(out.range))

    @precondition(lambda self: self.model.failures())
    @rule(data=st.data(), again=st.booleans())
    def decide(self, data: st.DataObject, again: bool) -> None:
        given_up = data.draw(st.sampled_from(self.model.failures())).range
        if again:
            assert self.model.retry(given_up)
        else:
            assert self.model.drop(given_up)
            self.are_gone(given_up)

    @rule(partition=st.sampled_from(_LANES), offset=st.none() | st.integers(0, 9))
    def reset(self, partition: TopicPartition, offset: int | None) -> None:
        self.model.reset(partition, offset)
        for known in (self.begun, self.gone, self.high):
            known.pop(partition, None)
        if offset is not None:
            self.begun[partition] = offset

    @invariant()
    def every_offset_is_in_one_place(self) -> None:
        places: dict[TopicPartition, list[int]] = {partition: [*gone] for partition, gone in self.gone.items()}
        here = [*self.model.waiting(), *(out.range for out in self.model.pulse().out)]
        for range_ in [*here, *(range_.range for range_ in self.model.failures())]:
            places.setdefault(range_.topic_partition, []).extend(range(range_.start, range_.stop))
        for state in self.model.look().partitions:
            assert sorted(places.pop(state.partition, [])) == list(range(self.begun[state.partition], state.planned))
            assert state.planned >= self.high.get(state.partition, 0)
            self.high[state.partition] = state.planned
            assert not self.ordered or state.out <= 1
            done = self.gone.get(state.partition, set())
            assert all(offset in done for offset in range(self.begun[state.partition], state.done))
        assert not any(places.values())

    def are_gone(self, range_: OffsetRange) -> None:
        known = self.gone.setdefault(range_.topic_partition, set())
        offsets = set(range(range_.start, range_.stop))
        assert not known & offsets, "done twice"
        known |= offsets

    def number_is_new(self, lease: Lease) -> None:
        assert lease.number > max(self.numbers, default=0)
        self.numbers.append(lease.number)


def _run(machine: Any, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def test_no_offset_is_lost_or_done_twice_and_nothing_goes_back() -> None:
    _run(Histories, 60, 40)


@pytest.mark.long
def test_no_offset_is_lost_or_done_twice_in_many_long_histories() -> None:
    _run(Histories, 2_000, 150)
