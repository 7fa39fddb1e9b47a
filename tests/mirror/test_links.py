"""Several links in one process: one that is away, slow or partly broken delays no other, and memory stays bounded."""

from __future__ import annotations

import select
import socket
import threading
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.interop.clients import confluent_write
from tests.interop.samples import UNUSUAL, Sent
from tests.mirror.copies import assert_equal, link_of, new_topic, running, seen, tp
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, DeadlineExceeded, ErrorCode, InputError
from ottla.events import Event, MirrorProgress, MirrorTopicRefused, PrometheusSink
from ottla.jobs.mirror_runner import LinkRun, run_links
from ottla.jobs.mirror_status import read_status
from ottla.jobs.mirrors import Mirroring, mirror
from ottla.mirror.lane import Lane

pytestmark = pytest.mark.broker
_RECORD = 1 << 20
_AWAY = "127.0.0.1:1"


def test_a_link_that_is_away_and_one_that_is_slow_delay_no_other(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "isolated", settings={"max.message.bytes": str(2 * _RECORD)})
    count = 40
    with Producer(kafka.bootstrap, max_record_bytes=2 * _RECORD, compression="none") as producer:
        for number in range(count):
            producer.send(topic, bytes([number]) * _RECORD)
    fast = link_of(kafka.bootstrap, topic, name="fast-of-three")
    slow = replace(fast, name="slow-of-three", rename="slow.{topic}", rate=100_000.0)
    away = replace(fast, name="away-of-three", target=_AWAY)
    with running(away, slow, fast) as (away_run, slow_run, fast_run):
        eventually(lambda: fast_run.progress().records == count, "the fast one is done")
        eventually(lambda: slow_run.progress().records > 0, "the slow one has begun")
        held = max(lane.waiting_bytes for lane in _lanes(slow_run))
        assert slow_run.progress().records < count
        assert 0 < held < 24 * _RECORD, "a lane that waits is not fetched any further"
        assert away_run.progress().state in ("opening", "waiting")
        assert away_run.progress().records == 0
    assert fast_run.report is not None
    assert fast_run.report.records == count
    assert assert_equal(kafka.bootstrap, topic) == count


def test_a_link_whose_target_was_away_begins_when_it_is_back(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "late")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    link = replace(link_of(kafka.bootstrap, topic), journal="late-journal")
    with Admin(kafka.bootstrap) as admin:  # the target refuses: its journal is not compacted
        admin.create_topic("late-journal", replicas=1)
    (run,) = run_links([link], follow=True)
    assert "must be compacted" in str(run.error), "that will not pass by itself"
    quick = replace(link.target_brokers, bootstrap=_AWAY, timeouts=replace(link.target_brokers.timeouts, total=0.5))
    with running(replace(link, target=quick)) as (waiting,):
        eventually(lambda: waiting.progress().state == "waiting", "it waits")
        assert _AWAY in (waiting.progress().error or "")
        # The address of a cluster that comes back stays the same; here another one takes its place.
        waiting.link = link_of(kafka.bootstrap, topic)
        eventually(lambda: waiting.progress().records == 10, "it has begun")


def test_a_topic_that_fails_delays_no_other_and_is_reported(kafka: LocalCluster) -> None:
    bad = new_topic(kafka.bootstrap, "bad")
    good = new_topic(kafka.bootstrap, "good")
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(f"copy.{bad}", replicas=1)
    confluent_write(kafka.bootstrap, tp(f"copy.{bad}"), "none", UNUSUAL[:1])
    for topic in (bad, good):
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    link = link_of(kafka.bootstrap, bad, good, name=f"partly-{bad}")
    told: list[Event] = []
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    stopped = threading.Event()

    def hear(event: Event) -> None:
        told.append(event)
        sink(event)

    def is_over() -> bool:
        progress = [event for event in told if isinstance(event, MirrorProgress)]
        return stopped.is_set() or {event.topic: (event.failed, event.lag_records) for event in progress} == {
            bad: (1, 10),
            good: (0, 0),
        }

    (run,) = run_links([link], follow=True, is_stopped=is_over, events=[hear], status_seconds=0.2)
    assert run.report is not None
    assert [partition.source.topic for partition in run.report.failed] == [bad]
    assert len(seen(kafka.bootstrap, f"copy.{good}")) == 10
    metrics = generate_latest(registry).decode()
    assert f'ottla_mirror_progress_lag_records{{link="partly-{bad}",topic="{bad}"}} 10.0' in metrics
    assert f'ottla_mirror_progress_failed{{link="partly-{bad}",topic="{bad}"}} 1.0' in metrics
    assert f'ottla_mirror_progress_records_total{{link="partly-{bad}",topic="{good}"}} 10.0' in metrics


