"""The schedule of metadata lookups: topics in doubt, stale topics, and the backoff after a failure."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config import Retry
from ottla.errors import Attempt, AuthenticationFailed, ConnectionLost, NoBrokerReachable
from ottla.net.refresh import Lookup, MetadataRefresh

RETRY = Retry(initial=0.1, maximum=1.0)
LOST = ConnectionLost("a:1", "cut")
REFUSED = NoBrokerReachable((Attempt("a:1", "connection refused", 0.0),), 0.0)
SILENT = NoBrokerReachable((Attempt("a:1", "no answer within 1.0 s", 1.0),), 1.0)


def new_refresh(*, longest: float = 5.0, refresh_seconds: float = 30.0) -> MetadataRefresh:
    return MetadataRefresh(RETRY, random.Random(1), longest=longest, refresh_seconds=refresh_seconds)


def asked(refresh: MetadataRefresh, now: float, *topics: str) -> Lookup:
    lookup = refresh.due(now, topics, refreshed=())
    assert lookup is not None
    return lookup


def test_what_is_not_in_doubt_is_not_looked_up() -> None:
    refresh = new_refresh()
    assert refresh.due(0.0, {"t"}, refreshed={"t"}) is None
    assert refresh.next_at({"t"}) == math.inf


def test_a_doubted_topic_is_asked_for_once_and_only_while_it_is_in_use() -> None:
    refresh = new_refresh()
    refresh.doubt("gone")
    assert refresh.due(0.0, {"t"}, refreshed=()) is None
    refresh.doubt("t")
    assert asked(refresh, 1.0, "t", "other").topics == {"t"}
    refresh.doubt("t")
    assert refresh.due(1.0, {"t"}, refreshed=()) is None, "one lookup at a time"
    assert refresh.next_at({"t"}) == math.inf
    refresh.learned(2.0)
    assert refresh.due(2.0, {"t"}, refreshed=()) is None, "a short pause follows each lookup"
    assert asked(refresh, refresh.next_at({"t"}), "t").topics == {"t"}


def test_topics_that_may_be_created_are_asked_for_alone() -> None:
    refresh = new_refresh()
    for topic in ("new", "old"):
        refresh.doubt(topic)
    first = refresh.due(0.0, {"new", "old"}, refreshed=(), creating={"new"})
    assert first is not None
    assert (first.topics, first.create) == (frozenset(["new"]), True)
    refresh.learned(0.0)
    second = asked(refresh, 1.0, "new", "old")
    assert (second.topics, second.create) == (frozenset(["old"]), False)


def test_metadata_is_looked_up_again_when_it_is_old() -> None:
    refresh = new_refresh(refresh_seconds=30.0)
    refresh.mark_fresh(10.0)
    assert refresh.next_at({"t"}) == 40.0
    assert refresh.due(39.9, {"t"}, refreshed={"t"}) is None
    lookup = refresh.due(40.0, {"t", "other"}, refreshed={"t"})
    assert lookup is not None
    assert lookup.topics == {"t"}
    refresh.learned(41.0)
    assert refresh.next_at({"t"}) == 71.0


def test_a_lookup_that_failed_is_repeated_later_each_time_and_may_take_longer() -> None:
    refresh = new_refresh(longest=4.0)
    refresh.doubt("t")
    now, pauses, seconds = 0.0, [], []
    for _ in range(8):
        lookup = asked(refresh, now, "t")
        seconds.append(lookup.seconds)
        refresh.failed(lookup, LOST, now)
        pauses.append(refresh.next_at({"t"}) - now)
        assert refresh.due(now, {"t"}, refreshed=()) is None
        now = refresh.next_at({"t"})
    assert refresh.error is LOST
    assert seconds == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    assert max(pauses[4:]) > 2 * pauses[0]
    assert max(pauses) <= RETRY.maximum


def test_an_answer_that_is_not_good_enough_is_asked_for_later_each_time_whatever_is_wrong_with_it() -> None:
    refresh, other = new_refresh(), new_refresh()
    now = 0.0
    for _ in range(6):
        for each, wrong in ((refresh, (["t"],)), (other, (["t"], ["u"], ["t", "u"]))):
            each.doubt("t")
            asked(each, now, "t")
            each.learned(now)
            for topics in wrong:
                each.look_again(topics, now)
        now += RETRY.maximum
    assert refresh._failures == other._failures == 6
    asked(refresh, now, "t")
    refresh.learned(now)
    refresh.doubt("t")
    assert refresh.next_at({"t"}) == now + RETRY.initial, "a good answer ends it"


def test_it_is_dark_at_once_when_no_broker_listens_or_lets_us_in_and_after_a_while_of_silence() -> None:
    for error, is_dark in ((REFUSED, True), (AuthenticationFailed("a:1", "no"), True), (SILENT, False), (LOST, False)):
        refresh = new_refresh()
        refresh.doubt("t")
        refresh.failed(asked(refresh, 0.0, "t"), error, 1.0)
        assert refresh.is_dark({"t"}) is is_dark
        assert not refresh.is_dark(()), "no lookup has run since"
    refresh.failed(asked(refresh, 5.0, "t"), SILENT, 5.1)
    assert refresh.is_dark({"t"})
    asked(refresh, 7.0, "t")
    refresh.learned(7.0)
    assert not refresh.is_dark({"t"})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["doubt", "due", "learned", "failed", "again"]), st.sampled_from("abc"))))
def test_whatever_happens_a_topic_in_doubt_and_in_use_is_asked_for_in_the_end(steps: list[tuple[str, str]]) -> None:
    refresh, now, under_way = new_refresh(), 0.0, None
    for step, topic in steps:
        now += 0.05
        if step == "doubt":
            refresh.doubt(topic)
        elif step == "due":
            lookup = refresh.due(now, "ab", refreshed=())
            assert lookup is None or (under_way is None and lookup.topics <= {"a", "b"})
            under_way = lookup or under_way
        elif under_way is not None:
            if step == "failed":
                refresh.failed(under_way, LOST, now)
            else:
                refresh.learned(now)
                if step == "again":
                    refresh.look_again([topic], now)
            under_way = None
    refresh.doubt("a")
    if under_way is not None:
        assert refresh.next_at("ab") == math.inf
        refresh.learned(now)
    now = max(now, refresh.next_at("ab"))
    assert "a" in asked(refresh, now, "a", "b").topics
