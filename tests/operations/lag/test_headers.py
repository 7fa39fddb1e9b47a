"""What headers say, and what is asked next."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.operations.lag import headers
from ottla.operations.lag.headers import ALONE, LIMITS, Place, Seen, batched, combine, interpret
from ottla.wire.batch import (
    HAS_DELETE_HORIZON,
    HEADER_BYTES,
    IS_CONTROL,
    IS_LOG_APPEND,
    IS_TRANSACTIONAL,
    BatchHeader,
    pack_header,
)
from ottla.wire.fetch import Aborted, Fetched

TP = TopicPartition("clicks", 0)


def _batch(
    base: int, count: int = 1, *, first: int = 1000, last: int | None = None, attributes: int = 0, producer: int = -1
) -> bytes:
    body = b"\0" * 7 * count
    header = BatchHeader(
        base,
        HEADER_BYTES - 12 + len(body),
        0,
        2,
        0,
        attributes,
        count - 1,
        first,
        first if last is None else last,
        producer,
        0,
        0,
        count,
    )
    return pack_header(header) + body


def _fetched(records: bytes, *, error: int = 0, start: int = 0, stable: int = 1 << 40, aborted: object = ()) -> Fetched:
    return Fetched("clicks", 0, error, 1 << 40, stable, start, tuple(aborted), -1, memoryview(records), None)  # type: ignore[arg-type]


def _first(records: bytes, offset: int, end: int = 100, *, committed_only: bool = False, **answer: object) -> object:
    return interpret(Place(TP, offset, end), _fetched(records, **answer), committed_only=committed_only)  # type: ignore[arg-type]


def test_the_first_unread_record_begins_a_batch_or_lies_inside_of_it() -> None:
    batch = _batch(10, 5, first=1000, last=9000)
    assert _first(batch, 10) == Seen(1.0, size_bytes=len(batch))
    assert _first(batch, 12) == Seen(1.0, is_exact=False, size_bytes=len(batch))
    # Compaction took away what was there: the next record is what is unread.
    assert _first(batch, 5) == Seen(1.0, size_bytes=len(batch))
    assert _first(_batch(10, 5, first=1000), 12) == Seen(1.0, size_bytes=len(batch))
    assert _first(_batch(10, 5, first=1000, last=9000, attributes=IS_LOG_APPEND), 12) == Seen(
        9.0, size_bytes=len(batch)
    )


def test_a_batch_whose_first_time_compaction_has_replaced_tells_none() -> None:
    several = _batch(10, 5, first=90_000, last=9000, attributes=HAS_DELETE_HORIZON)
    assert _first(several, 10) == Seen(None, size_bytes=len(several))
    one = _batch(10, 1, first=90_000, last=9000, attributes=HAS_DELETE_HORIZON)
    assert _first(one, 10) == Seen(9.0, size_bytes=len(one))


def test_records_without_a_timestamp_have_none() -> None:
    assert _first(_batch(10, first=-1), 10) is None


def test_an_empty_answer_is_asked_again_with_more_and_in_the_end_alone() -> None:
    place = Place(TP, 10, 100)
    for _ in LIMITS:
        following = interpret(place, _fetched(b""), committed_only=False)
        assert isinstance(following, Place)
        assert headers.size_of(following) > headers.size_of(place) or following.step == ALONE
        place = following
    assert place.step == ALONE
    assert headers.size_of(place) == 1
    assert interpret(place, _fetched(b""), committed_only=False) is None


def test_markers_and_aborted_records_are_passed_over() -> None:
    marker = _batch(11, attributes=IS_CONTROL | IS_TRANSACTIONAL, producer=7)
    data = _batch(10, attributes=IS_TRANSACTIONAL, producer=7)
    after = _batch(12, first=5000)
    aborted = [Aborted(7, 10)]
    assert _first(data + marker + after, 10, committed_only=True, aborted=aborted) == Seen(5.0, size_bytes=len(after))
    assert _first(data + marker + after, 10, aborted=aborted) == Seen(1.0, size_bytes=len(data))
    assert _first(data + marker, 10, 12, committed_only=True, aborted=aborted) == Seen(None, is_empty=True)
    assert _first(marker, 11, 12) == Seen(None, is_empty=True)
    following = _first(marker, 11, 50)
    assert isinstance(following, Place)
    assert (following.offset, following.asked) == (12, 11)


def test_the_newest_time_is_that_of_data() -> None:
    marker = _batch(11, first=99_000, attributes=IS_CONTROL | IS_TRANSACTIONAL)
    newest = Place(TP, 11, 12, is_newest=True)
    following = interpret(newest, _fetched(marker), committed_only=False)
    assert isinstance(following, Place)
    assert (following.offset, following.asked) == (10, 11)
    data = _batch(8, 3, first=1000, last=4000)
    assert interpret(following, _fetched(data + marker), committed_only=False) == Seen(4.0, size_bytes=len(data))


def test_what_retention_took_is_looked_for_where_the_log_begins() -> None:
    following = _first(b"", 5, error=1, start=20)
    assert isinstance(following, Place)
    assert (following.offset, following.asked) == (20, 5)
    assert _first(b"", 5, error=6) is None


def test_both_ends_are_put_together() -> None:
    times = combine([(TP, 5)], {(TP, 5): Seen(1.0, is_exact=False)}, {TP: Seen(9.0)})
    assert (times[TP, 5].first, times[TP, 5].newest, times[TP, 5].is_exact) == (1.0, 9.0, False)
    assert combine([(TP, 5)], {}, {TP: Seen(9.0)}) == {}


@given(
    st.lists(
        st.builds(
            Place,
            st.integers(0, 30).map(lambda number: TopicPartition("t", number)),
            st.integers(0, 5),
            st.just(10),
            step=st.integers(0, ALONE),
        ),
        max_size=200,
    )
)
def test_requests_have_every_place_once_no_partition_twice_and_stay_small(places: list[Place]) -> None:
    requests = batched(places)
    assert sorted(map(repr, chain.from_iterable(requests))) == sorted(map(repr, places))
    for request in requests:
        partitions = [place.partition for place in request]
        assert len(set(partitions)) == len(partitions)
        assert len({place.step for place in request}) == 1
        assert sum(map(headers.size_of, request)) <= headers.REQUEST_BYTES
        assert request[0].step < ALONE or len(request) == 1