def test_a_topic_that_the_target_refuses_is_named_and_tried_again_and_the_others_go_on(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.jobs.mirrors._REFRESH_SECONDS", 0.2)
    good = new_topic(kafka.bootstrap, "taken")
    bad, long = f"{good}-bad", good.ljust(249, "n")
    in_the_way = f"copy_{bad}"  # collides with copy.BAD
    with Admin(kafka.bootstrap) as admin:
        for topic in (bad, long, in_the_way):
            admin.create_topic(topic, replicas=1)
    for topic in (good, bad):
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    link = link_of(kafka.bootstrap, f"{good}*", name=f"taken-{good}")
    (run,) = run_links([link])
    assert run.error is None
    assert run.report is not None
    assert [each.source for each in run.report.refused] == [long, bad]
    assert "copy_" in run.report.refused[1].reason
    assert "249" in run.report.refused[0].reason
    assert len(seen(kafka.bootstrap, f"copy.{good}")) == 10
    with pytest.raises(InputError, match="makes no topic name"):
        mirror(link)  # and a program hears of it, too
    told: list[Event] = []
    with running(link, events=[told.append]) as (run,), Mirroring(link) as mirroring:
        eventually(lambda: (run.progress().records, run.state) == (0, "running"), "it runs")
        refused = {event.topic for event in told if isinstance(event, MirrorTopicRefused)}
        assert refused == {bad, long}

        def named() -> tuple[str, ...]:
            note = mirroring.journal.note("status") or {}
            return tuple(text.partition(":")[0] for text in note.get("refused", ()) if note["state"] == "running")

        eventually(lambda: named() == (long, bad), "its state names them")
        with Admin(kafka.bootstrap) as admin:
            admin.delete_topics(in_the_way)
        eventually(lambda: run.progress().records == 10, "it is mirrored as soon as the target takes it")
        eventually(lambda: named() == (long,), "and not named any more")


def test_partitions_and_settings_that_the_target_refuses_leave_the_rest_as_it_is(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka.bootstrap, "no-growth", partitions=1)
    link = link_of(kafka.bootstrap, topic)
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:5])
    mirror(link)
    with Admin(kafka.bootstrap) as admin:
        admin.add_partitions(topic, 2)

    def refuse(*_: object, **__: object) -> None:
        raise BrokerError(int(ErrorCode.topic_authorization_failed), "adding partitions", "no")

    monkeypatch.setattr(Admin, "add_partitions", refuse)
    for partition in (0, 1):
        confluent_write(kafka.bootstrap, tp(topic, partition), "none", UNUSUAL[:5])
    (run,) = run_links([link])
    assert run.report is not None
    assert [(each.source, each.partitions) for each in run.report.refused] == [(topic, 1)]
    assert [(each.source.partition, each.records) for each in run.report.partitions] == [(0, 5)]


def test_the_state_of_a_link_is_known_while_it_runs_and_afterwards(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "state", partitions=2)
    link = link_of(kafka.bootstrap, topic)
    records = [Sent(b"k", b"v" * 100, (), 1_000_000 + 1000 * number) for number in range(20)]
    confluent_write(kafka.bootstrap, tp(topic), "zstd", records[:10])
    with running(link) as (run,), Mirroring(link) as mirroring:
        eventually(lambda: run.progress().records == 10, "it has mirrored")
        eventually(lambda: mirroring.journal.exists() and mirroring.journal.note("status"), "it has published")

        def is_current() -> bool:
            status = read_status(mirroring.journal, mirroring.target, source=mirroring.source, now=_now(mirroring))
            return status.state == "running" and [each.position for each in status.partitions] == [10, 0]

        eventually(is_current, "its state")
    with Mirroring(link) as mirroring:
        now = _now(mirroring)
        ended = read_status(mirroring.journal, mirroring.target, source=None, now=now)
        assert ended.state == "ended"
        assert [each.lag.records for each in ended.partitions] == [0, 0]
        assert ended.partitions[0].share == 1.0
        confluent_write(kafka.bootstrap, tp(topic), "zstd", records[10:])
        later = read_status(mirroring.journal, mirroring.target, source=mirroring.source, now=now)
        behind = later.partitions[0]
        assert (behind.position, behind.source_end, behind.lag.records, behind.lag.seconds) == (10, 20, 10, 10.0)
        assert behind.lag.size_bytes is not None
        assert behind.lag.size_bytes > 0
        assert later.to_json()["lag_records"] == 10


def test_a_link_that_is_stopped_while_it_connects_has_not_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = link_of(f"127.0.0.1:{silent.getsockname()[1]}", "clicks")
        (run,) = run_links([link], follow=True, is_stopped=lambda: bool(select.select([silent], [], [], 0)[0]))
    assert (run.report, run.error, run.is_running) == (None, None, False)


def test_a_link_that_does_not_end_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        begun.set()
        released.wait(30)

    monkeypatch.setattr("ottla.jobs.mirror_runner._JOIN_SECONDS", 0.05)
    monkeypatch.setattr(Mirroring, "run", hang)
    (run,) = run_links([link_of(_AWAY, "clicks")], is_stopped=begun.is_set)
    assert isinstance(run.error, DeadlineExceeded)
    released.set()
    assert run.join(30)


def _now(mirroring: Mirroring) -> float:
    note = mirroring.journal.note("status")
    assert note is not None
    return float(note["at"])


def _lanes(run: LinkRun) -> list[Lane]:
    assert run._mirroring is not None
    return list(run._mirroring.lanes())
