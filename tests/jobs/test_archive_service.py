"""An archiver as a service: it outlives outages, and one topic does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.config import Timeouts
from ottla.engines import local
from ottla.errors import ArchiveIncomplete, BrokerError, CorruptBatch, InputError, NoBrokerReachable
from ottla.events import ArchiveHeldUp, ArchiveResumed, Event, TopicResumed, TopicSuspended
from ottla.fetch.reader import Reader
from ottla.jobs.archive_plan import Cutting
from ottla.jobs.archive_range import Archived, ArchiveRange
from ottla.jobs.archiving import ArchiveRequest, Archiving
from ottla.jobs.brokers import Brokers
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.verifying import Checked, verify_brokers, verify_files
from ottla.model import OffsetRange
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka


class Stand:
    """An archiver of some topics, with the events that it emitted."""

    def __init__(self, bootstrap: str, path: Path, *topics: str, total: float = 60.0) -> None:
        self.bootstrap = bootstrap
        self.topics = topics
        self.lake = Lake.create(path, LakeSettings())
        self.events: list[Event] = []
        self.brokers = Brokers(bootstrap=bootstrap, timeouts=Timeouts(total=total))

    def send(self, *topics: str, count: int = 10) -> None:
        with Producer(self.bootstrap) as producer:
            for topic in topics:
                producer.send_many(topic, [b"%s %d" % (topic.encode(), number) for number in range(count)])

    def archiving(
        self, engine: Callable[..., Iterator[Archived]] = local.run, *, group: str | None = None
    ) -> Archiving:
        job = ArchiveRange(brokers=self.brokers, path=str(self.lake.path), settings=self.lake.settings)
        return Archiving(
            Lake.open(self.lake.path),
            job,
            ArchiveRequest(topics=self.topics, group=group),
            engine=engine,  # type: ignore[arg-type]
            cutting=Cutting(file_bytes=1 << 20, workers=2),
            events=[self.events.append],
        )

    def count(self) -> dict[str, int]:
        rows: dict[str, int] = {}
        for path in self.lake.path.glob("topic=*/*/*.parquet"):  # not a dataset: that also lists what is staged
            topic = path.parts[-3].removeprefix("topic=")
            rows[topic] = rows.get(topic, 0) + pq.read_metadata(path).num_rows
        return rows

    def heard(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @contextmanager
    def following(self) -> Iterator[Callable[[], bool]]:
        """Follow in a thread while the block runs. Yields a function that returns whether it still runs."""
        over = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            entries = self.archiving().follow(every=0.1)
            try:
                while not over.is_set():
                    next(_stopping(entries, over))
            except StopIteration:
                pass
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield thread.is_alive
        finally:
            over.set()
            self.send(self.topics[0], count=1)
            thread.join(120)
        assert failed == []


def _stopping(entries: Iterator[object], over: threading.Event) -> Iterator[object]:
    for entry in entries:
        yield entry
        if over.is_set():
            return


def test_following_outlives_an_outage_however_long(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    fake_kafka.create_topic("a")
    stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", total=0.3)
    stand.send("a")
    with stand.following() as is_alive:
        eventually(lambda: stand.count() == {"a": 10})
        fake_kafka.all_down()
        eventually(lambda: len(stand.heard(ArchiveHeldUp)) >= 2, seconds=60)
        assert is_alive()
        fake_kafka.all_up()
        stand.send("a")
        eventually(lambda: stand.count() == {"a": 20}, seconds=60)
        eventually(lambda: stand.heard(ArchiveResumed), seconds=60)
    held = stand.heard(ArchiveHeldUp)
    assert all("no broker" in event.reason or "did not succeed" in event.reason for event in held)  # type: ignore[attr-defined]
    assert list(verify_files(stand.lake, Checked(), deep=True)) == []


def test_an_outage_at_the_beginning_is_an_error(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    fake_kafka.create_topic("a")
    stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", total=0.3)
    fake_kafka.all_down()
    with pytest.raises(NoBrokerReachable):
        next(stand.archiving().follow(every=0.1))


def test_a_topic_that_cannot_be_read_does_not_stop_the_others(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    for topic in "abc":
        fake_kafka.create_topic(topic)
    stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", "b", "c")
    stand.send("a", "b", "c")
    is_broken = True

    def engine(job: Callable[[OffsetRange], Archived], ranges: list[OffsetRange]) -> Iterator[Archived]:
        if is_broken and any(span.topic == "b" for span in ranges):
            raise CorruptBatch("damaged", base_offset=3, position=0, topic="b", partition=0)
        return local.run(job, ranges)

    with pytest.raises(ArchiveIncomplete, match=r"b: corrupt batch at offset 3") as failed:
        list(stand.archiving(engine).until_now())
    assert set(failed.value.troubles) == {"b"}
    assert stand.count() == {"a": 10, "c": 10}
    assert [event.topic for event in stand.heard(TopicSuspended)] == ["b"]  # type: ignore[attr-defined]
    assert stand.lake.staged() == []
    is_broken = False
    list(stand.archiving(engine).until_now())
    assert stand.count() == {"a": 10, "b": 10, "c": 10}


@pytest.mark.broker
def test_topics_that_are_deleted_and_created_again_do_not_stop_the_others(kafka: LocalCluster, tmp_path: Path) -> None:
    names = [f"service-{name}" for name in "abc"]
    stand = Stand(kafka.bootstrap, tmp_path / "lake", *names)
    with Admin(kafka.bootstrap) as admin:
        for name in names:
            admin.create_topic(name, partitions=1)
        stand.send(*names)
        list(stand.archiving().until_now())
        admin.delete_topics([names[1]])
        stand.send(names[0], names[2])
        with stand.following():
            eventually(lambda: stand.count() == {names[0]: 20, names[1]: 10, names[2]: 20}, seconds=60)
            eventually(lambda: stand.heard(TopicSuspended), seconds=60)
        admin.create_topic(names[1], partitions=1)
        stand.send(*names, count=100)
    with pytest.raises(ArchiveIncomplete, match="created again"):
        list(stand.archiving().until_now())
    assert stand.count() == {names[0]: 121, names[1]: 10, names[2]: 120}
    with Reader(kafka.bootstrap) as reader:
        checked = Checked()
        findings = list(verify_brokers(stand.lake, reader, checked))
    assert [(finding.where, finding.is_wrong) for finding in findings] == [(f"topic {names[1]}", False)]
    assert "created again" in findings[0].what
    assert checked.records == sum(stand.count().values()) - 10


@pytest.mark.broker
def test_a_topic_that_is_created_again_while_it_is_read_is_not_recorded(kafka: LocalCluster, tmp_path: Path) -> None:
    stand = Stand(kafka.bootstrap, tmp_path / "lake", "service-swapped")
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("service-swapped", partitions=1)
        stand.send("service-swapped")

        def engine(job: Callable[[OffsetRange], Archived], ranges: list[OffsetRange]) -> Iterator[Archived]:
            admin.delete_topics(["service-swapped"])
            admin.create_topic("service-swapped", partitions=1)
            stand.send("service-swapped")
            return local.run(job, ranges)

        with pytest.raises((InputError, BrokerError)):
            list(stand.archiving(engine).until_now())
    assert stand.count() == {}
    assert stand.lake.staged() == []


def test_an_unreadable_topic_is_reported_once_and_again_when_it_can_be_read(
    fake_kafka: FakeKafka, tmp_path: Path
) -> None:
    for topic in "ab":
        fake_kafka.create_topic(topic)
    stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", "b")
    stand.send("a", "b")
    tried: list[OffsetRange] = []

    def engine(job: Callable[[OffsetRange], Archived], ranges: list[OffsetRange]) -> Iterator[Archived]:
        mine = [span for span in ranges if span.topic == "b"]
        tried.extend(mine)
        if mine and len(tried) <= 4:
            raise CorruptBatch("damaged", base_offset=3, position=0, topic="b", partition=0)
        return local.run(job, ranges)

    archiving = stand.archiving(engine)
    entries = archiving.follow(every=0.01)
    next(entries)
    assert archiving._topics is not None
    while archiving.troubles or len(tried) <= 4:
        archiving._topics._looked = float("-inf")  # as if ten seconds had passed
        stand.send("a", count=1)
        next(entries)
    entries.close()
    kinds = [type(event) for event in stand.events]
    assert kinds == [TopicSuspended, TopicResumed]
    assert stand.count()["b"] == 10


def test_a_topic_that_is_in_order_again_goes_on(fake_kafka: FakeKafka, tmp_path: Path) -> None:
    for topic in "ab":
        fake_kafka.create_topic(topic)
    stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", "b")
    stand.send("a", "b")
    state = fake_kafka._state.topics
    hidden = state.pop("b")
    fake_kafka._state.auto_create = None
    with stand.following():
        eventually(lambda: stand.count() == {"a": 10}, seconds=60)
        eventually(lambda: stand.heard(TopicSuspended), seconds=60)
        state["b"] = hidden
        eventually(lambda: stand.count() == {"a": 10, "b": 10}, seconds=60)
        eventually(lambda: stand.heard(TopicResumed), seconds=60)


@pytest.mark.parametrize("again", [False, True])
def test_the_group_gets_offsets_of_the_topics_that_were_archived_and_of_no_others(
    fake_kafka: FakeKafka, tmp_path: Path, again: bool, hasty_about_unknown_topics: None
) -> None:
    """A deleted topic does not stop the others, and a new topic with its name does not get its offsets."""
    fake_kafka._state.auto_create = None
    with Admin(fake_kafka.bootstrap) as admin:
        for topic in "abc":
            admin.create_topic(topic, partitions=1)
        stand = Stand(fake_kafka.bootstrap, tmp_path / "lake", "a", "b", "c")
        stand.send("a", "b", "c")
        list(stand.archiving(group="g").until_now())
        committed = admin.groups.committed("g")
        assert {tp.topic: position.offset for tp, position in committed.items()} == {"a": 10, "b": 10, "c": 10}
        admin.delete_topics("b")
        if again:
            admin.create_topic("b", partitions=1)
            stand.send("b", count=30)
        stand.send("a", "c")
        with pytest.raises(ArchiveIncomplete):
            list(stand.archiving(group="g").until_now())
        committed = admin.groups.committed("g")
        assert {tp.topic: position.offset for tp, position in committed.items()} == {"a": 20, "c": 20}
    assert stand.count() == {"a": 20, "b": 10, "c": 20}
