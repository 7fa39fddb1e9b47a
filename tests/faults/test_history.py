"""The checker itself: it finds every kind of fault planted in a made-up history, and nothing where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from .history import UNKEYED, History, Kind, LogRecord, Tag, Verdict, check


@dataclass
class Story:
    """A history and a log, made up record by record."""

    history: History = field(default_factory=lambda: History(0))
    log: list[LogRecord] = field(default_factory=list)

    def sent(self, key: int = UNKEYED) -> Tag:
        return self.history.sending(key)

    def acked(self, key: int = UNKEYED, partition: int = 0) -> Tag:
        """Sent, written and acknowledged correctly."""
        tag = self.sent(key)
        offset = self.written(tag, partition)
        self.history.acknowledged(tag.counter, partition=partition, offset=offset)
        return tag

    def written(self, tag: Tag, partition: int = 0) -> int:
        offset = sum(record.partition == partition for record in self.log)
        self.log.append(LogRecord(partition, offset, tag.key_bytes(), tag.value_bytes(padding=7)))
        return offset

    def verdict(self) -> Verdict:
        return check([self.history], self.log)


@pytest.fixture
def story() -> Story:
    """Four records in two partitions, nothing wrong yet."""
    made = Story()
    for number in range(4):
        made.acked(key=number % 2, partition=number % 2)
    return made


def test_a_true_history_is_clean(story: Story) -> None:
    verdict = story.verdict()
    assert verdict.clean, str(verdict)
    assert verdict.read == 4


def test_an_acknowledged_record_that_is_not_there_is_lost(story: Story) -> None:
    tag = story.sent()
    story.history.acknowledged(tag.counter, partition=0, offset=99)
    assert story.verdict().found == {Kind.LOST: 1}


def test_a_record_at_another_offset_or_partition_is_misacked(story: Story) -> None:
    for partition, offset in ((0, 77), (1, 2)):
        tag = story.sent()
        story.written(tag, 0)
        story.history.acknowledged(tag.counter, partition=partition, offset=offset)
    assert story.verdict().found == {Kind.MISACKED: 2}


def test_of_two_records_acknowledged_for_one_offset_the_absent_one_is_lost(story: Story) -> None:
    first, second = story.sent(), story.sent()
    offset = story.written(first)
    for tag in (first, second):
        story.history.acknowledged(tag.counter, partition=0, offset=offset)
    assert story.verdict().found == {Kind.LOST: 1}


def test_a_record_that_is_there_twice_is_a_duplicate(story: Story) -> None:
    tag = story.acked()
    story.written(tag)
    assert story.verdict().found == {Kind.DUPLICATE: 1}


def test_a_duplicate_in_another_partition_is_found(story: Story) -> None:
    story.written(story.acked(), partition=1)
    assert story.verdict().found == {Kind.DUPLICATE: 1}


def test_records_of_a_thread_that_are_turned_round_are_reordered(story: Story) -> None:
    early, late = story.sent(), story.sent()
    for tag in (late, early):
        story.history.acknowledged(tag.counter, partition=0, offset=story.written(tag))
    assert story.verdict().found == {Kind.REORDERED: 1}


def test_a_record_that_was_never_sent_is_a_phantom(story: Story) -> None:
    story.written(Tag(0, UNKEYED, 1000))
    story.written(Tag(7, UNKEYED, 0))
    story.log.append(LogRecord(0, 50, None, b"rubbish"))
    story.log.append(LogRecord(0, 51, None, None))
    assert story.verdict().found == {Kind.PHANTOM: 4}


def test_a_record_with_another_key_or_a_damaged_value_is_a_phantom_and_lost(story: Story) -> None:
    for key, value in ((b"key-1", b"0|-1|4|"), (None, b"0|-1|5|..x")):
        tag = story.sent()
        story.log.append(LogRecord(0, 10 + tag.counter, key, value))
        story.history.acknowledged(tag.counter, partition=0, offset=10 + tag.counter)
    assert story.verdict().found == {Kind.PHANTOM: 2, Kind.LOST: 2}


def test_a_key_in_two_partitions_is_scattered(story: Story) -> None:
    story.acked(key=0, partition=1)
    assert story.verdict().found == {Kind.SCATTERED: 1}


def test_a_failed_record_that_is_there_is_revived_unless_that_was_said_to_be_possible(story: Story) -> None:
    certain, doubtful, absent = story.sent(), story.sent(), story.sent()
    story.written(certain)
    story.written(doubtful)
    story.history.failed(certain.counter, maybe_written=False)
    story.history.failed(doubtful.counter, maybe_written=True)
    story.history.failed(absent.counter, maybe_written=True)
    verdict = story.verdict()
    assert verdict.found == {Kind.REVIVED: 1}
    assert verdict.arrived == 1


def test_a_record_without_an_outcome_is_open(story: Story) -> None:
    story.sent()
    assert story.verdict().found == {Kind.OPEN: 1}


def test_a_record_has_one_outcome(story: Story) -> None:
    tag = story.acked()
    with pytest.raises(AssertionError, match="two outcomes"):
        story.history.failed(tag.counter, maybe_written=True)


def test_writers_are_checked_on_their_own(story: Story) -> None:
    other = History(1)
    tag = other.sending(UNKEYED)
    other.acknowledged(tag.counter, partition=0, offset=story.written(tag))
    verdict = check([story.history, other], story.log)
    assert verdict.clean, str(verdict)
    assert verdict.read == 5
