"""What a member claims: never less than its consumer may hold, whatever the two threads do in between."""

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
    ownership = OwnedPartitions()
    ownership.assign(only(P))
    assert ownership.claimed == only(P)
    assert ownership.target() == TargetAssignment(1, only(P), only())


def test_what_is_withdrawn_stays_claimed_until_it_is_released() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P, Q))
    ownership.target()
    ownership.hold(only(P, Q))
    ownership.assign(only(P))
    assert ownership.unreleased == only(Q)
    assert ownership.target() == TargetAssignment(2, only(P), only())
    assert ownership.unreleased == only(Q)
    ownership.hold(only(P))
    assert ownership.claimed == only(P)


def test_what_the_consumer_is_just_taking_stays_claimed_when_it_is_withdrawn() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P))
    ownership.target()
    ownership.assign(only())
    assert ownership.unreleased == only(P)
    ownership.hold(only(P))  # it could not know yet
    assert ownership.unreleased == only(P)
    ownership.target()
    ownership.hold(only())
    assert ownership.claimed == only()


def test_what_the_consumer_never_saw_is_free_at_once() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P))
    ownership.assign(only())
    assert ownership.claimed == only()


def test_what_is_lost_is_offered_again_only_after_it_was_dropped() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P, Q))
    ownership.target()
    ownership.hold(only(P, Q))
    ownership.lose()
    assert ownership.claimed == only()
    ownership.assign(only(P))
    assert ownership.target() == TargetAssignment(3, only(), only(P, Q))
    ownership.hold(only())
    assert ownership.target() == TargetAssignment(4, only(P), only())


def test_what_was_lost_while_it_was_being_taken_is_dropped() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P))
    ownership.target()
    ownership.lose()
    ownership.hold(only(P))
    assert ownership.target().lost == only(P)


def test_what_is_taken_without_being_offered_is_lost() -> None:
    ownership = OwnedPartitions()
    ownership.hold(only(P))
    assert ownership.target() == TargetAssignment(1, only(), only(P))


def test_what_was_lost_before_it_was_taken_needs_no_farewell() -> None:
    ownership = OwnedPartitions()
    ownership.assign(only(P))
    ownership.target()
    ownership.lose()
    assert ownership.target() == TargetAssignment(2, only(), only())


partition_sets = st.frozensets(st.sampled_from([P, Q, TopicPartition("t", 2)]))


@relaxed
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("assign"), partition_sets), st.tuples(st.sampled_from(["lose", "act"]), partition_sets)
        )
    )
)
def test_in_any_history_the_consumer_has_only_what_is_claimed_or_lost(history: list[tuple[str, Partitions]]) -> None:
    ownership, held, version, shown = OwnedPartitions(), only(), -1, TargetAssignment(0, only(), only())
    for what, partitions in history:
        if what == "assign":
            ownership.assign(partitions)
        elif what == "lose":
            ownership.lose()
        else:
            target = ownership.target()
            assert target.version >= version
            assert target.version > version or target == shown
            version, shown = target.version, target
            assert not target.partitions & target.lost
            held &= target.partitions
            ownership.hold(held)
            assert held <= ownership.claimed
            held |= target.partitions
            ownership.hold(held)
        lost = ownership.claimed ^ (ownership.claimed | held)
        assert lost <= ownership._lost
    held = ownership.target().partitions & held
    ownership.hold(held)
    assert ownership.target() == TargetAssignment(ownership.version, ownership.assigned, only())
