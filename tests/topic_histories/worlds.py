"""The world on real brokers, and on fake ones, which can also do what real ones do only when machines die."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from typing import Any

from tests.wire.rows import Row, raw_batch, records_bytes

from ottla.admin import Admin
from ottla.errors import BrokerError, ErrorCode
from ottla.net import LeaderOf, VersionOf
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka
from ottla.wire import messages
from ottla.wire.batch import Batch

from .world import World

_numbers = itertools.count()
_DELETE_RECORDS = 21


class RealWorld(World):
    """On brokers that are there already."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.topic = f"history-{os.getpid()}-{next(_numbers)}"
        self._admin = Admin(bootstrap, client_id="history")

    def close(self) -> None:
        """Its clients end; the topic stays."""
        self._admin.close()

    def _create(self, partitions: int) -> None:
        self._admin.create_topic(self.topic, partitions=partitions)

    def _delete(self) -> None:
        self._admin.delete_topics(self.topic)

    def _write(self, partition: int, values: list[bytes], base: int) -> None:
        with Producer(self.bootstrap) as producer:
            sent = [producer.send(self.topic, value, partition=partition) for value in values]
            assert [one.result(30).offset for one in sent] == list(range(base, base + len(values)))

    def _grow(self, total: int) -> None:
        self._admin.add_partitions(self.topic, total)

    def _expire(self, partition: int, offset: int) -> None:
        row = {"partition_index": partition, "offset": offset}
        fields = {
            "topics": [{"name": self.topic, "partitions": [row]}],
            "timeout": timedelta(seconds=10),
        }

        def build(version_of: VersionOf) -> messages.Message:
            message: messages.Message = messages.compose(
                messages.request_type(_DELETE_RECORDS, version_of(_DELETE_RECORDS)), fields
            )
            return message

        def check(response: Any) -> None:
            code = response.topics[0].partitions[0].error_code
            if code is not ErrorCode.none:
                raise BrokerError(code, "deleting records")

        target = LeaderOf(self.topic, partition)
        self._admin.cluster.call(target, build, check=check, what="deleting records")

    def committed(self, group: str) -> dict[int, int]:
        found = self._admin.groups.committed(group)
        return {at.partition: told.offset for at, told in found.items() if at.topic == self.topic}


class FakeWorld(World):
    """On a fake cluster of its own."""

    can_cut = can_compact = True

    def __init__(self, kafka: FakeKafka) -> None:
        super().__init__()
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap
        self.topic = f"history-{next(_numbers)}"

    def _create(self, partitions: int) -> None:
        self._kafka.create_topic(self.topic, partitions)

    def _delete(self) -> None:
        with self._kafka._dispatcher.changed:
            state = self._kafka._dispatcher.state
            del state.topics[self.topic]
            for group in state.groups.values():  # as brokers do
                group.offsets = {at: told for at, told in group.offsets.items() if at.topic != self.topic}
            self._kafka._dispatcher.changed.notify_all()

    def _write(self, partition: int, values: list[bytes], base: int) -> None:
        rows = [Row(b"k", value, ()) for value in values]
        batch = Batch.parse(raw_batch(records_bytes(rows), count=len(rows)))
        with self._kafka._dispatcher.changed:
            there = self._kafka._partition(self.topic, partition)
            assert there.log.append(batch, leader_epoch=there.leader_epoch) == base
            self._kafka._dispatcher.changed.notify_all()

    def _grow(self, total: int) -> None:
        with self._kafka._dispatcher.changed:
            state = self._kafka._dispatcher.state
            state.add_partitions(state.topics[self.topic], total)
            self._kafka._dispatcher.changed.notify_all()

    def _expire(self, partition: int, offset: int) -> None:
        with self._kafka._dispatcher.changed:
            self._kafka._partition(self.topic, partition).log.delete_before(offset)
            self._kafka._dispatcher.changed.notify_all()

    def _cut(self, partition: int, offset: int) -> int:
        with self._kafka._dispatcher.changed:
            there = self._kafka._partition(self.topic, partition)
            log = there.log
            log.batches = [stored for stored in log.batches if stored.header.next_offset <= offset]
            log.end = max((stored.header.next_offset for stored in log.batches), default=log.start)
            log.epochs = [(epoch, start) for epoch, start in log.epochs if start < log.end]
            there.leader_epoch += 1  # a leader that did not have the rest
            log.epochs.append((there.leader_epoch, log.end))
            self._kafka._dispatcher.changed.notify_all()
            return log.end

    def _compact(self, partition: int) -> list[int]:
        with self._kafka._dispatcher.changed:
            log = self._kafka._partition(self.topic, partition).log
            gone = log.batches[1:-1:2]
            log.batches = [stored for stored in log.batches if stored not in gone]
            return [offset for one in gone for offset in range(one.header.base_offset, one.header.next_offset)]

    def committed(self, group: str) -> dict[int, int]:
        with self._kafka._dispatcher.changed:
            found = self._kafka._dispatcher.state.groups.get(group)
            offsets = {} if found is None else dict(found.offsets)
        return {at.partition: told.offset for at, told in offsets.items() if at.topic == self.topic}
