"""What a member claims: never less than what its consumer may have, whatever the two threads do in between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consume.ownership import OwnedPartitions, Partitions, TargetAssignment
from ottla.model import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
relaxed = settings(deadline=None)  # the machine may be busy


def only(*partitions: TopicPartition) -> Partitions:
    return frozenset(partitions)


def test_what_is_given_is_claimed_before_the_consumer_has_it() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P))
    assert holdings.claimed == only(P)
    assert holdings.look() == TargetAssignment(1, only(P), only())


def test_what_is_withdrawn_stays_claimed_until_it_is_let_go_of() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P, Q))
    holdings.look()
    holdings.hold(only(P, Q))
    holdings.assign(only(P))
    assert holdings.unreleased == only(Q)
    assert holdings.look() == TargetAssignment(2, only(P), only())
    assert holdings.unreleased == only(Q)
    holdings.hold(only(P))
    assert holdings.claimed == only(P)


def test_what_the_consumer_is_just_taking_stays_claimed_when_it_is_withdrawn() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P))
    holdings.look()
    holdings.assign(only())
    assert holdings.unreleased == only(P)
    holdings.hold(only(P))  # it did not know better
    assert holdings.unreleased == only(P)
    holdings.look()
    holdings.hold(only())
    assert holdings.claimed == only()


def test_what_the_consumer_never_saw_is_free_at_once() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P))
    holdings.assign(only())
    assert holdings.claimed == only()


def test_what_is_lost_is_offered_again_only_after_it_was_dropped() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P, Q))
    holdings.look()
    holdings.hold(only(P, Q))
    holdings.lose()
    assert holdings.claimed == only()
    holdings.assign(only(P))
    assert holdings.look() == TargetAssignment(3, only(), only(P, Q))
    holdings.hold(only())
    assert holdings.look() == TargetAssignment(4, only(P), only())


def test_what_was_lost_while_it_was_being_taken_is_dropped() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P))
    holdings.look()
    holdings.lose()
    holdings.hold(only(P))
    assert holdings.look().lost == only(P)


def test_what_is_taken_without_being_offered_is_lost() -> None:
    holdings = OwnedPartitions()
    holdings.hold(only(P))
    assert holdings.look() == TargetAssignment(1, only(), only(P))


def test_what_was_lost_before_it_was_taken_needs_no_farewell() -> None:
    holdings = OwnedPartitions()
    holdings.assign(only(P))
    holdings.look()
    holdings.lose()
    assert holdings.look() == TargetAssignment(2, only(), only())


some = st.frozensets(st.sampled_from([P, Q, TopicPartition("t", 2)]))


@relaxed
@given(st.lists(st.one_of(st.tuples(st.just("assign"), some), st.tuples(st.sampled_from(["lose", "act"]), some))))
def test_in_any_history_the_consumer_has_only_what_is_claimed_or_lost(history: list[tuple[str, Partitions]]) -> None:
    holdings, held, version, shown = OwnedPartitions(), only(), -1, TargetAssignment(0, only(), only())
    for what, partitions in history:
        if what == "assign":
            holdings.assign(partitions)
        elif what == "lose":
            holdings.lose()
        else:
            wanted = holdings.look()
            assert wanted.version >= version
            assert wanted.version > version or wanted == shown
            version, shown = wanted.version, wanted
            assert not wanted.partitions & wanted.lost
            held &= wanted.partitions
            holdings.hold(held)
            assert held <= holdings.claimed
            held |= wanted.partitions
            holdings.hold(held)
        lost = holdings.claimed ^ (holdings.claimed | held)
        assert lost <= holdings._lost
    held = holdings.look().partitions & held
    holdings.hold(held)
    assert holdings.look() == TargetAssignment(holdings.version, holdings.assigned, only())
