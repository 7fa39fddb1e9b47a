"""The sequence checks of one partition, against a model that knows only what was sent and answered."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.errors import ErrorCode
from ottla.testing.fake.log import REMEMBERED_BATCHES, PartitionLog, Refused
from ottla.wire.batch import Batch

from .raw import make_batch

LAST_SEQUENCE = (1 << 31) - 1

counts = st.integers(1, 5)


class Producing(RuleBasedStateMachine):
    """One idempotent producer that sends, resends, skips, restarts with a new epoch and sends with an old one."""

    def __init__(self) -> None:
        super().__init__()
        self.log = PartitionLog()
        self.epoch = 0
        self.next_sequence = 0
        self.accepted: list[tuple[int, int, int, int]] = []  # epoch, sequence, count, offset
        self.stored = 0

    @initialize(sequence=st.sampled_from([0, LAST_SEQUENCE - 3]))
    def start(self, sequence: int) -> None:
        self.next_sequence = sequence
        self.send(1)

    def append(self, epoch: int, sequence: int, count: int) -> int | ErrorCode:
        batch = Batch.parse(make_batch(count, producer_id=9, epoch=epoch, sequence=sequence))
        try:
            return self.log.append(batch, leader_epoch=0)
        except Refused as refused:
            return refused.code

    @rule(count=counts)
    def send(self, count: int) -> None:
        assert self.append(self.epoch, self.next_sequence, count) == self.stored
        self.accepted.append((self.epoch, self.next_sequence, count, self.stored))
        self.next_sequence = (self.next_sequence + count) % (LAST_SEQUENCE + 1)
        self.stored += count

    @rule(back=st.integers(1, REMEMBERED_BATCHES))
    def send_a_recent_batch_again(self, back: int) -> None:
        recent = [batch for batch in self.accepted if batch[0] == self.epoch][-REMEMBERED_BATCHES:]
        epoch, sequence, count, offset = recent[-min(back, len(recent))]
        assert self.append(epoch, sequence, count) == offset

    @rule(count=counts)
    def send_an_ancient_batch_again(self, count: int) -> None:
        ancient = [batch for batch in self.accepted if batch[0] == self.epoch][:-REMEMBERED_BATCHES]
        if ancient:
            epoch, sequence, known, _ = ancient[0]
            assert self.append(epoch, sequence, known) == ErrorCode.out_of_order_sequence_number

    @rule(gap=st.integers(1, 100), count=counts)
    def skip_a_sequence(self, gap: int, count: int) -> None:
        sequence = (self.next_sequence + gap) % (LAST_SEQUENCE + 1)
        assert self.append(self.epoch, sequence, count) == ErrorCode.out_of_order_sequence_number

    @rule(count=counts)
    def send_with_an_old_epoch(self, count: int) -> None:
        if self.epoch:
            code = self.append(self.epoch - 1, self.next_sequence, count)
            assert code == ErrorCode.invalid_producer_epoch

    @rule(count=counts)
    def begin_a_new_epoch(self, count: int) -> None:
        assert self.append(self.epoch + 1, 5, count) == ErrorCode.out_of_order_sequence_number
        self.epoch, self.next_sequence = self.epoch + 1, 0
        self.send(count)

    @rule(count=counts)
    def another_producer_sends(self, count: int) -> None:
        assert self.log.append(Batch.parse(make_batch(count)), leader_epoch=0) == self.stored
        self.stored += count

    @invariant()
    def the_log_holds_each_accepted_batch_once_without_holes(self) -> None:
        assert self.log.end == self.stored
        ends = [0] + [stored.header.next_offset for stored in self.log.batches]
        assert [stored.header.base_offset for stored in self.log.batches] == ends[:-1]
        own = [s.header for s in self.log.batches if s.header.producer_id == 9]
        assert [(h.producer_epoch, h.base_sequence, h.count, h.base_offset) for h in own] == self.accepted


TestProducing = Producing.TestCase
TestProducing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_producer_that_the_partition_does_not_know_may_start_anywhere() -> None:
    # A real broker accepts it too, because the state of a producer may have expired.
    log = PartitionLog()
    assert log.append(Batch.parse(make_batch(producer_id=1, epoch=3, sequence=77)), leader_epoch=0) == 0


def test_stored_batches_keep_their_checksum() -> None:
    log = PartitionLog()
    for _ in range(3):
        log.append(Batch.parse(make_batch(2)), leader_epoch=4)
    for stored in log.batches:
        Batch.parse(stored.data).verify()
    assert [stored.header.leader_epoch for stored in log.batches] == [4, 4, 4]
