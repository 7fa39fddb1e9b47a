"""Range, sticky and cooperative assignments, from tables and for random groups; and the bytes that members send."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consume.assignors import Counts, Members, Shares, assign, by_range, cooperatively, stickily
from ottla.consume.classic_messages import (
    MemberSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.errors import UnsupportedFormat, WireError
from ottla.model import TopicPartition

TOPICS = ["a", "b", "c"]
relaxed = settings(deadline=None)  # the machine may be busy


def parse(text: str) -> frozenset[TopicPartition]:
    """Parse `"a0 a1 b2"` as partitions."""
    return frozenset(TopicPartition(word[0], int(word[1:])) for word in text.split())


def wants(topics: str, owned: str = "", generation: int = 1) -> MemberSubscription:
    return MemberSubscription(frozenset(topics), parse(owned), generation)


partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7))
subscriptions = st.builds(
    MemberSubscription,
    st.frozensets(st.sampled_from(TOPICS)),
    st.frozensets(partitions, max_size=8),
    st.integers(-1, 3),
)
groups = st.dictionaries(st.sampled_from("mnopq"), subscriptions, min_size=1)
sizes = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6))


@st.composite
def orderly(draw: st.DrawFn) -> tuple[Members, Counts]:
    """Generate a group in which no two members claim the same partition."""
    members, counts = draw(groups), draw(sizes)
    owned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    for partition in sorted({p for subscription in members.values() for p in subscription.owned}):
        owned[draw(st.sampled_from(sorted(members)))].add(partition)
    return {n: MemberSubscription(s.topics, frozenset(owned[n]), 1) for n, s in members.items()}, counts


def existing(members: Members, counts: Counts) -> set[TopicPartition]:
    topics = {topic for subscription in members.values() for topic in subscription.topics}
    return {TopicPartition(topic, index) for topic in topics for index in range(counts.get(topic, 0))}


def check_complete(shares: Shares, members: Members, counts: Counts) -> None:
    given_out = [partition for share in shares.values() for partition in share]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == existing(members, counts)
    assert all(partition.topic in members[member].topics for member, share in shares.items() for partition in share)
    assert set(shares) == set(members)


@relaxed
@given(groups, sizes)
def test_every_partition_goes_to_exactly_one_subscriber(members: Members, counts: Counts) -> None:
    check_complete(by_range(members, counts), members, counts)
    check_complete(stickily(members, counts), members, counts)


@relaxed
@given(groups, sizes)
def test_range_gives_each_subscriber_a_run_and_none_two_more_than_another(members: Members, counts: Counts) -> None:
    shares = by_range(members, counts)
    for topic in TOPICS:
        runs = [
            sorted(p.partition for p in shares[m] if p.topic == topic) for m in members if topic in members[m].topics
        ]
        assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
        assert not runs or max(map(len, runs)) - min(map(len, runs)) <= 1


@relaxed
@given(groups, sizes)
def test_no_member_could_give_one_to_another_with_two_fewer(members: Members, counts: Counts) -> None:
    shares = stickily(members, counts)
    for giver, taker in product(members, members):
        could = any(partition.topic in members[taker].topics for partition in shares[giver])
        assert not could or len(shares[giver]) - len(shares[taker]) <= 1


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("mno"), subscriptions, min_size=1),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 2)),
)
def test_no_assignment_is_more_even(members: Members, counts: Counts) -> None:
    loads = sorted(len(share) for share in stickily(members, counts).values())
    everything = sorted(existing(members, counts))
    takers = [[member for member in members if partition.topic in members[member].topics] for partition in everything]
    best = min(sum(owners.count(m) ** 2 for m in members) for owners in product(*takers))
    assert sum(load**2 for load in loads) == best


@relaxed
@given(orderly())
def test_an_even_group_stays_as_it_is(case: tuple[Members, Counts]) -> None:
    members, counts = case
    shares = stickily(members, counts)
    settled = {m: MemberSubscription(members[m].topics, frozenset(shares[m]), 2) for m in members}
    assert stickily(settled, counts) == shares
    assert cooperatively(settled, counts) == shares


@relaxed
@given(st.integers(1, 5), st.integers(0, 20), st.data())
def test_with_equal_topics_no_more_moves_than_must(size: int, count: int, data: st.DataObject) -> None:
    names = [f"m{index}" for index in range(size)]
    owners = [data.draw(st.sampled_from([*names, ""])) for _ in range(count)]
    held = {n: frozenset(TopicPartition("a", i) for i, owner in enumerate(owners) if owner == n) for n in names}
    shares = stickily({n: MemberSubscription(frozenset("a"), held[n], 1) for n in names}, {"a": count})
    kept = sum(len(held[n] & shares[n]) for n in names)
    # The fullest may keep one more than the rest, as often as the division leaves a remainder.
    each, more = divmod(count, size)
    over = sum(len(have) > each for have in held.values())
    assert kept == sum(min(len(have), each) for have in held.values()) + min(over, more)


@relaxed
@given(groups, sizes)
def test_nothing_goes_to_a_new_owner_while_another_holds_it(members: Members, counts: Counts) -> None:
    for member, share in cooperatively(members, counts).items():
        for partition in share - members[member].owned:
            assert not any(partition in other.owned for other in members.values())


@relaxed
@given(groups, sizes)
def test_cooperation_gives_everything_out_within_a_few_rounds(members: Members, counts: Counts) -> None:
    shares = cooperatively(members, counts)
    for generation in range(4, 8):
        before = shares
        members = {m: MemberSubscription(members[m].topics, frozenset(shares[m]), generation) for m in members}
        shares = cooperatively(members, counts)
        if shares == before:
            break
    assert shares == before, "after that nothing moves"
    check_complete(shares, members, counts)


CLAIMS = [
    ("the newer generation", {"m": wants("a", "a0", 3), "n": wants("a", "a0", 2)}, {"m": "a0", "n": ""}),
    ("none, if both are as new", {"m": wants("a", "a0", 3), "n": wants("a", "a0", 3)}, {"m": "", "n": ""}),
]


@pytest.mark.parametrize(("members", "expected"), [c[1:] for c in CLAIMS], ids=[c[0] for c in CLAIMS])
def test_of_two_who_claim_a_partition_it_belongs_to(members: Members, expected: dict[str, str]) -> None:
    assert cooperatively(members, {"a": 1}) == {member: set(parse(text)) for member, text in expected.items()}


def test_a_new_member_gets_what_the_others_must_give_up_only_when_they_have() -> None:
    before = {"m": wants("a", "a0 a1 a2 a3"), "n": wants("a")}
    assert cooperatively(before, {"a": 4}) == {"m": set(parse("a0 a1")), "n": set()}
    after = {"m": wants("a", "a0 a1", 2), "n": wants("a", "", 2)}
    assert cooperatively(after, {"a": 4}) == {"m": set(parse("a0 a1")), "n": set(parse("a2 a3"))}


def test_chains_of_members_are_used_to_even_out() -> None:
    members = {"m": wants("a", "a0 a1 a2"), "n": wants("ab", "b0 b1"), "o": wants("b", "b2")}
    shares = stickily(members, {"a": 3, "b": 3})
    assert sorted(map(len, shares.values())) == [2, 2, 2]


def test_a_large_group_is_assigned_in_a_moment() -> None:
    topics = frozenset(f"t{index}" for index in range(100))
    counts = dict.fromkeys(topics, 50)
    members = {f"m{index}": MemberSubscription(topics) for index in range(99)}
    shares = stickily(members, counts)
    grown = {m: MemberSubscription(topics, frozenset(share), 1) for m, share in shares.items()} | {
        "new": MemberSubscription(topics)
    }
    after = stickily(grown, counts)
    assert len(after["new"]) == 50


def test_an_assignor_that_was_not_offered_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match=r"'roundrobin'.*cooperative-sticky and range"):
        assign("roundrobin", {}, {})


@relaxed
@given(subscriptions, st.none() | st.text(max_size=5))
def test_a_subscription_is_read_as_it_was_written(subscription: MemberSubscription, rack: str | None) -> None:
    written = MemberSubscription(subscription.topics, subscription.owned, subscription.generation, rack)
    assert read_subscription(write_subscription(written)) == written


@relaxed
@given(st.frozensets(partitions))
def test_an_assignment_is_read_as_it_was_written(share: frozenset[TopicPartition]) -> None:
    assert read_assignment(write_assignment(share)) == share


OTHERS = [
    ("version 0", b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff", wants("a", "", -1)),
    ("version 1", b"\0\1\0\0\0\1\0\1a\xff\xff\xff\xff\0\0\0\1\0\1a\0\0\0\1\0\0\0\2", wants("a", "a2", -1)),
    ("Java's generation in version 1", b"\0\1\0\0\0\1\0\1a\0\0\0\4\0\0\0\7\0\0\0\0", wants("a", "", 7)),
    ("version 1 without owned partitions", b"\0\1\0\0\0\1\0\1a\xff\xff\xff\xff", wants("a", "", -1)),
    ("a version of the future", b"\0\x09\0\0\0\1\0\1a\xff\xff\xff\xff\0\0\0\0\0\0\0\5\xff\xffmore", wants("a", "", 5)),
]


@pytest.mark.parametrize(("data", "expected"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
def test_what_other_clients_write_is_understood(data: bytes, expected: MemberSubscription) -> None:
    assert read_subscription(data) == expected


@relaxed
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_are_a_wire_error(data: bytes) -> None:
    for read, kind in ((read_subscription, MemberSubscription), (read_assignment, frozenset)):
        try:
            value: object = read(data)
        except WireError:
            continue
        assert isinstance(value, kind)


def test_no_assignment_at_all_is_nothing() -> None:
    assert read_assignment(b"") == frozenset()
