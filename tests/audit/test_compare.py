"""Verdicts: each difference has its name, lateness is not loss, and what is not known is not guessed."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest

from ottla.audit.compare import Judged, Row, Rules, Verdict, compare_topic, is_silent
from ottla.audit.counts import TierCount, count_tier, last_sign
from ottla.errors import InputError
from ottla.tally.values import RangeTally, SessionPage, Slice, as_hex

BUCKET = 600
START = 1_767_225_600
LATER = START + 10 * BUCKET
"""Long after the bucket has closed."""


def tally(
    tier: str, hashes: dict[int, list[int]], *, bucket: int = START, as_of: float | None = LATER, **fields: object
) -> list[RangeTally]:
    """What a tier counted in one bucket: the hashes of the records by partition."""
    return [
        msgspec.structs.replace(
            RangeTally(
                tier=tier,
                topic="clicks",
                partition=partition,
                start=0,
                stop=max(1, len(content)),
                bucket_seconds=BUCKET,
                records=len(content),
                partitions=len(hashes),
                as_of=as_of,
                buckets=(
                    Slice(
                        start=bucket,
                        count=len(content),
                        bytes=len(content),
                        fingerprint=as_hex(sum(content)),
                        first=float(bucket),
                        last=float(bucket),
                        partition=partition,
                    ),
                )
                if content
                else (),
            ),
            **fields,
        )
        for partition, content in hashes.items()
    ]


def judged(*tiers: list[RangeTally], now: float = LATER, by_partition: bool = True) -> tuple[Judged, ...]:
    (row,) = rows(*tiers, now=now, by_partition=by_partition)
    return row.tiers


def rows(*tiers: list[RangeTally], now: float = LATER, by_partition: bool = True) -> list[Row]:
    counts = [count_tier(tallies[0].tier, "clicks", tallies, now=now) for tallies in tiers]
    return compare_topic("clicks", counts, Rules(now=now, delay=300.0, by_partition=by_partition))


MADE = tally("made", {0: [1, 2, 3], 1: [4]})


@pytest.mark.parametrize(
    ("hashes", "verdict"),
    [
        ({0: [1, 2, 3], 1: [4]}, "complete"),
        ({0: [3, 2, 1], 1: [4]}, "complete"),
        ({0: [1, 2], 1: [4]}, "missing 1"),
        ({0: [], 1: []}, "missing 4"),
        ({0: [1, 2, 3, 3], 1: [4]}, "duplicated 1"),
        ({0: [1, 2, 2], 1: [4]}, "altered"),
        ({0: [1, 2, 9], 1: [4]}, "altered"),
        ({0: [1, 2, 4], 1: [3]}, "altered"),
    ],
)
def test_a_closed_bucket_has_the_verdict_that_its_records_deserve(hashes: dict[int, list[int]], verdict: str) -> None:
    first, second = judged(MADE, tally("edge", hashes))
    assert str(first) == "complete"
    assert str(second) == verdict
    assert second.against == "made"


def test_records_in_another_partition_are_named_unless_partitions_do_not_matter() -> None:
    moved = tally("edge", {0: [1, 2, 4], 1: [3]})
    assert "other partitions: 0, 1" in judged(MADE, moved)[1].detail
    assert str(judged(MADE, moved, by_partition=False)[1]) == "complete"
    assert str(judged(MADE, tally("edge", {0: [1], 1: [2], 2: [3, 4]}))[1]) == "complete"


def test_a_difference_is_late_until_the_bucket_closes() -> None:
    made = tally("made", {0: [1, 2, 3], 1: [4]}, as_of=START + 700.0)
    behind = tally("edge", {0: [1, 2], 1: []}, as_of=START + 700.0)
    assert str(judged(made, behind, now=START + 800.0)[1]) == "late"
    assert judged(made, behind, now=START + 800.0)[1].detail == "-2 so far"
    assert str(judged(made, behind, now=START + 900.0)[1]) == "missing 2"


def test_a_tier_that_was_not_counted_since_is_unknown_and_not_short() -> None:
    behind = tally("edge", {0: [1, 2], 1: []}, as_of=START + 100.0)
    assert str(judged(MADE, behind)[1]) == "unknown"
    never = tally("edge", {0: [1, 2], 1: []}, as_of=None)
    assert "not counted since" in judged(MADE, never)[1].detail
    assert str(judged(tally("made", {0: [1]}, as_of=START + 1.0), tally("edge", {0: [1]}))[0]) == "unknown"


def test_a_tier_in_doubt_is_unknown_and_the_next_one_is_compared_with_the_one_before_it() -> None:
    gap = [*tally("edge", {0: [1]}, stop=1), *tally("edge", {0: [3]}, start=2, stop=3)]
    first, second, third = judged(tally("made", {0: [1, 2, 3]}), gap, tally("end", {0: [1, 2]}))
    assert str(second) == "unknown"
    assert second.records is None
    assert "offsets 1 to 2 of partition 0" in second.detail
    assert str(third) == "missing 1"
    assert third.against == "made"
    assert str(first) == "complete"


def test_a_tier_without_tallies_and_a_partition_without_any_are_unknown() -> None:
    nothing = TierCount("edge", "clicks", 1, {}, math.inf)
    assert nothing.doubt(START) is None
    (row,) = compare_topic(
        "clicks",
        [count_tier("made", "clicks", MADE, now=LATER), count_tier("edge", "clicks", [], now=LATER)],
        Rules(now=LATER),
    )
    assert row.verdict is Verdict.UNKNOWN
    half = tally("edge", {0: [1, 2, 3]}, partitions=2)
    assert "partition 1 was never counted" in judged(MADE, half)[1].detail


def test_what_lies_before_the_first_counted_offset_is_unknown() -> None:
    cut = tally("edge", {0: [2, 3]}, start=5, stop=7)
    assert str(judged(tally("made", {0: [1, 2, 3]}), cut)[1]) == "unknown"
    since = tally("edge", {0: [2, 3]}, start=5, stop=7, since=float(START))
    assert str(judged(tally("made", {0: [1, 2, 3]}), since)[1]) == "missing 1"


def test_counts_by_headers_alone_say_so() -> None:
    counted = tally("edge", {0: [1, 2, 3], 1: [4]})
    bare = [
        msgspec.structs.replace(
            part, buckets=tuple(msgspec.structs.replace(piece, fingerprint=None) for piece in part.buckets)
        )
        for part in counted
    ]
    assert judged(MADE, bare)[1].detail == "by count alone"
    assert str(judged(MADE, bare)[1]) == "complete"


def test_times_of_brokers_are_not_compared_with_times_of_producers() -> None:
    assert "times of its brokers" in judged(MADE, tally("edge", {0: [1, 2], 1: [4]}, time="append"))[1].detail


def test_times_of_payloads_are_not_compared_with_other_times() -> None:
    by_payload = tally("edge", {0: [1, 2], 1: [4]}, time="json:at")
    _, unlike = judged(MADE, by_payload)
    assert unlike.verdict is Verdict.UNKNOWN
    assert unlike.detail == "made was counted by record, edge by json:at: buckets cannot be compared"
    assert str(judged(by_payload, tally("end", {0: [1, 2], 1: [4]}, time="json:at"))[1]) == "complete"


def test_a_tier_that_was_counted_by_two_times_is_unknown() -> None:
    both = [*tally("edge", {0: [1, 2, 3], 1: []}), *tally("edge", {1: [4]}, time="json:at")]
    _, mixed = judged(MADE, both)
    assert (mixed.verdict, mixed.records) == (Verdict.UNKNOWN, None)
    assert mixed.detail == "it was counted by different times: json:at, record"
    changed = [*tally("edge", {0: [1, 2, 3], 1: []}), *tally("edge", {1: [4]}, time="append")]
    assert "times of its brokers" in judged(MADE, changed)[1].detail


def test_a_clock_in_the_future_is_not_believed() -> None:
    ahead = tally("edge", {0: [1], 1: [4]}, as_of=LATER + 10_000.0)
    assert "in the future" in judged(MADE, ahead)[1].detail
    assert [str(tier) for tier in judged(ahead, tally("end", {0: [1], 1: [4]}))] == ["unknown", "unknown"]


def test_buckets_of_different_length_are_refused() -> None:
    other = tally("edge", {0: [1]}, bucket_seconds=300)
    with pytest.raises(InputError, match="different length: made 600 s, edge 300 s"):
        rows(MADE, other)
    with pytest.raises(InputError, match="tier edge counted topic clicks in buckets of different length"):
        count_tier("edge", "clicks", [*other, *tally("edge", {1: [1]})], now=LATER)


def test_a_topic_that_was_created_again_counts_under_both_ids() -> None:
    twice = [*tally("edge", {0: [1, 2, 3]}, topic_id="a"), *tally("edge", {0: [4], 1: []}, topic_id="b", written=1.0)]
    assert str(judged(MADE, twice, by_partition=False)[1]) == "complete"


def test_what_a_topic_got_after_its_last_tally_before_it_was_created_again_is_unknown() -> None:
    made = [*tally("made", {0: [1]}), *tally("made", {0: [2, 3]}, bucket=START + BUCKET, topic_id="m2", written=1.0)]
    old = tally("edge", {0: [1]}, topic_id="a", as_of=START + BUCKET + 10, written=START + BUCKET + 10)
    created, counted = START + 2 * BUCKET, START + 8 * BUCKET
    new = tally("edge", {0: []}, topic_id="b", first_counted=created, written=counted)
    known, gone = rows(made, [*old, *new])
    assert known.verdict is Verdict.COMPLETE
    assert (gone.verdict, gone.tiers[1].records) == (Verdict.UNKNOWN, None)
    assert "created again" in gone.worst.detail
    later = tally("made", {0: [4]}, bucket=START + 3 * BUCKET)
    assert rows(later, [*old, *new])[-1].verdict is Verdict.MISSING, "by then the new topic was counted"
    both = tally("edge", {0: []}, topic_id="b", first_counted=START, written=counted)
    assert rows(made, [*old, *both])[-1].verdict is Verdict.MISSING, "two logs at once, such as those of two clusters"


def test_a_tier_that_has_stopped_counting_is_silent() -> None:
    counted = tally("edge", {0: [1]}, as_of=1000.0)
    assert last_sign(counted) == 1000.0
    assert last_sign(tally("edge", {0: [1]}, as_of=None, written=700.0)) == 700.0, "it is busy with a long log"
    assert last_sign(tally("edge", {0: [1]}, as_of=700.0, written=900.0)) == 900.0, "an archive with nothing new"
    assert last_sign([*counted, page("open", as_of=990.0)]) == 1050.0
    assert last_sign([*counted, page("closed", as_of=990.0)]) == math.inf, "it has ended in order"
    settings = {"delay": 300.0, "stop": None}
    assert not is_silent(1000.0, BUCKET, now=1900.0, **settings)  # type: ignore[arg-type]
    assert is_silent(1000.0, BUCKET, now=1901.0, **settings)  # type: ignore[arg-type]
    assert not is_silent(1000.0, BUCKET, now=1900.0, delay=0.0, stop=None), "right after a count"
    assert not is_silent(1000.0, BUCKET, now=9000.0, delay=300.0, stop=1000.0)
    assert is_silent(1000.0, BUCKET, now=9000.0, delay=300.0, stop=1001.0)


def page(state: Literal["open", "closed"], *, as_of: float) -> SessionPage:
    """What a client has published."""
    return SessionPage(
        tier="edge",
        topic="clicks",
        session="s",
        page=0,
        number=1,
        state=state,
        bucket_seconds=BUCKET,
        floor=0,
        ceiling=0,
        as_of=as_of,
        lease=60.0,
        buckets=(),
    )


def test_a_row_as_plain_values() -> None:
    (row,) = rows(MADE, tally("edge", {0: [1], 1: [4]}))
    fields = row.to_json()
    assert (fields["verdict"], fields["records"], fields["tier"]) == ("missing", 2, "edge")
    assert [tier["records"] for tier in fields["tiers"]] == [4, 2]
