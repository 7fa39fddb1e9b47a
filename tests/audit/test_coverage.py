"""Ranges of a log add up whatever happened to their writers: sums are right, or their gaps are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.audit.coverage import Coverage, cover, plan_cells, uncounted
from ottla.tally import messages
from ottla.tally.messages import Message
from ottla.tally.values import RangeTally, Slice, as_hex

CELL = 10
BUCKET = 60


def counted(start: int, stop: int, *, written: float = 0.0, as_of: float | None = None) -> RangeTally:
    """A tally of a log whose record at offset n has the hash n + 1 and is in bucket n // 5."""
    buckets = []
    for bucket in sorted({offset // 5 for offset in range(start, stop)}):
        offsets = [offset for offset in range(start, stop) if offset // 5 == bucket]
        buckets.append(
            Slice(
                start=bucket * BUCKET,
                count=len(offsets),
                bytes=len(offsets),
                fingerprint=as_hex(sum(offset + 1 for offset in offsets)),
                first=float(bucket * BUCKET),
                last=float(bucket * BUCKET),
            )
        )
    return RangeTally(
        tier="t",
        topic="x",
        partition=0,
        start=start,
        stop=stop,
        bucket_seconds=BUCKET,
        records=stop - start,
        buckets=tuple(buckets),
        written=written,
        as_of=as_of,
    )


def total(coverage: Coverage) -> tuple[int, int]:
    slices = [piece for found in coverage.ranges for piece in found.buckets]
    return sum(piece.count for piece in slices), sum(piece.total or 0 for piece in slices)


def expected(start: int, stop: int) -> tuple[int, int]:
    return stop - start, sum(range(start + 1, stop + 1))


def test_ranges_that_follow_each_other_add_up() -> None:
    coverage = cover([counted(10, 20), counted(0, 10), counted(20, 23, as_of=5.0)])
    assert total(coverage) == expected(0, 23)
    assert not coverage.gaps
    assert coverage.as_of == 5.0


def test_the_same_range_counts_once_however_often_it_was_counted() -> None:
    coverage = cover([counted(0, 10, written=1.0), counted(0, 10, written=2.0), counted(0, 10, written=3.0)])
    assert total(coverage) == expected(0, 10)


def test_a_longer_version_of_a_range_replaces_the_shorter_one() -> None:
    assert total(cover([counted(0, 4), counted(0, 10), counted(0, 7)])) == expected(0, 10)


def test_ranges_that_overlap_count_where_others_tile_the_same_offsets() -> None:
    coverage = cover([counted(0, 10), counted(10, 20), counted(0, 15)])
    assert total(coverage) == expected(0, 20)
    assert not coverage.gaps


def test_offsets_that_cannot_be_added_without_an_overlap_are_a_gap() -> None:
    coverage = cover([counted(0, 12), counted(10, 20)])
    (gap,) = coverage.gaps
    assert (gap.start, gap.stop) == (12, 20)
    assert total(coverage) == expected(0, 12)


def test_a_gap_knows_which_buckets_its_records_may_be_in() -> None:
    coverage = cover([counted(0, 10), counted(20, 30)])
    (gap,) = coverage.gaps
    assert (gap.start, gap.stop) == (10, 20)
    assert (gap.first_bucket, gap.last_bucket) == (0, 5 * BUCKET)


def test_a_range_of_several_messages_counts_if_all_of_them_are_there() -> None:
    whole = counted(0, 30)
    parts = [messages.from_message(message.value) for message in _in_parts(whole, 2)]
    assert len(parts) == 3
    assert total(cover(parts)) == expected(0, 30)  # type: ignore[arg-type]
    assert cover(parts[:2]).ranges == ()  # type: ignore[arg-type]


def _in_parts(tally: RangeTally, most: int) -> list[Message]:
    before, messages.MOST_BUCKETS = messages.MOST_BUCKETS, most
    try:
        return list(messages.to_messages(tally))
    finally:
        messages.MOST_BUCKETS = before


def test_uncounted_offsets_are_found() -> None:
    assert uncounted(cover([counted(0, 10), counted(20, 30)]), 5, 35) == [(10, 20), (30, 35)]


def test_a_plan_counts_the_last_cell_again_and_no_other() -> None:
    known = cover([counted(0, 10), counted(10, 13)])
    assert plan_cells(0, 17, known=known, cell=CELL).ranges == ((10, 17),)
    assert plan_cells(0, 25, known=known, cell=CELL).ranges == ((10, 20), (20, 25))


def test_a_plan_without_anything_new_only_takes_the_time() -> None:
    known = cover([counted(0, 10), counted(10, 13)])
    plan = plan_cells(0, 13, known=known, cell=CELL)
    assert plan.ranges == ()
    assert plan.unchanged is not None
    assert (plan.unchanged.start, plan.unchanged.stop) == (10, 13)
    assert plan_cells(0, 0, known=Coverage((), ()), cell=CELL).ranges == ((0, 0),)


def test_a_cell_whose_beginning_was_deleted_is_continued() -> None:
    known = cover([counted(0, 10), counted(10, 13)])
    assert plan_cells(12, 18, known=known, cell=CELL).ranges == ((13, 18),)
    assert plan_cells(15, 18, known=known, cell=CELL).ranges == ((15, 18),)


@given(st.data())
def test_however_often_writers_are_killed_the_sum_is_right_or_has_a_gap(data: st.DataObject) -> None:
    """Writers plan from what is published, count some of it in any order, and die; the log grows and is cut."""
    published: list[RangeTally] = []
    begin = end = 0
    ever = 0
    for step in range(data.draw(st.integers(1, 8))):
        end += data.draw(st.integers(0, 25))
        begin = min(end, begin + data.draw(st.sampled_from([0, 0, 0, 3, 12])))
        # Two writers may have planned from the same state.
        plans = [plan_cells(begin, end, known=cover(published), cell=CELL) for _ in range(data.draw(st.integers(1, 2)))]
        for plan in plans:
            ranges = data.draw(st.permutations(plan.ranges))
            for start, stop in ranges[: data.draw(st.integers(0, len(ranges)))]:
                published.append(counted(start, stop, written=float(step)))
                ever = max(ever, stop)
        if data.draw(st.booleans()):  # compaction keeps the last of each key
            published = list({tally.start: tally for tally in published}.values())
    coverage = cover(published)
    for found in coverage.ranges:
        assert sum(piece.count for piece in found.buckets) == found.stop - found.start
    for before, after in zip(coverage.ranges, coverage.ranges[1:], strict=False):
        assert before.stop <= after.start
    covered = sum(found.stop - found.start for found in coverage.ranges)
    uncovered = sum(gap.stop - gap.start for gap in coverage.gaps)
    first = min((tally.start for tally in published), default=0)
    last = max((tally.stop for tally in published), default=0)
    assert covered + uncovered == last - first
    # A writer that is not killed fills every gap that is still in the log.
    for start, stop in plan_cells(begin, end, known=coverage, cell=CELL).ranges:
        published.append(counted(start, stop, written=99.0))
    assert uncounted(cover(published), begin, end) == []
