"""Ctrl-C in the middle of a poll: whatever it comes between, nothing is passed over, and nothing committed unseen."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from ottla.consume.consumer import Consumer
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

from .consuming import SMALL, committed, filled, joined, new_consumer, read, rows

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
FILES = tuple(
    f"ottla/{name}.py"
    for name in (
        "consume/consumer",
        "consume/handing",
        "consume/positions",
        "consume/share",
        "consume/beginnings",
        "fetch/shelf",
        "wire/decode",
    )
)
RECORDS = 400
AT = TopicPartition("t", 0)
# Where the interpreter looks for signals: at the start of functions, when it jumps back, and after calls.
_LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "SEND"}


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has 40 batches of ten records."""
    with FakeKafka(topics={"t": 1}, auto_create=None) as cluster:
        filled(cluster, "t", 1, batches=RECORDS // 10)
        yield cluster


class Interrupter:
    """Raises KeyboardInterrupt where a signal could, at the `at`-th such place in our files since the last one."""

    def __init__(self) -> None:
        self.at = 0
        self.seen = 0
        self._looked = False

    def during(self, work: Callable[[], Any], at: int) -> tuple[Any, bool]:
        """What the work returned, and whether it was interrupted."""
        self.at, self.seen, self._looked = at, 0, False
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return work(), False
        except KeyboardInterrupt:
            return None, True
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if self._looked:
                self._looked = False
                self.seen += 1
                if self.seen == self.at:
                    raise KeyboardInterrupt
            self._looked = dis.opname[frame.f_code.co_code[frame.f_lasti]] in _LOOKS
        return self._trace


def test_an_interrupted_poll_passes_nothing_over_and_commits_nothing_unseen(kafka: FakeKafka) -> None:
    """Every place at which Ctrl-C can come, one after the other; the program goes on each time."""
    interrupter = Interrupter()
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=0.001) as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 0)
        found, interruptions, place = list[int](), 0, 1
        while True:
            batch, was_interrupted = interrupter.during(lambda: consumer.poll(0.2), place)
            assert committed(kafka).get(AT, 0) <= len(found)
            if batch is not None:
                offsets = [offset for _, offset in rows(batch)]
                assert offsets == list(range(len(found), len(found) + len(offsets)))
                found += offsets
            if not was_interrupted and place > interrupter.seen + 50:
                break
            interruptions += was_interrupted
            place += 1
            if len(found) == RECORDS:
                consumer.seek(AT, 0)
                consumer.commit()
                found.clear()
    assert interruptions > 100


def test_an_interrupted_iteration_of_records_passes_nothing_over(kafka: FakeKafka) -> None:
    interrupter = Interrupter()
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=None) as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 0)
        found = 0
        records = consumer.records()
        for place in range(1, 600):
            record, was_interrupted = interrupter.during(lambda: next(records), place)  # noqa: B023
            if was_interrupted:
                records = consumer.records()
            else:
                assert record.offset == found
                found += 1
            assert consumer.position(AT) == found
            if found == RECORDS:
                break
    assert found > 100


def test_real_signals_at_any_time_lose_nothing(kafka: FakeKafka) -> None:
    """A timer interrupts polls at random; the handler raises only inside of our files, as a program's own code cannot
    tell whether it got what was being returned to it, and other libraries do not expect it everywhere."""

    def alarm(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename.endswith(FILES):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    found, interruptions = list[int](), 0
    try:
        with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=0.001) as consumer:
            joined(consumer, 1)
            for _ in range(3):
                consumer.seek(AT, 0)
                found.clear()
                signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0011)
                while len(found) < RECORDS:
                    try:
                        batch = consumer.poll(0.2)
                    except KeyboardInterrupt:
                        interruptions += 1
                        continue
                    except BaseException:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        raise
                    if batch is not None:
                        found += [offset for _, offset in rows(batch)]
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert found == list(range(RECORDS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interruptions > 10


def test_after_an_interruption_a_block_commits_only_what_was_done(kafka: FakeKafka) -> None:
    def program() -> None:
        with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
            for _ in consumer:
                done.append(consumer.position(AT))
                if len(done) == 3:
                    raise KeyboardInterrupt

    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        program()
    assert committed(kafka) == {AT: done[1]}


def test_places_being_found_out_survive_an_interruption(kafka: FakeKafka) -> None:
    """An interrupt while partitions come in: they are read all the same."""
    interrupter = Interrupter()
    for place in range(1, 200, 41):
        with new_consumer(kafka.bootstrap, f"g-{place}", topics="t") as consumer:
            interrupted = False
            while not interrupted and not consumer.positions():
                _, interrupted = interrupter.during(lambda: consumer.poll(0.05), place)
            consumer.poll(0.5)
            consumer.seek(AT, 390) if _has(consumer) else None
            assert read(consumer, 10)[-1] == (0, RECORDS - 1)


def _has(consumer: Consumer) -> bool:
    joined(consumer, 1)
    return True
