"""Programs that process records as group members, on threads of the test, and a ledger of who processed what."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any

import confluent_kafka
from tests.waiting import eventually

from ottla.consume.consumer import Consumer
from ottla.consume.listener import Listener
from ottla.model import TopicPartition
from ottla.produce.producer import Producer

from .consuming import rows
from .members import Ledger, Partitions


class History(Ledger):
    """Who holds what, and who processed what."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[tuple[int, int], list[str]] = {}
        self._writing = threading.Lock()

    def process(self, worker: str, held: Partitions, topic: str, records: Iterable[tuple[int, int]]) -> None:
        """Record that a worker processed records of a partition, which it must hold."""
        with self._writing:
            for partition, offset in records:
                if TopicPartition(topic, partition) not in held:
                    self.trouble.append(f"{worker} got {partition}@{offset} and holds {sorted(held)}")
                self.done.setdefault((partition, offset), []).append(worker)

    @property
    def count(self) -> int:
        """The number of distinct records."""
        return len(self.done)

    @property
    def repeated(self) -> list[tuple[int, int]]:
        """What was processed more than once."""
        return sorted(record for record, workers in self.done.items() if len(workers) > 1)

    def repeated_after(self, workers: Collection[str]) -> list[tuple[int, int]]:
        """What was processed again although these had processed it first."""
        return [record for record in self.repeated if self.done[record][0] in workers]


class Worker(Listener):
    """Processes records until it must leave; `crew` has the ledger."""

    def __init__(self, crew: Crew, name: str, **options: Any) -> None:
        self.name = name
        self.held: Partitions = frozenset()
        self.lost_some = False
        self.error: BaseException | None = None
        self.seen = 0
        self._crew = crew
        self.consumer = Consumer(crew.bootstrap, group=crew.group, topics=crew.topic, listener=self, **options)
        self.thread = threading.Thread(target=self._run, name=f"worker-{name}", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """End the iteration; the block closes the consumer."""
        self.consumer.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def work(self, records: list[tuple[int, int]]) -> None:
        """Process records, as the program does."""
        self._crew.history.process(self.name, self.held, self._crew.topic, records)
        self.seen += len(records)

    def _run(self) -> None:
        try:
            with self.consumer as consumer:
                for batch in consumer:
                    self.work(rows(batch))
        except BaseException as error:
            self.error = error

    def assigned(self, consumer: Consumer, partitions: Partitions) -> None:
        self._crew.history.take(self.name, partitions)
        self.held |= partitions

    def revoked(self, consumer: Consumer, partitions: Partitions) -> None:
        self.held -= partitions
        self._crew.history.let_go(self.name, partitions)

    def lost(self, consumer: Consumer, partitions: Partitions) -> None:
        self.lost_some = True
        self.revoked(consumer, partitions)


class Foreigner:
    """The same with confluent-kafka."""

    def __init__(self, crew: Crew, name: str, **settings: Any) -> None:
        self.name = name
        self.held: Partitions = frozenset()
        self.seen = 0
        self._crew = crew
        self._stop = False
        renamed = {key.replace("_", "."): value for key, value in settings.items()}
        basics = {"bootstrap.servers": crew.bootstrap, "group.id": crew.group, "auto.offset.reset": "earliest"}
        self._consumer = confluent_kafka.Consumer(basics | renamed)
        self._consumer.subscribe([crew.topic], on_assign=self._assigned, on_revoke=self._revoked)
        self.thread = threading.Thread(target=self._run, name=f"foreigner-{name}", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        self._stop = True
        self.thread.join(20)

    def check(self) -> None:
        pass

    def _run(self) -> None:
        while not self._stop:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                row = (message.partition() or 0, message.offset() or 0)
                self._crew.history.process(self.name, self.held, self._crew.topic, [row])
                self.seen += 1
        self._consumer.close()

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        new = frozenset(TopicPartition(p.topic, p.partition) for p in partitions)
        self._crew.history.take(self.name, new)
        self.held |= new

    def _revoked(self, _: Any, partitions: list[Any]) -> None:
        revoked = frozenset(TopicPartition(p.topic, p.partition) for p in partitions)
        self.held -= revoked
        self._crew.history.let_go(self.name, revoked)


class Crew:
    """The workers of one group, and a source of records while they come and go."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.history = History()
        self.workers: list[Worker | Foreigner] = []
        self.sent = 0
        self._stop = threading.Event()
        self._source = threading.Thread(target=self._produce, name="source", daemon=True)

    def __enter__(self) -> Crew:
        self._source.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_source()
        for worker in self.workers:
            worker.leave()

    def hire(self, name: str, **options: Any) -> Worker:
        worker = Worker(self, name, **options)
        self.workers.append(worker)
        return worker

    def hire_foreigner(self, name: str, **settings: Any) -> Foreigner:
        worker = Foreigner(self, name, **settings)
        self.workers.append(worker)
        return worker

    def dismiss(self, worker: Worker | Foreigner) -> None:
        self.workers.remove(worker)
        worker.leave()

    def flows(self, records: int = 100) -> None:
        """Wait until `records` more are processed."""
        goal = self.history.count + records
        self.until(lambda: self.history.count >= goal, f"{records} more records")

    def until(self, condition: Any, what: str) -> None:
        def met() -> bool:
            for worker in self.workers:
                worker.check()
            return bool(condition())

        eventually(met, what)

    def ends(self) -> None:
        """Stop the source and wait until everything is processed."""
        self.stop_source()
        self.until(lambda: self.history.count >= self.sent, "everything processed")
        assert self.history.count == self.sent

    def stop_source(self) -> None:
        """Stop the source."""
        self._stop.set()
        self._source.join(20)

    def _produce(self) -> None:
        with Producer(self.bootstrap, client_id="source") as producer:
            while not self._stop.wait(0.02):  # about 500 records a second, which leaves the cores to the readers
                producer.send_many(self.topic, [b"%d" % number for number in range(self.sent, self.sent + 10)])
                self.sent += 10
